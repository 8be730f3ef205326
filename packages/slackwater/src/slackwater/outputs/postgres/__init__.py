"""Tables in PostgreSQL as outputs: an exactly-once sink, and the ledger that readers use."""
