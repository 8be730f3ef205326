"""Services that send and receive messages, killed at every step, and judges of what is left."""
