"""The audit of what the lock files install: does the vulnerability database know anything about it?"""
