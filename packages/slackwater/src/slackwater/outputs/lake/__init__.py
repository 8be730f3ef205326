"""Tables of a lake as outputs: an exactly-once sink, with an adapter for each table format."""
