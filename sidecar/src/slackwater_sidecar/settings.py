"""Settings of one sidecar."""

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta

from slackwater.protocol import Servers, SourceTopics
from slackwater.settings.model import SidecarOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings(SidecarOptions):
    """Settings of one sidecar: one source, one Kafka cluster, one Redis."""

    source: str
    """The connector's ``topic.prefix``."""
    servers: Servers
    """Where it reads and publishes; without Redis only the cut log is written."""
    topics: SourceTopics | None = None
    """Which topics belong to the source, when transforms rename them; None: Debezium's names."""
    timeline: int = 1
    """Raise it when the source's LSNs start over; the topics are then read on from the newest cut."""
    replication_factor: int = -1
    """Replication factor of the cut log, if it has to be made; -1: the broker's default."""
    ahead_after: timedelta = timedelta(milliseconds=500)
    """Markers of partitions beyond the frontier are published once it has not moved for this long."""
    ahead_interval: timedelta = timedelta(milliseconds=250)
    """Least time between two publications of such markers."""
    quiet_interval: timedelta = timedelta(seconds=1)
    """Least time between cuts without a change event: commits of tables that are not followed."""
    status_interval: timedelta = timedelta(seconds=1)
    """How often state and open transactions are reported, topics and Redis looked after."""
    sidecar_id: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """How the status names this process: by host and number, so that it can be found."""
    connect_url: str | None = None
    """REST interface of Kafka Connect, whose view of the connector is watched; None: it is not."""
    database_url: str | None = field(default=None, repr=False)
    """The source database, whose replication slot is watched; may hold a password; None: it is not."""

    @property
    def source_topics(self) -> SourceTopics:
        """Which topics belong to the source."""
        return self.topics or SourceTopics(self.source)
