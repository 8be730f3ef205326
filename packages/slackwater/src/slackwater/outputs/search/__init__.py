"""Search indexes as outputs: an exactly-once sink for the API of OpenSearch and Elasticsearch."""
