"""What a sidecar needs to be told."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from slackwater_protocol import Evidence, SourceTopics


def default_sidecar_id() -> str:
    """Host and process: enough to find the process that wrote a status."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Settings of one sidecar: one source, one Kafka cluster, one Redis."""

    source: str
    """The connector's ``topic.prefix``."""
    bootstrap: str
    """Kafka's ``bootstrap.servers``."""
    redis_url: str | None = None
    """``redis://host:port/db``; None: only the cut log is written."""
    redis_password: str | None = field(default=None, repr=False)
    """Overrides one in the URL."""
    tables: frozenset[str] | None = None
    """Tables to follow, ``schema.table``; None: all topics ``<source>.<schema>.<table>``, later ones too."""
    topics: SourceTopics | None = None
    """Which topics belong to the source, when transforms rename them; None: Debezium's names."""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """Table to what proves that its rows are complete; not listed: counts."""
    schema_registry: str | None = None
    """Address of the registry for topics in Avro; None: there are none."""
    schema_registry_user: str | None = None
    """For basic authentication at the registry."""
    schema_registry_password: str | None = field(default=None, repr=False)
    """For basic authentication at the registry."""
    timeline: int = 1
    """Raise it when the source's LSNs start over; the topics are then read on from the newest cut."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka settings, e.g. for security."""
    replication_factor: int = -1
    """Of the cut log, if it has to be made; -1: the broker's default."""
    publish_interval: timedelta = timedelta(milliseconds=5)
    """Least time between two publications of cuts."""
    ahead_after: timedelta = timedelta(milliseconds=500)
    """Markers of partitions beyond the frontier are published once it has not moved for so long."""
    ahead_interval: timedelta = timedelta(milliseconds=250)
    """Least time between two publications of such markers."""
    quiet_interval: timedelta = timedelta(seconds=1)
    """Least time between cuts without a change event: commits of tables that are not followed."""
    open_after: timedelta = timedelta(seconds=5)
    """A transaction that has been incomplete for so long is named in the status: ``stalled``."""
    restored_cuts: int = 2_000
    """How many of the newest cuts are put back into a Redis that has lost them."""
    status_interval: timedelta = timedelta(seconds=1)
    """How often state and open transactions are reported, topics and Redis looked after."""
    sidecar_id: str = field(default_factory=default_sidecar_id)
    """How the status names this process."""
    workers: int = 1
    """Processes that read and decode the source's partitions; 1: the sidecar's own does."""

    @property
    def source_topics(self) -> SourceTopics:
        """Which topics belong to the source."""
        return self.topics or SourceTopics(self.source)
