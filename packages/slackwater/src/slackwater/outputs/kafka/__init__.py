"""The exactly-once Kafka sink."""
