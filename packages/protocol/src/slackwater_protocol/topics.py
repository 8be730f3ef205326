"""Which Kafka topics belong to a source."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        """The topic with the rows of a table."""
        return self.routed.get(table) or data_topic(self.source, table)

    @property
    def transactions(self) -> str:
        """The topic with BEGIN and END."""
        return self.transaction_name or transaction_topic(self.source)

    @property
    def notifications(self) -> str:
        """The topic with the connector's notifications."""
        return self.notification_name or notification_topic(self.source)
