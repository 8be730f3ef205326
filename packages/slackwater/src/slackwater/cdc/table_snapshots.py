"""Which topics have rows of tables without a complete snapshot: cuts name them.

A stream contains changes. Without a snapshot, the rows that a table had before are unknown: the connector
failed in its first snapshot and continued without it, it takes none (``snapshot.mode``), or the table was
added to it later. A table may be shown once there is one of the following:

* a completed snapshot that the notifications announce, initial or ad hoc, of which all rows were read;
* without notifications, an initial snapshot that has rows of it, of which the row marked ``last`` was read;
* an earlier cut that has its topic and does not name it;
* an operator's statement that it is complete, for example because it was created after the first snapshot.

A source that has had no snapshot at all has no cut. One that pipelines or services write needs none: its
topics begin with it.
"""

from slackwater.cdc.commits import Commits
from slackwater.cdc.initial_snapshot import Announcements, InitialSnapshot
from slackwater.cdc.partition_queues import EndOffsets, Partitions
from slackwater.cdc.postgres import ON_ITS_WAY_MS
from slackwater.protocol import Cut, SourceTopics

ALL_TABLES = "*"
"""Among tables that need no snapshot: all that the connector's first one did not contain."""
SNAPSHOT_HINT = (
    "let the connector take an ad hoc snapshot of the table (signal execute-snapshot); if the table was "
    "created after the connector's first snapshot, name it in sidecar.complete_tables"
)
"""The remedy for a table without a complete snapshot."""
FIRST_SNAPSHOT_HINT = (
    "stop the connector, delete its offsets (DELETE /connectors/NAME/offsets) and its slot, and start it "
    "with snapshot.mode=initial; if tables were empty when it began, name them in sidecar.complete_tables"
)
"""The remedy for a source that has had no snapshot."""


class TableSnapshots:
    """Knows which topics have tables without a complete snapshot.

    Args:
        topics: The names of the source's topics.
        announced: The notifications about snapshots; only read.
        commits: What was read of the transaction topic; only read.
        partitions: All that are read.
        start: The cut to continue from.
        complete: Tables that need no snapshot, as an operator says.
    """

    def __init__(
        self,
        topics: SourceTopics,
        announced: Announcements,
        commits: Commits,
        partitions: Partitions,
        *,
        start: Cut | None,
        complete: frozenset[str],
    ) -> None:
        self._topics = topics
        self._announced = announced
        self._commits = commits
        self._partitions = partitions
        self._accepts_later = ALL_TABLES in complete
        self._tables = set(complete - {ALL_TABLES})
        self._shown = set() if start is None else start.end_offsets.keys() - set(start.without_snapshot)
        self._has_finished = bool(self._shown)
        self._ad_hoc_rows: dict[str, int] = {}
        self._behind: dict[str, EndOffsets] = {}
        self.missing: dict[str, str] = {}
        """The topics of tables without a snapshot at the newest cut, with what they lack."""

    def read_ad_hoc(self, table: str) -> None:
        """Counts a row of an ad hoc snapshot."""
        self._ad_hoc_rows[table] = self._ad_hoc_rows.get(table, 0) + 1

    def finish(self, snapshot: InitialSnapshot) -> None:
        """Notes that an initial snapshot is on the frontier."""
        self._tables |= snapshot.expected().keys() | snapshot.received().keys()
        self._has_finished = True

    def why_none(self) -> str:
        """Returns why the source has had no snapshot; empty if it has, or needs none."""
        announced = self._announced
        if not announced.is_told or self._tables or announced.has_completed() or announced.tables():
            return ""
        return announced.why_incomplete()

    @property
    def are_untold(self) -> bool:
        """Whether no record mentions a snapshot, and the tables are not known to need none."""
        return not (self._announced.is_told or self._tables or self._commits.are_whole)

    def why_untold(self) -> str:
        """Returns that the connector writes no notifications, and how to change that."""
        return (
            "the connector writes no notifications, so nothing proves that a snapshot is complete; set "
            "notification.enabled.channels=sink and "
            f"notification.sink.topic.name={self._topics.notifications}"
        )

    @property
    def has_new_topics(self) -> bool:
        """Whether a topic is read that no cut has classified."""
        return not self._partitions.topics <= self._shown | self.missing.keys()

    def find_missing(self) -> tuple[str, ...]:
        """Returns the topics that a cut at the present frontier has to name."""
        self.missing = {}
        if self._commits.are_whole and not self._announced.is_told:
            self._shown |= self._partitions.topics
        for topic in self._partitions.topics - self._shown:
            reason = self._why_incomplete(topic)
            if reason:
                self.missing[topic] = reason
            else:
                self._shown.add(topic)
        return tuple(sorted(self.missing))

    # --- rules

    def _why_incomplete(self, topic: str) -> str:
        """Returns what the tables of a topic lack; empty if nothing."""
        named = {t for t in self._tables | self._announced.tables() if self._topics.data(t) == topic}
        tables = self._partitions.tables_of(topic) or named
        if not tables:
            return "" if self._is_later() else self._why_none_of("its table")
        reasons = (self._what_lacks(table) for table in sorted(tables - self._tables))
        return next(filter(None, reasons), "") or self._wait_behind(topic, tables)

    def _what_lacks(self, table: str) -> str:
        counts = self._announced.counts_of(table)
        if not counts:
            return "" if self._is_later() else self._why_none_of(table)
        if 0 in counts.values():
            return ""
        completed_ms, rows = max(counts.items())
        read = self._ad_hoc_rows.get(table, 0)
        if rows is not None and read < rows:
            return f"{read:,} of the {rows:,} rows of the snapshot of {table} can be read"
        if self._commits.newest_written_ms < completed_ms + ON_ITS_WAY_MS:
            return f"rows of the snapshot of {table} may be on their way"
        return ""

    def _why_none_of(self, table: str) -> str:
        reason = f"no completed snapshot contains {table}"
        return reason if self._announced.is_told else f"{reason}: {self.why_untold()}"

    def _is_later(self) -> bool:
        """Returns whether a table without a snapshot was created after the first one, as an operator says."""
        if not self._accepts_later:
            return False
        return self._announced.began_with_snapshot() or (self._has_finished and not self._announced)

    def _wait_behind(self, topic: str, tables: set[str]) -> str:
        """Waits until a cut contains all rows of an ad hoc snapshot, which were read by now.

        A table that was empty in its first snapshot needs no later one.
        """
        counts = {table: self._announced.counts_of(table) for table in tables - self._tables}
        by_snapshot = (table for table, rows in counts.items() if rows and rows[min(rows)] != 0)
        if not any(table in self._ad_hoc_rows for table in by_snapshot):
            return ""
        partitions = [p for p in self._partitions if p.topic == topic]
        behind = self._behind.setdefault(topic, {p.key: p.position for p in partitions})
        is_behind = all(p.end_offset() >= behind.get(p.key, 0) for p in partitions)
        return "" if is_behind else "rows of the snapshot are above the frontier"
