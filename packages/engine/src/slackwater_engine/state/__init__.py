"""The state of a bucket: sorted entries, and the log of their changes, the only truth about them."""
