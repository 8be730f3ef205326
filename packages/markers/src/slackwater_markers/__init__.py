"""Published cuts and markers: the cut log in Kafka, the marker store in Redis or memory."""
