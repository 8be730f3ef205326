"""The live entries of a bucket, sorted: a cache on a local disk."""
