"""What everybody who talks to Kafka shares: retries, transactions, advice; schemas of a registry."""
