"""Why we know that all records of a transaction are in Kafka and read."""

from enum import StrEnum


class Evidence(StrEnum):
    """What counts as proof that a transaction is complete in the topic of a table."""

    COUNTS = "counts"
    """All of 1 … n were read, n from END. Needs that no record is dropped on the way."""
    OVERTAKEN = "overtaken"
    """A record of a later transaction was read in every partition. For topics where records are dropped (by a
    transform, by compaction); needs traffic in all partitions and a key in every record."""
    OFFSETS = "offsets"
    """Read past the end offsets asked for after END was readable. Only for exactly-once connectors."""
