"""Random histories of database, connector, broker and sidecars, judged at every step."""
