"""For tests of this and other members: Debezium-shaped records, recordings of topics, and a judge of cuts."""
