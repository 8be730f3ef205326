"""What a process shows of itself: logs, metrics, traces, and how it ends."""
