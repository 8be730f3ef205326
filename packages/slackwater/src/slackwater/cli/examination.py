"""Collects the facts about a source from Kafka and Redis."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from confluent_kafka import KafkaException, Message

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.envelope import End, decode_full_row, decode_transaction
from slackwater.cli.pipelines import open_marker_store, settled
from slackwater.cli.topics import explained
from slackwater.command.invocation import ANSWERS_WITHIN
from slackwater.control import PipelineNode, SourceSigns, make_topology, sidecar_absence
from slackwater.cuts import (
    CutLog,
    FrontierStatus,
    MarkerStoreUnavailableError,
    PipelineLog,
    RedisMarkerStore,
    StoreFault,
    TopicUnavailableError,
    cuts_of,
)
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import is_silence, is_transient, kafka_error
from slackwater.protocol import (
    Clock,
    Cut,
    Evidence,
    KafkaSettings,
    OpenTransaction,
    SourceTopics,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater.settings.errors import unreachable
from slackwater.settings.model import Settings

PartitionId = tuple[str, int]
"""Topic and partition."""


def partition_of(name: str) -> PartitionId:
    """Returns the partition that is meant by ``topic/partition``."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Describes one partition as Kafka has it now."""

    low: int
    """The first offset that is kept."""
    stable_end: int
    """Where readers of committed records stop."""
    end: int
    """The high watermark: the offset after the last record, committed or not."""
    newest_row_lsn: int | None = None
    """LSN of the last readable row; None when there is none, or it is in a form the doctor does not read."""

    @property
    def hangs(self) -> bool:
        """Whether records are held back by an open Kafka transaction."""
        return self.stable_end < self.end


@dataclass(slots=True, kw_only=True)
class SourceFacts:
    """Everything that is known of a source at one moment; filled in by :func:`examine`."""

    topics: SourceTopics
    now_ms: int
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """What proves a table complete, as the settings say; not listed: counts."""
    tables: frozenset[str] = frozenset()
    """Tables that the settings name; empty: all are followed."""
    redis_error: str | None = None
    """Why Redis could not be asked; what the sidecar says is then unknown."""
    redis_wrong: str | None = None
    """What Redis holds that the cut log does not confirm; None while it is right, as far as can be seen."""
    cut_log_error: str | None = None
    """What is wrong with the end of the cut log; None while it is right, or cannot be asked."""
    kafka_error: str | None = None
    """Why Kafka could not be asked; partitions are then unknown."""
    status: FrontierStatus | None = None
    cut: Cut | None = None
    """The newest one of the cut log; None: there is none, or the log could not be asked."""
    open: tuple[OpenTransaction, ...] = ()
    """Named by the sidecar, next first."""
    data_topics: frozenset[str] = frozenset()
    """Topics of tables that exist."""
    transactions: PartitionFacts | None = None
    """The transaction topic; None: it does not exist."""
    ends: tuple[tuple[int, End], ...] = ()
    """The last ENDs with their offsets, in the order of the transaction topic."""
    partitions: Mapping[PartitionId, PartitionFacts] = field(default_factory=dict)
    """Partitions of data topics."""
    pipelines: tuple[PipelineNode, ...] = ()
    """Pipelines that read the source, by name."""
    others: tuple[str, ...] = ()
    """Other sources, which pipelines read or write."""
    pipelines_error: str | None = None
    """Why the topic of pipelines could not be read; pipelines are then unknown."""

    @property
    def source(self) -> str:
        """The connector's ``topic.prefix``."""
        return self.topics.source

    @property
    def newest_end(self) -> End | None:
        """The newest END of the cut's timeline; one before the cut's last may be of an earlier timeline.

        The connector repeats ENDs behind newer ones, so the largest LSN counts.
        """
        first = self.cut.transaction_offset - 1 if self.cut else 0
        behind = [end for offset, end in self.ends if offset >= first]
        return max(behind or (end for _, end in self.ends[-1:]), key=lambda end: end.commit_lsn, default=None)

    @property
    def positions(self) -> dict[PartitionId, int]:
        """Where the sidecar reads next in the partitions of open transactions."""
        return {
            partition_of(name): position
            for transaction in self.open
            for name, (_, position) in transaction.places.items()
        }

    @property
    def named_topics(self) -> frozenset[str]:
        """Topics that the sidecar names: those of tables with dots in their names look like none."""
        counted = (table for transaction in self.open for table in transaction.expected)
        return frozenset(self.cut.end_offsets if self.cut else ()).union(map(self.topics.data, counted))

    def end_of(self, name: str) -> int | None:
        """Returns where readers of committed records stop in ``topic/partition``; None: it is not known."""
        known = self.partitions.get(partition_of(name))
        return None if known is None else known.stable_end

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the source, or something could not be asked."""
        errors = (self.redis_error, self.redis_wrong, self.cut_log_error, self.kafka_error)
        found = (self.status, self.cut, self.data_topics, self.transactions, self.pipelines)
        return any(found) or any((*errors, self.pipelines_error))

    @property
    def without_topic(self) -> tuple[str, ...]:
        """Named tables that count as empty; none if Kafka could not be asked."""
        if self.kafka_error is not None:
            return ()
        return tuple(sorted(t for t in self.tables if self.topics.data(t) not in self.data_topics))


_TAIL = 20
"""Records looked at from a partition's end: the last may be tombstones or markers of Kafka transactions."""
_TAIL_OF_TRANSACTIONS = 500


class KafkaProbe(ExitStack):
    """Asks Kafka. Use it with ``with``; not thread-safe."""

    def __init__(self, kafka: KafkaSettings, is_data_topic: Callable[[str], bool]) -> None:
        super().__init__()
        config, seconds = kafka.client_config, ANSWERS_WITHIN.total_seconds()
        self._committed = self.enter_context(TopicReader(config, seconds))
        self._all = self.enter_context(TopicReader(config, seconds, is_committed=False))
        self._is_data_topic = is_data_topic

    def read_topics(self, facts: SourceFacts) -> None:
        """Learns where everything begins and ends now, and the last ENDs.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        with explained("list topics"):
            known = self._committed.topics()
        data = (facts.named_topics & known.keys()).union(filter(self._is_data_topic, known))
        partitions = {(t, n): self._partition((t, n)) for t in sorted(data) for n in range(known[t])}
        facts.data_topics, facts.partitions = data, partitions
        place = (facts.topics.transactions, 0)
        if place[0] in known:
            transactions = self._partition(place)
            records = self._tails({place: transactions}, _TAIL_OF_TRANSACTIONS)[place]
            ends = ((record.offset() or 0, _end(record.value())) for record in records)
            facts.transactions = transactions
            facts.ends = tuple((offset, end) for offset, end in ends if end is not None)

    def with_newest_rows(
        self, partitions: Mapping[PartitionId, PartitionFacts]
    ) -> dict[PartitionId, PartitionFacts]:
        """Adds the LSN of the last row of each partition."""
        result = dict(partitions)
        for partition, records in self._tails(partitions, _TAIL).items():
            lsns = [lsn for record in records if (lsn := _row_lsn(record.value())) is not None]
            if lsns:
                result[partition] = replace(result[partition], newest_row_lsn=lsns[-1])
        return result

    def still_hanging(
        self, partitions: Mapping[PartitionId, PartitionFacts]
    ) -> dict[PartitionId, PartitionFacts]:
        """Asks again: nothing hangs where the readable end has moved meanwhile."""
        result = dict(partitions)
        for partition, facts in partitions.items():
            if facts.hangs and self._bounds(self._committed, partition)[1] > facts.stable_end:
                result[partition] = replace(facts, end=facts.stable_end)
        return result

    def _partition(self, partition: PartitionId) -> PartitionFacts:
        low, stable_end = self._bounds(self._committed, partition)
        return PartitionFacts(low=low, stable_end=stable_end, end=self._bounds(self._all, partition)[1])

    @staticmethod
    def _bounds(reader: TopicReader, partition: PartitionId) -> tuple[int, int]:
        with explained(f"offsets of {partition[0]}/{partition[1]}"):
            return reader.bounds(partition)

    def _tails(
        self, partitions: Mapping[PartitionId, PartitionFacts], count: int
    ) -> dict[PartitionId, list[Message]]:
        """Reads the last readable records of each partition, in order; what does not come in time is left."""
        spans = {
            partition: (max(facts.low, facts.stable_end - count), facts.stable_end)
            for partition, facts in sorted(partitions.items())
        }
        found: dict[PartitionId, list[Message]] = {partition: [] for partition in spans}
        with explained("reading"):
            try:
                for message in self._committed.read(spans):
                    found[message.topic() or "", message.partition() or 0].append(message)
            except KafkaException as error:
                known = kafka_error(error)
                if known is None or not is_transient(known):
                    raise
        return found


def _end(value: bytes | None) -> End | None:
    """Reads an END in JSON, with or without schema; returns None for anything else."""
    try:
        found = decode_transaction(value or b"")
    except UndecodableRecordError:
        return None
    return found if isinstance(found, End) else None


def _row_lsn(value: bytes | None) -> int | None:
    """Reads the LSN of a row in JSON, with or without schema; returns None for anything else."""
    try:
        return decode_full_row(value or b"").source.lsn
    except UndecodableRecordError:
        return None


_MANY_PARTITIONS = 1_000
"""Partitions of which the last rows are read."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that facts are read from."""

    topics: SourceTopics
    evidence: Mapping[str, Evidence]
    store: RedisMarkerStore
    log: CutLog
    pipelines: PipelineLog
    probe: Callable[[], AbstractContextManager[KafkaProbe]]
    clock: Clock
    tables: frozenset[str] = frozenset()
    """Tables that the settings name; empty: all are followed."""
    pause: Callable[[float], object] = threading.Event().wait


@contextmanager
def open_sources(settings: Settings, source: str) -> Iterator[Sources]:
    """Connects with where the facts about a source come from; nothing is asked yet.

    Raises:
        CommandConfigError: brokers or Redis were not given.
    """
    opened_store = open_marker_store(settings, "where the sidecar publishes")
    from slackwater.cli.commands.sidecar import sidecar_settings  # the sidecar takes a while to import
    from slackwater_sidecar.reader import data_topics

    followed = sidecar_settings(settings, source)
    kafka, topics = followed.servers.kafka, followed.source_topics
    with (
        opened_store as store,
        closing(CutLog(source, kafka, timeout=ANSWERS_WITHIN)) as log,
        closing(PipelineLog(kafka, timeout=ANSWERS_WITHIN)) as pipelines,
    ):
        yield Sources(
            topics=topics,
            evidence=followed.evidence,
            tables=followed.tables or frozenset(),
            store=store,
            log=log,
            pipelines=pipelines,
            probe=lambda: KafkaProbe(kafka, data_topics(followed)),
            clock=SystemClock(),
        )


def examine(sources: Sources) -> SourceFacts:
    """Collects all that can be learnt of a source now; what cannot be asked is noted. Takes seconds.

    A server that was silent is not asked again, so its silence is known within ten seconds.
    """
    facts = SourceFacts(topics=sources.topics, evidence=sources.evidence, tables=sources.tables, now_ms=0)
    _read_status(sources, facts)
    try:
        with sources.probe() as probe:
            _read_cut(sources, facts)
            probe.read_topics(facts)
            _await_news(sources, facts)
            _compare(sources, facts)
            _read_cut(sources, facts)
            _read_pipelines(sources, facts)
            _read_tails(probe, facts)
    except UnavailableError as error:
        facts.kafka_error = str(error)
        _await_news(sources, facts)
    return facts


def _read_status(sources: Sources, facts: SourceFacts) -> None:
    """Learns what the sidecar has said last, and when it was asked."""
    facts.now_ms = epoch_ms(sources.clock.now())
    try:
        facts.status = sources.store.status(facts.source)
        facts.open = tuple(sources.store.open(facts.source))
    except MarkerStoreUnavailableError as error:
        _note(facts, error)


def _note(facts: SourceFacts, error: MarkerStoreUnavailableError) -> None:
    if error.fault is StoreFault.CONTENT:
        facts.redis_wrong = str(error)
    else:
        facts.redis_error = str(error)


def _await_news(sources: Sources, facts: SourceFacts) -> None:
    """Asks the sidecar until it speaks of now, for a while.

    Old positions show nothing, nor does a Redis that is empty or was silent.
    """
    if _is_outdated(sources, facts):
        settled(
            lambda: _read_status(sources, facts),
            lambda _: not _is_outdated(sources, facts),
            sources.clock,
            sources.pause,
        )


def _is_outdated(sources: Sources, facts: SourceFacts) -> bool:
    """Returns whether the sidecar may soon report, or positions that are not below the readable ends."""
    if facts.redis_error is not None or facts.redis_wrong is not None:
        return False
    signs = SourceSigns(source=facts.source, status=facts.status)
    if sidecar_absence(signs, epoch_ms(sources.clock.now())):
        return True
    if facts.kafka_error is not None:
        return False
    at, ends = facts.positions, facts.partitions
    return any(at[partition] < ends[partition].stable_end for partition in at.keys() & ends.keys())


def _compare(sources: Sources, facts: SourceFacts) -> None:
    """Compares what Redis holds with the cut log.

    Only a contradiction that lasts counts: while a broker recovers, its log may end earlier for a moment.
    """
    if facts.redis_error is None and facts.redis_wrong is None:
        look = partial(_contradiction, sources)
        try:
            facts.redis_wrong = settled(look, lambda found: not found, sources.clock, sources.pause)
        except MarkerStoreUnavailableError as error:
            _note(facts, error)


def _contradiction(sources: Sources) -> str | None:
    """Says how the frontier in Redis contradicts the cut log; None: not at all, as far as can be seen."""
    held, log = sources.store.position(sources.topics.source), sources.log
    if held is None:
        return None
    offset = held.log_offset
    try:
        with _answering():
            end = log.end()
            # A log without records, or without this offset, contradicts nothing: a broker that has just
            # started may deny its topics, and records may have been deleted.
            if end == 0 or offset < log.begin():
                return None
            found = log.records(offset - 1, limit=1) if offset < end else []
    except (TopicUnavailableError, StateError):
        return None
    if [(c.log_offset, c.cut.position) for c in cuts_of(found)] == [(offset, held.position)]:
        return None
    place = f"offset {offset} of the cut log"
    return f"Redis has a cut at {held.position}, but {place} contains a different record"


def _read_tails(probe: KafkaProbe, facts: SourceFacts) -> None:
    """Reads the last rows of the partitions of open transactions, and looks again whether anything hangs."""
    known = [partition for partition in sorted(facts.positions) if partition in facts.partitions]
    looked_at = probe.still_hanging({each: facts.partitions[each] for each in known[:_MANY_PARTITIONS]})
    facts.partitions = {**facts.partitions, **probe.with_newest_rows(looked_at)}
    if facts.transactions is not None and facts.transactions.hangs:
        place = (facts.topics.transactions, 0)
        facts.transactions = probe.still_hanging({place: facts.transactions})[place]


@contextmanager
def _answering() -> Iterator[None]:
    """Ends the questions to Kafka when one has got no answer; what Kafka refuses is passed on."""
    try:
        yield
    except TopicUnavailableError as error:
        if is_silence(error):
            raise unreachable("Kafka", f"{error.operation} of topic {error.topic}", error.reason) from error
        raise


def _read_cut(sources: Sources, facts: SourceFacts) -> None:
    try:
        with suppress(TopicUnavailableError), _answering():
            published = sources.log.newest()
            facts.cut = published.cut if published else None
    except StateError as error:
        facts.cut_log_error = str(error)


def _read_pipelines(sources: Sources, facts: SourceFacts) -> None:
    try:
        with _answering():
            entries = sources.pipelines.read()
    except TopicUnavailableError as error:
        facts.pipelines_error = str(error)
        return
    known = make_topology(entries, {} if facts.cut is None else {facts.source: facts.cut}, facts.now_ms)
    facts.pipelines = tuple(node for node in known.pipelines if node.source == facts.source)
    facts.others = tuple(node.name for node in known.sources if node.name != facts.source)
