"""What all users of Kafka share: a reader of topics, retries, transactions, advice, a schema registry."""
