"""What all who talk to Kafka share: a reader of topics, retries, transactions, advice, a schema registry."""
