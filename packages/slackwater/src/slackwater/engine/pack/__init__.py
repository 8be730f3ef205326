"""Turns changes into events, one for each input that reads the row, packed by stage and bucket.

The specification is sent to the process that packs. The same changes always result in the same events.
"""
