"""Where outputs are: adapters that read them, and what they read."""
