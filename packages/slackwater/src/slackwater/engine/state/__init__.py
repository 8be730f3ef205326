"""The state of a bucket: sorted entries, and the log of their changes, which is the source of truth."""
