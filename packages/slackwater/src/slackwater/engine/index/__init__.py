"""The live entries of a bucket, sorted: a cache on a local disk that may disappear at any moment.

The log of the state is authoritative. An index whose token does not match the log is rebuilt.
"""
