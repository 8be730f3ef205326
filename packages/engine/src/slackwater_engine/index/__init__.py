"""The live entries of a bucket, sorted: a cache on a local disk that may vanish at any moment.

The state log is the truth; an index whose token is not that of the log is filled anew.
"""
