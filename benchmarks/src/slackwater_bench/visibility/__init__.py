"""The probe: a process that measures how long commits take to become visible in a pipeline's output."""
