"""Makes events of changes: one per input that reads the row, packed by bucket."""
