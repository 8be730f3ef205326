"""Names of topics, also those of one source, of Redis keys and record headers.

All Redis keys of a source share the hash tag ``{<source>}``: one slot in a Redis Cluster.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.protocol import ConfigError

HEADER_COMMIT_LSN = "slackwater-commit-lsn"
HEADER_XID = "slackwater-xid"
HEADER_PIPELINE = "slackwater-pipeline"
HEADER_CUT = "slackwater-cut-offset"
"""Of a source's commit records: the offset of the cut in its log."""
HEADER_VIEW = "slackwater-view"
"""Only of documents in a topic of several views."""
PIPELINES_TOPIC = "slackwater.pipelines"
"""Kafka topic with the registrations and reports of a cluster's pipelines; compacted, one partition."""
LEASES_TOPIC = "slackwater.leases"
"""Kafka topic with readers' leases and the holds of pipelines; compacted, one partition."""
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9._\-]")
_QUOTED = r'"(?:[^"]|"")+"'
_TABLE_NAME = re.compile(rf'({_QUOTED}|[^".][^.]*)\.({_QUOTED}|[^"].*)', re.DOTALL)
_LISTED = re.compile(rf"(?:{_QUOTED}|[^,])+")
_LONGEST_TOPIC = 249
TABLE_NAME_HINT = 'expected schema.table, with names as in the database; quote others as in SQL: public."a.b"'
"""What to write instead of something that names no table."""
LEDGER_SCHEMA = "slackwater"
"""The schema of ledgers in lakes; the tables of views must not be in it."""


def registration_key(pipeline: str, run: str) -> str:
    """Key of a run's registration in :data:`PIPELINES_TOPIC`."""
    return f"{pipeline}/{run}"


def report_key(pipeline: str, run: str) -> str:
    """Key of a run's report in :data:`PIPELINES_TOPIC`."""
    return f"{pipeline}/{run}/report"


def hold_key(lease: str, pipeline: str) -> str:
    """Key of a pipeline's hold in :data:`LEASES_TOPIC`; the key of the lease is its id."""
    return f"{lease}/{pipeline}"


def cuts_key(source: str, timeline: int) -> str:
    """Redis stream of a timeline's cuts; entry id ``<commit_lsn>-1``."""
    return f"slackwater:{{{source}}}:cuts:{timeline}"


def markers_key(source: str) -> str:
    """Redis hash ``<topic>/<partition>`` to marker, of partitions that are ahead of the newest cut."""
    return f"slackwater:{{{source}}}:markers"


def frontier_key(source: str) -> str:
    """Redis hash: newest cut, wall time, sidecar id, timeline, state, id of the cut log."""
    return f"slackwater:{{{source}}}:frontier"


def open_key(source: str) -> str:
    """Redis hash xid to open transaction."""
    return f"slackwater:{{{source}}}:open"


def is_reserved_topic(name: str) -> bool:
    """Returns whether Slackwater, Kafka or a connector keeps records of its own in a topic of this name."""
    return name.startswith(("slackwater.", "__")) or ".slackwater." in name or name in {".", ".."}


def cut_log_topic(source: str) -> str:
    """Kafka topic that keeps every cut of a source; one partition."""
    return f"{source}.slackwater.cuts"


def transaction_topic(source: str) -> str:
    """Debezium's transaction metadata topic (option ``topic.transaction`` at its default)."""
    return f"{source}.transaction"


def notification_topic(source: str) -> str:
    """Topic to which the connector's sink notification channel is expected to write."""
    return f"{source}.notifications"


def quarantine_of(name: str) -> str:
    """Returns the name of the view, topic or index that shows the withheld keys of another one."""
    return f"{name}.quarantine"


def commit_topic(output: str) -> str:
    """Kafka topic with the commit records of an output topic."""
    return f"{output}.commits"


def avro_commit_topic(output: str) -> str:
    """Kafka topic with the same commit records in Avro; also of a source, by its name."""
    return f"{output}.commits-avro"


def commit_writer_id(source: str) -> str:
    """The transactional id of the sidecar that writes the commit records of a source."""
    return f"slackwater-commits-{source}"


def names_in_topics(topics: Mapping[str, str]) -> dict[str, str]:
    """Returns by view the name by which its documents are read, given the topic of each view.

    It is that of the topic or, if several views share it, ``topic/view``.
    """
    views = Counter(topics.values())
    return {view: f"{topic}/{view}" if views[topic] > 1 else topic for view, topic in topics.items()}


def topic_of_view(name: str) -> str:
    """Returns the topic in such a name."""
    return name.partition("/")[0]


def progress_topic(pipeline: str) -> str:
    """Kafka topic with a pipeline's progress records; compacted, one partition."""
    return f"{pipeline}.slackwater.progress"


def readers_topic(pipeline: str) -> str:
    """Kafka topic with the revision that a pipeline's readers read; the name has none; one partition."""
    return f"{pipeline}.slackwater.readers"


def units_topic(group: str) -> str:
    """Kafka topic whose partitions are the lanes of a consumer group that shares its work by unit; empty."""
    return f"{group}.units"


def outcome_topic(sender: str) -> str:
    """Kafka topic with the outcomes of a sender's prepared transactions; compacted, one partition."""
    return f"{sender}.slackwater.outcomes"


def slot_prefix(pool: str) -> str:
    """What the names of the senders of a pool begin with; a number follows."""
    return f"{pool}.slot-"


def lake_ledger(pipeline: str) -> str:
    """The table of a lake that lists which snapshots of a pipeline's tables belong to one commit."""
    return f"{LEDGER_SCHEMA}.{re.sub(r'[^A-Za-z0-9_]', '_', pipeline)}"


def lake_readers(pipeline: str) -> str:
    """The table of a lake with the revision of a pipeline that readers read; the name has no revision."""
    return f"{lake_ledger(pipeline)}__readers"


def search_ledger(pipeline: str) -> str:
    """The alias, in a search cluster, of the record of a pipeline's newest visible batch."""
    return f"slackwater.{pipeline}"


def table_name(written: str) -> str:
    """Returns the full name of a table, ``schema.table``, as Debezium's records have it.

    Args:
        written: The same, or with one or both parts in double quotes, as SQL writes them: ``public."a.b"``.
            Upper and lower case count in both forms. What follows the first dot is the table's name.

    Raises:
        ConfigError: The text is not such a name, or the schema's name contains a dot: then full names
            would not say where it ends.
    """
    found = _TABLE_NAME.fullmatch(written)
    if found is None:
        raise ConfigError(f"{written!r} is not the name of a table", TABLE_NAME_HINT)
    schema, name = map(_unquoted, found.groups())
    check_schema_name(schema)
    return f"{schema}.{name}"


def check_schema_name(schema: str) -> None:
    """Refuses schemas whose tables cannot be distinguished from those of other schemas by their full names.

    Raises:
        ConfigError: The name contains a dot.
    """
    if "." in schema:
        hint = "rename it: topics and records name tables schema.table, and would not say where it ends"
        raise ConfigError(f"schema {schema!r} has a dot in its name", hint)


def listed_names(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list of names; commas in double quotes belong to a name."""
    return tuple(part for part in map(str.strip, _LISTED.findall(text)) if part)


def quoted_table(table: str) -> str:
    """Returns ``schema.table`` as SQL writes it, with both parts in double quotes."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split(".", 1))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def data_topic(source: str, table: str) -> str:
    """Debezium's topic for ``schema.table``: units of UTF-16 that Kafka does not allow become ``_``.

    Names that are too long for Kafka are cut off.
    """
    return _FORBIDDEN.sub(_underscores, f"{source}.{table}")[:_LONGEST_TOPIC]


def _underscores(found: re.Match[str]) -> str:
    return "_" * (len(found[0].encode("utf-16-le")) // 2)


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

    @property
    def heartbeats(self) -> str:
        """Topic of the connector's heartbeats; a pipeline that is a source of others has none."""
        return f"__debezium-heartbeat.{self.source}"
