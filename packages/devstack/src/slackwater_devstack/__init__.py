"""PostgreSQL, Kafka, Connect with Debezium and Redis on loopback, without containers."""
