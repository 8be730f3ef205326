"""What a bucket keeps: entries, and the log of their changes."""
