"""Makes events of changes, one per input that reads the row, packed by stage and bucket.

The specification travels to whoever packs; the same changes always give the same events.
"""
