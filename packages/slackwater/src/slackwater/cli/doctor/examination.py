"""Collects the facts about a source from Kafka and Redis."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from confluent_kafka import KafkaException, Message

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.envelope import End, decode_full_row, decode_transaction
from slackwater.cli.doctor.facts import PartitionFacts, PartitionId, SourceFacts
from slackwater.cli.pipelines import settled
from slackwater.cli.topics import explained
from slackwater.command.invocation import ANSWERS_WITHIN, redis_settings
from slackwater.control import SourceSigns, make_topology, sidecar_absence
from slackwater.cuts import (
    CutLog,
    MarkerStore,
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
    Evidence,
    KafkaSettings,
    SourceTopics,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater.settings.errors import unreachable
from slackwater.settings.model import Settings

_TAIL = 20
"""Records looked at from a partition's end: the last may be tombstones or markers of Kafka transactions."""
_TAIL_OF_TRANSACTIONS = 500


class KafkaProbe:
    """Asks Kafka. Use it with ``with``; not thread-safe.

    Args:
        kafka: Where it is.
        is_data_topic: Which topics hold rows of its tables.
    """

    def __init__(self, kafka: KafkaSettings, is_data_topic: Callable[[str], bool]) -> None:
        seconds = ANSWERS_WITHIN.total_seconds()
        self._committed = TopicReader(kafka.client_config, seconds)
        self._all = TopicReader(kafka.client_config, seconds, is_committed=False)
        self._is_data_topic = is_data_topic

    def __enter__(self) -> "KafkaProbe":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Frees connections."""
        self._committed.close()
        self._all.close()

    def with_topics(self, facts: SourceFacts) -> SourceFacts:
        """Adds where everything begins and ends now, and the last ENDs.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        with explained("list topics"):
            known = self._committed.topics()
        data = (facts.named_topics & known.keys()).union(filter(self._is_data_topic, known))
        partitions = {(t, n): self._partition((t, n)) for t in sorted(data) for n in range(known[t])}
        facts = replace(facts, data_topics=data, partitions=partitions)
        ends_in = (facts.topics.transactions, 0)
        if ends_in[0] not in known:
            return facts
        transactions = self._partition(ends_in)
        records = self._tails({ends_in: transactions}, _TAIL_OF_TRANSACTIONS)[ends_in]
        ends = tuple((r.offset() or 0, end) for r in records if (end := _end(r.value())) is not None)
        return replace(facts, transactions=transactions, ends=ends)

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
    store: MarkerStore
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
    redis = redis_settings(settings, "where the sidecar publishes")
    from slackwater.cli.commands.sidecar import sidecar_settings  # the sidecar takes a while to import
    from slackwater_sidecar.reader import data_topics

    followed = sidecar_settings(settings, source)
    kafka, topics = followed.servers.kafka, followed.source_topics
    store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWERS_WITHIN)
    log = CutLog(source, kafka, timeout=ANSWERS_WITHIN)
    pipelines = PipelineLog(kafka, timeout=ANSWERS_WITHIN)
    try:
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
    finally:
        pipelines.close()
        log.close()
        store.close()


def examine(sources: Sources) -> SourceFacts:
    """Collects all that can be learnt of a source now; what cannot be asked is noted. Takes seconds.

    A server that was silent is not asked again, so its silence is known within ten seconds.
    """
    topics, now_ms = sources.topics, epoch_ms(sources.clock.now())
    facts = SourceFacts(topics=topics, evidence=sources.evidence, tables=sources.tables, now_ms=now_ms)
    facts = _with_status(sources, facts)
    try:
        with sources.probe() as probe:
            facts = _with_cut(sources, facts)
            facts = probe.with_topics(facts)
            facts = _with_cut(sources, _compared(sources, _with_news(sources, facts)))
            return _with_tails(probe, _with_pipelines(sources, facts))
    except UnavailableError as error:
        return _with_news(sources, replace(facts, kafka_error=str(error)))


def _with_status(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Adds what the sidecar has said last, and when it was asked."""
    store, source = sources.store, facts.source
    facts = replace(facts, now_ms=epoch_ms(sources.clock.now()))
    try:
        return replace(facts, status=store.status(source), open=tuple(store.open(source)))
    except MarkerStoreUnavailableError as error:
        if error.fault is StoreFault.CONTENT:
            return replace(facts, redis_wrong=str(error))
        return replace(facts, redis_error=str(error))


def _with_news(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Asks the sidecar until it speaks of now, for a while.

    Old positions show nothing, nor does a Redis that is empty or was silent.
    """
    if not _is_outdated(sources, facts):
        return facts
    look = partial(_with_status, sources, facts)
    return settled(look, lambda now: not _is_outdated(sources, now), sources.clock, sources.pause)


def _compared(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Adds what Redis holds against the cut log."""
    if facts.redis_error is not None or facts.redis_wrong is not None:
        return facts
    try:
        return replace(facts, redis_wrong=_wrong(sources))
    except MarkerStoreUnavailableError as error:
        return replace(facts, redis_error=str(error))


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


def _with_tails(probe: KafkaProbe, facts: SourceFacts) -> SourceFacts:
    """Adds the last rows of the partitions of open transactions, and looks again whether anything hangs."""
    partitions: Mapping[PartitionId, PartitionFacts] = {
        partition: facts.partitions[partition]
        for partition in sorted(facts.positions)
        if partition in facts.partitions
    }
    looked_at = probe.still_hanging(dict(list(partitions.items())[:_MANY_PARTITIONS]))
    transactions = facts.transactions
    if transactions is not None and transactions.hangs:
        partition = (facts.topics.transactions, 0)
        transactions = probe.still_hanging({partition: transactions})[partition]
    return replace(
        facts,
        partitions={**facts.partitions, **probe.with_newest_rows(looked_at)},
        transactions=transactions,
    )


@contextmanager
def _answering() -> Iterator[None]:
    """Ends the questions to Kafka when one has got no answer; what Kafka refuses is passed on.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    try:
        yield
    except TopicUnavailableError as error:
        if is_silence(error):
            raise unreachable("Kafka", f"{error.operation} of topic {error.topic}", error.reason) from error
        raise


def _with_cut(sources: Sources, facts: SourceFacts) -> SourceFacts:
    try:
        with _answering():
            published = sources.log.newest()
    except TopicUnavailableError:
        return facts
    except StateError as error:
        return replace(facts, cut_log_error=str(error))
    return replace(facts, cut=published.cut if published else None)


def _with_pipelines(sources: Sources, facts: SourceFacts) -> SourceFacts:
    try:
        with _answering():
            entries = sources.pipelines.read()
    except TopicUnavailableError as error:
        return replace(facts, pipelines_error=str(error))
    cuts = {} if facts.cut is None else {facts.source: facts.cut}
    known = make_topology(entries, cuts, facts.now_ms)
    return replace(
        facts,
        pipelines=tuple(node for node in known.pipelines if node.source == facts.source),
        others=tuple(node.name for node in known.sources if node.name != facts.source),
    )


def _wrong(sources: Sources) -> str | None:
    """Says how the frontier in Redis contradicts the cut log; None: not at all, as far as can be seen.

    Only a contradiction that lasts counts: while a broker recovers, its log may end earlier for a moment.
    """
    return settled(lambda: _contradiction(sources), lambda found: found is None, sources.clock, sources.pause)


def _contradiction(sources: Sources) -> str | None:
    try:
        held = sources.store.position(sources.topics.source)
        if held is None:
            return None
        log, offset = sources.log, held.log_offset
        with _answering():
            end = log.end()
            # A log without records, or without this offset, contradicts nothing: a broker that has just
            # started may deny its topics, and records may have been deleted.
            if end == 0 or offset < log.begin():
                return None
            found = log.records(offset - 1, limit=1) if offset < end else []
    except MarkerStoreUnavailableError as error:
        if error.fault is StoreFault.CONTENT:
            return str(error)
        raise
    except (TopicUnavailableError, StateError):
        return None
    if [(c.log_offset, c.cut.position) for c in cuts_of(found)] == [(held.log_offset, held.position)]:
        return None
    return (
        f"Redis has a cut at {held.position}, but offset {held.log_offset} of the cut log contains "
        "a different record"
    )
