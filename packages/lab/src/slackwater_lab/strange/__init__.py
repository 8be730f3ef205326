"""Random schemas, DDL and connector settings against a real database, connector, broker and sidecar.

Everything that is strange ends in one of two ways: the views equal PostgreSQL, or something is refused by
name.
"""
