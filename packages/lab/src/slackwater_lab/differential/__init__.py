"""Random schemas, views and histories: the engine against DuckDB on the state at every commit."""
