"""What a process shows about itself: logs, metrics, traces, and how it ends."""
