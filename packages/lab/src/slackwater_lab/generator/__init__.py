"""Debezium-shaped topics without a database or a connector."""
