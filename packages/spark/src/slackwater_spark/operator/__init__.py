"""The stages as operators of a Spark query."""
