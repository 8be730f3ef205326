"""Faults done to the running product, and the judgement of all it published meanwhile."""
