"""Debezium records to whole transactions: envelope decoding and the pure frontier."""
