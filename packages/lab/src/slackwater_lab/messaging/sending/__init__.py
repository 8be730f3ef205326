"""Services that write a database and send messages, killed at every step, and a judge of what is left."""
