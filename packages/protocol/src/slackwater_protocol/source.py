"""A source as all who follow it know it: the names of its topics, and the proof that its tables need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from slackwater_protocol.keys import data_topic, notification_topic, transaction_topic


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """The topics of one connector: Debezium's default names, unless they were routed elsewhere."""

    source: str
    """The connector's ``topic.prefix``."""
    routed: Mapping[str, str] = field(default_factory=dict)
    """Table (``schema.table``) to topic, for tables whose records a transform sends elsewhere."""
    transaction_name: str | None = None
    """Name of the transaction topic; None: ``<source>.transaction``."""
    notification_name: str | None = None
    """Name of the notification topic; None: ``<source>.notifications``."""

    def data(self, table: str) -> str:
        """Returns the topic with the rows of a table."""
        return self.routed.get(table) or data_topic(self.source, table)

    @property
    def transactions(self) -> str:
        """The topic with BEGIN and END."""
        return self.transaction_name or transaction_topic(self.source)

    @property
    def notifications(self) -> str:
        """The topic with the connector's notifications."""
        return self.notification_name or notification_topic(self.source)


class Evidence(StrEnum):
    """The proof that all records of a transaction are in the topic of a table and read."""

    COUNTS = "counts"
    """All of 1 … n were read, n from END. Needs that no record is dropped on the way."""
    OVERTAKEN = "overtaken"
    """A record of a later transaction was read in every partition. For topics where records are dropped (by a
    transform, by compaction); needs traffic in all partitions and a key in every record."""
    OFFSETS = "offsets"
    """Read past the end offsets asked for after END was readable. Only for exactly-once connectors."""
