"""Schemas of Avro records from a Confluent-compatible schema registry."""
