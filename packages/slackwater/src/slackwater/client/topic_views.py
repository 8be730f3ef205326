"""Reads the views of a pipeline from its output topics, as of one commit, and switches their readers."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from slackwater.cdc.batch import Record
from slackwater.client.errors import StateNotKeptError
from slackwater.client.feeds import switch_log
from slackwater.client.kafka import KafkaBroker
from slackwater.client.log import Log, commit_log, read_between
from slackwater.client.readers import PASSING, Readers, Switch, Switched
from slackwater.client.snapshot import (
    Key,
    ReadableStates,
    TypedRows,
    ViewSnapshot,
    VisibleCommit,
    repeated,
    visible,
    visible_commit,
)
from slackwater.client.transaction import Place, view_of
from slackwater.client.writer import ProducerSettings
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    KafkaSettings,
    Lease,
    ProgressRecord,
    ReaderSwitch,
    SystemClock,
    TopicState,
    decode_progress_record,
    encode_reader_switch,
    from_epoch_ms,
    lease_record_key,
)
from slackwater.protocol.commit_lookup import PlacedCommit, first_reached, has_reached_lsn
from slackwater.protocol.keys import (
    LEASES_TOPIC,
    commit_topic,
    progress_topic,
    readers_topic,
    topic_of_view,
)

_MAX_BYTES: Final = 64 << 20
_TRANSACTION: Final = timedelta(seconds=10)
"""How long a switch that was killed halfway delays readers and other switches."""
_SHOWN: Final = 100
_RECENT_COMMITS: Final = 8192
"""How many of the last offsets of the commit topic are searched for batches at whose ends views may be read.
A batch takes two offsets, so this covers ten minutes at seven batches a second."""
CLOCK_MARGIN: Final = timedelta(minutes=1)
"""How much the clocks of brokers, pipelines and readers may differ; states expire that much earlier."""

Ends = Mapping[Place, int]
"""For each output partition, the offset below which the documents up to some commit are."""


def ends_of(topics: Mapping[str, TopicState], views: Iterable[str]) -> dict[Place, int]:
    """Returns the offsets at which the documents of a pipeline's batches end, including the newest batch."""
    names = set(map(topic_of_view, views))
    return {(name, number): end for name in names for number, end in enumerate(topics[name].end)}


def ends_at(
    at: CommitPosition, later: Iterable[PlacedCommit], newest: Ends, pipeline: str, *, is_kept: bool = False
) -> Ends:
    """Returns the offsets at which the documents end that form the views as of an earlier commit.

    ``later`` are the commit records after it, in order, up to the newest batch, whose documents end at
    ``newest``; the first one may include the commit. ``is_kept`` says whether a batch ends at the commit, and
    compaction cannot have removed any of its documents.

    Raises:
        StateNotKeptError: The pipeline publishes batches, has published documents since, and ``is_kept`` is
            false.
    """
    topics = {topic for topic, _ in newest}
    ends: dict[Place, int] = {}
    for placed in later:
        record = placed.record
        if record.xid is None and not is_kept and not topics.isdisjoint(record.offsets):
            raise StateNotKeptError(
                f'pipeline {pipeline!r} publishes batches (`emit = "latest"`), and has published commit '
                f"{placed.position} after {at}; either no batch ends at {at}, or its documents may already "
                "have been removed by compaction",
                "read its newest state; min.compaction.lag.ms of the topics (`kafka.keep`) determines how "
                "long "
                'the state at the end of a batch can be read; with `emit = "transactions"` every commit can '
                "be read",
            )
        for topic, ranges in record.offsets.items():
            for partition, held in ranges.items():
                ends.setdefault((topic, partition), held.first_offset)
        if newest.keys() <= ends.keys():
            break
    return {place: ends.get(place, end) for place, end in newest.items()}


@dataclass(slots=True)
class FoldedView:
    """The newest document of each key."""

    key: Key | None = None
    """The only key to keep."""
    documents: dict[bytes, bytes] = field(default_factory=dict)
    other_columns: tuple[str, ...] = ()
    """The columns of its keys if they are not those of :attr:`key`; empty: they are, or nothing is known."""

    def add(self, key: bytes, document: bytes | None) -> None:
        """Adds the next document of a partition; a tombstone removes the document of its key."""
        if self.key is not None and (columns := _columns_of(key)) != self.key:
            if columns.keys() != self.key.keys():
                self.other_columns = tuple(columns)
            return
        if document is None:
            self.documents.pop(key, None)
        else:
            self.documents[key] = document


def _columns_of(key: bytes) -> dict[str, Any]:
    """Returns the columns of a key, which must be a JSON object."""
    try:
        columns = json.loads(key)
    except ValueError:
        columns = None
    if isinstance(columns, dict):
        return columns
    raise ConfigError(
        f"one key was requested, but the keys of the output are not JSON objects: {key[:_SHOWN]!r}",
        'read the whole view, or publish it with key_format = "json"',
    )


class TopicOutput:
    """Implements :class:`slackwater.client.snapshot.PipelineOutput` over the topics of a pipeline.

    Each read reads whole topics, so it suits inspection, tests and initial copies. Close the object after
    use. ``views`` are those that it has for readers, by the names of their topics; empty: all.
    """

    def __init__(
        self,
        kafka: KafkaSettings | KafkaBroker,
        pipeline: str,
        clock: Clock | None = None,
        views: Collection[str] = (),
    ) -> None:
        self.pipeline, self._only = pipeline, views
        """See the protocol."""
        self._broker, self._clock = _broker(kafka, pipeline), clock or SystemClock()
        self._progress = Log(self._broker, progress_topic(pipeline), _decode, self._clock)
        self._reader = self._broker.reader()

    def views(self) -> Sequence[str]:
        """See the protocol. They are the names of the output topics; each of them has a commit topic.

        Those of views that share a topic are ``topic/view``.
        """
        known = self._newest().topics
        topics = [name for name in known if commit_topic(name) in known]
        shared = [f"{name}/{view}" for name in topics for view in known[name].views]
        names = sorted(shared + [name for name in topics if not known[name].views])
        return [name for name in names if name in self._only or not self._only]

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        return visible_commit(self._newest())

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol. They are the ends of batches that are certainly complete, or every commit."""
        progress = self._newest()
        seen = visible_commit(progress)
        if seen is None:
            return None
        kept_since = self._kept_since(progress, views)
        with closing(self._commits(views)) as log:
            low, end = _commit_bounds(log, progress)
            found = log.entries(max(low, end - _RECENT_COMMITS), end)
            recent = [placed for placed in found if placed.position <= seen.position]
            has_every_commit = any(placed.record.xid is not None for placed in recent)
            first = next(log.entries(low, end), None) if has_every_commit else None
        published = from_epoch_ms(recent[-1].written_ms) if recent else self._clock.now()
        ends = [placed.position for placed in recent if _is_kept(placed, kept_since)]
        return ReadableStates(seen, published, ends, None if first is None else _begin_of(first))

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol."""
        progress = self._newest()
        source = visible(self.pipeline, visible_commit(progress), at).source
        folded = {view: FoldedView(key) for view in views}
        starts = self._starts(progress, views)
        if at is None:
            at = self._fold_newest(folded, starts, progress)
        else:
            self._fold(folded, starts, self._ends_at(at, progress, views))
            # More may have been published and compacted in the meantime.
            self._ends_at(at, self._newest(), views)
        documents = {view: list(each.documents.values()) for view, each in folded.items()}
        others = {view: each.other_columns for view, each in folded.items() if each.other_columns}
        return ViewSnapshot(source, at, documents, keys=others)

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        """See the protocol."""
        found = self.read([view], at, None)
        return TypedRows(found.source, documents=found.documents[view])

    def has_lease(self, lease: Lease) -> bool:
        """See :class:`slackwater.client.snapshot.KnowsLeases`."""
        if not self._broker.partitions(LEASES_TOPIC):
            return False
        with closing(Log(self._broker, LEASES_TOPIC, lambda record: record, self._clock)) as log:
            found = {each.key(): each.value() for each in log.entries(*log.bounds())}
        return found.get(lease_record_key(lease)) is not None

    def close(self) -> None:
        """See the protocol."""
        self._progress.close()
        self._reader.close()

    def _newest(self) -> ProgressRecord:
        found = self._progress.newest()
        if found:
            return found[-1]
        hint = "check the name (from revision 2 on it ends in .v<revision>) and the brokers"
        raise ConfigError(f"no pipeline {self.pipeline!r} has written to this Kafka", hint)

    def _starts(self, progress: ProgressRecord, views: Sequence[str]) -> dict[Place, int]:
        """Returns the offsets at which topics begin; raises if documents were removed there."""
        starts = {}
        for topic in set(map(topic_of_view, views)):
            for number, first in enumerate(progress.topics[topic].start):
                low, _ = self._reader.bounds((topic, number))
                if low > first:
                    raise StateNotKeptError(
                        f"{topic}/{number} begins at offset {low}, but the pipeline has written from {first} "
                        "on: documents were removed by retention or by hand",
                        "the views cannot be reconstructed from the rest; rebuild them with another "
                        "`revision`",
                    )
                starts[topic, number] = low
        return starts

    def _ends_at(self, at: CommitPosition, progress: ProgressRecord, views: Sequence[str]) -> Ends:
        newest = ends_of(progress.topics, views)
        seen = visible_commit(progress)
        if seen is None or seen.position <= at:
            return newest
        kept_since = self._kept_since(progress, views)
        with closing(self._commits(views)) as log:
            low, end = _commit_bounds(log, progress)
            first = first_reached(low, end, log.first, has_reached_lsn(at))
            if first is None:
                return newest
            begins = _begin_of(next(log.entries(low, end)))
            if at < begins:
                raise StateNotKeptError(
                    f"commit {at} was requested, but pipeline {self.pipeline!r} has published no state "
                    f"before {begins}",
                    "read it at a later commit",
                )
            is_kept = first.position == at and _is_kept(first, kept_since)
            later = (p for p in log.entries(first.offset, end) if at < p.position <= seen.position)
            return ends_at(at, later, newest, self.pipeline, is_kept=is_kept)

    def _kept_since(self, progress: ProgressRecord, views: Sequence[str]) -> datetime | None:
        """Returns the time since when compaction has removed nothing from some topics.

        Compaction removes a replaced record only after the topic's compaction lag. A lag that was raised for
        leases does not cover the time before, when replaced records may already have been removed.

        Returns:
            None: nothing is ever removed.
        """
        since = []
        for topic in set(map(topic_of_view, views)):
            lag = self._broker.compaction_lag(topic)
            if lag is not None:
                since.append(self._clock.now() - lag)
                state = progress.topics[topic]
                if state.lag_ms is not None:
                    since.append(from_epoch_ms(state.raised_ms - state.lag_ms))
        return max(since) + CLOCK_MARGIN if since else None

    def _fold_newest(
        self, folded: Mapping[str, FoldedView], starts: Ends, progress: ProgressRecord
    ) -> CommitPosition:
        """Reads to the end, and further until compaction cannot have hidden a document.

        A document may be removed while its topic is read, because a newer one with its key has become
        visible. That one is then read, too, and so on, until as many documents were read as commits have
        published.
        """
        ends: Ends = ends_of(progress.topics, folded)
        self._fold(folded, starts, ends)
        while True:
            position = CommitPosition(progress.timeline, progress.commit_lsn)
            progress = self._newest()
            new = CommitPosition(progress.timeline, progress.commit_lsn)
            if new == position:
                return position
            begins, ends = ends, ends_of(progress.topics, folded)
            if self._fold(folded, begins, ends) == self._published(progress, folded, position, new):
                return new

    def _published(
        self, progress: ProgressRecord, views: Collection[str], after: CommitPosition, until: CommitPosition
    ) -> int:
        """Returns the number of documents that commits have published in some output topics."""
        with closing(self._commits(views)) as log:
            low, end = _commit_bounds(log, progress)
            first = first_reached(low, end, log.first, has_reached_lsn(after))
            found = log.entries(low if first is None else first.offset, end)
            counts = (p.record.record_counts.items() for p in found if after < p.position <= until)
            topics = set(map(topic_of_view, views))
            return sum(count for each in counts for topic, count in each if topic in topics)

    def _commits(self, views: Iterable[str]) -> Log[PlacedCommit]:
        """Returns the commit records of the views, which the commit topic of each of them has."""
        return commit_log(self._broker, commit_topic(topic_of_view(next(iter(views)))), self._clock)

    def _fold(self, folded: Mapping[str, FoldedView], starts: Ends, ends: Ends) -> int:
        """Reads documents between offsets; returns how many there were."""
        spans = {place: (starts.get(place, 0), end) for place, end in ends.items()}
        count = 0
        for place, records, _ in read_between(self._reader, spans, self._clock):
            whole = folded.get(place[0])
            for record in records:
                view = whole or folded.get(f"{place[0]}/{view_of(record)}")
                if view is not None:
                    view.add(record.key() or b"", record.value())
            count += len(records)
        return count


class TopicReaders(Readers):
    """The readers of output topics. Each switch is a record in a topic of its own, and the newest one counts.

    It is written in one Kafka transaction under a transactional id that only switches use, so if two
    processes switch at once, the second one fences the first.
    """

    def __init__(self, kafka: KafkaSettings | KafkaBroker, pipeline: str) -> None:
        super().__init__(pipeline)
        self._broker = _broker(kafka, self.pipeline)
        self._topic = readers_topic(self.pipeline)

    def newest_switch(self) -> ReaderSwitch | None:
        """See the base class."""
        if not self._broker.partitions(self._topic):
            return None
        with closing(switch_log(self._broker, self.pipeline, SystemClock())) as log:
            found = list(log.entries(*log.bounds()))
        return found[-1] if found else None

    def open(self, pipeline: str, views: Collection[str] = ()) -> TopicOutput:
        """See the base class."""
        return TopicOutput(self._broker, pipeline, views=views)

    def _make(self, wanted: Switch, timeout: timedelta, clock: Clock) -> Switched:
        self._broker.ensure_topic(self._topic, 1, exactly=True)
        with ExitStack() as opened:
            writer = self._broker.writer(self._topic, ProducerSettings(transaction_timeout=_TRANSACTION))
            opened.callback(writer.discard)
            writer.open()
            before = self.newest_switch()
            new = opened.enter_context(closing(self.open(wanted.pipeline)))
            old = opened.enter_context(closing(self.open(before.pipeline))) if before else None
            done, record = repeated(lambda: wanted.attempt(before, old, new, clock), timeout, clock, PASSING)
            if record is not None:
                writer.begin()
                writer.produce(self._topic, self.pipeline.encode(), encode_reader_switch(record), [], None)
                writer.flush(lambda: False)
                writer.commit()
        return done


def _broker(kafka: KafkaSettings | KafkaBroker, pipeline: str) -> KafkaBroker:
    return KafkaBroker(kafka, f"read-{pipeline}", _MAX_BYTES) if isinstance(kafka, KafkaSettings) else kafka


def _is_kept(batch: PlacedCommit, kept_since: datetime | None) -> bool:
    """Returns whether no record can have been removed because of a record that was written after a batch.

    Such records are newer than the batch's commit record.
    """
    return kept_since is None or from_epoch_ms(batch.written_ms) > kept_since


def _commit_bounds(log: Log[PlacedCommit], progress: ProgressRecord) -> tuple[int, int]:
    """Returns the bounds of a commit topic, which includes the records of a visible batch.

    The marker of the batch's transaction may arrive later there than in the progress topic.
    """
    low, end = log.bounds()
    written = progress.topics.get(log.place[0])
    return low, end if written is None else max(end, *written.end)


def _begin_of(commit: PlacedCommit) -> CommitPosition:
    return CommitPosition(commit.record.timeline, commit.record.previous_lsn)


def _decode(record: Record) -> ProgressRecord | None:
    value = record.value()
    return None if value is None else decode_progress_record(value)
