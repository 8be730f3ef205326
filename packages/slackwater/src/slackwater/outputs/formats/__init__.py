"""Forms of documents that have a schema: Avro, and JSON with a JSON Schema."""
