"""Collects the facts about a source from Redis and Kafka."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from slackwater.cli.doctor.facts import EndFacts, PartitionFacts, PartitionId, SourceFacts
from slackwater.cli.doctor.kafka import KafkaProbe
from slackwater.cli.signs import ANSWERS_WITHIN, settled
from slackwater.command.conversion import redis_settings
from slackwater.control import make_topology
from slackwater.cuts import (
    CompactedTopicUnavailableError,
    CutLog,
    CutLogUnavailableError,
    KafkaCutLog,
    KafkaPipelineLog,
    MarkerStore,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
    PipelineLog,
    RedisMarkerStore,
    cuts_of,
)
from slackwater.kafka.retry import is_silence
from slackwater.protocol import (
    Clock,
    Cut,
    Evidence,
    SourceTopics,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater.settings.errors import unreachable
from slackwater.settings.model import Settings

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

    followed = sidecar_settings(settings, source)
    kafka, topics = followed.servers.kafka, followed.source_topics
    store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWERS_WITHIN)
    log = KafkaCutLog(source, kafka.bootstrap, kafka=kafka.options, timeout=ANSWERS_WITHIN)
    pipelines = KafkaPipelineLog(kafka.bootstrap, kafka=kafka.options, timeout=ANSWERS_WITHIN)
    try:
        yield Sources(
            topics=topics,
            evidence=followed.evidence,
            tables=followed.tables or frozenset(),
            store=store,
            log=log,
            pipelines=pipelines,
            probe=lambda: KafkaProbe(kafka, topics, _data_topics(topics, followed.tables)),
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
    now_ms = epoch_ms(sources.clock.now())
    facts = SourceFacts(
        topics=sources.topics, evidence=sources.evidence, tables=sources.tables, now_ms=now_ms
    )
    facts = _with_status(sources, facts)
    try:
        with sources.probe() as probe:
            facts = _with_cut(sources, facts)
            seen = probe.ask(_named_topics(facts))
            facts = replace(
                facts,
                data_topics=seen.data_topics,
                partitions=seen.partitions,
                transactions=seen.transactions,
            )
            facts = _with_cut(sources, _compared(sources, _with_news(sources, facts)))
            facts = replace(facts, newest_end=newest_end(seen.ends, facts.cut))
            return _with_tails(probe, _with_pipelines(sources, facts))
    except UnavailableError as error:
        return _with_news(sources, replace(facts, kafka_error=str(error)))


def _named_topics(facts: SourceFacts) -> frozenset[str]:
    """Returns the topics that the sidecar names: those of tables with dots in their names look like none."""
    counted = (table for transaction in facts.open for table in transaction.expected)
    return frozenset(facts.cut.end_offsets if facts.cut else ()).union(map(facts.topics.data, counted))


def newest_end(ends: Sequence[EndFacts], cut: Cut | None) -> EndFacts | None:
    """Finds the newest END of the cut's timeline; an END before the cut's last one may be of an earlier one.

    The connector repeats ENDs behind newer ones, so the largest LSN counts.
    """
    behind = [end for end in ends if cut is None or end.offset >= cut.transaction_offset - 1]
    return max(behind or ends[-1:], key=lambda end: end.commit_lsn, default=None)


def _with_status(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Adds what the sidecar has said last."""
    store, source = sources.store, facts.source
    try:
        return replace(facts, status=store.status(source), open=tuple(store.open(source)))
    except MarkerStoreContentError as error:
        return replace(facts, redis_wrong=str(error))
    except MarkerStoreUnavailableError as error:
        return replace(facts, redis_error=str(error))


def _with_news(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Asks the sidecar until it speaks of now, for a while: old positions and an empty Redis show nothing."""
    if not _is_outdated(facts):
        return facts
    look = partial(_with_status, sources, facts)
    return settled(look, lambda now: not _is_outdated(now), sources.clock, sources.pause)


def _compared(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Adds what Redis holds against the cut log."""
    if facts.redis_error is not None or facts.redis_wrong is not None:
        return facts
    try:
        return replace(facts, redis_wrong=_wrong(sources))
    except MarkerStoreUnavailableError as error:
        return replace(facts, redis_error=str(error))


def _is_outdated(facts: SourceFacts) -> bool:
    """Says if the sidecar may soon report, or positions that are not below the readable ends."""
    if facts.redis_error is not None or facts.redis_wrong is not None:
        return False
    if facts.status is None or facts.kafka_error is not None:
        return facts.status is None
    positions = _positions(facts)
    return any(
        positions[p] < facts.partitions[p].stable_end for p in positions.keys() & facts.partitions.keys()
    )


def _positions(facts: SourceFacts) -> dict[PartitionId, int]:
    result = {}
    for transaction in facts.open:
        for name, (_, position) in transaction.places.items():
            topic, _, number = name.rpartition("/")
            result[topic, int(number)] = position
    return result


def _with_tails(probe: KafkaProbe, facts: SourceFacts) -> SourceFacts:
    """Adds the last rows of the partitions of open transactions, and looks again whether anything hangs."""
    partitions: Mapping[PartitionId, PartitionFacts] = {
        partition: facts.partitions[partition]
        for partition in sorted(_positions(facts))
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
    except (CutLogUnavailableError, CompactedTopicUnavailableError) as error:
        if is_silence(error):
            raise unreachable("Kafka", f"{error.operation} of topic {error.topic}", error.reason) from error
        raise


def _with_cut(sources: Sources, facts: SourceFacts) -> SourceFacts:
    try:
        with _answering():
            published = sources.log.newest()
    except CutLogUnavailableError:
        return facts
    except StateError as error:
        return replace(facts, cut_log_error=str(error))
    return replace(facts, cut=published.cut if published else None)


def _with_pipelines(sources: Sources, facts: SourceFacts) -> SourceFacts:
    try:
        with _answering():
            entries = sources.pipelines.read()
    except CompactedTopicUnavailableError as error:
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
    except MarkerStoreContentError as error:
        return str(error)
    except (CutLogUnavailableError, StateError):
        return None
    if [(c.log_offset, c.cut.position) for c in cuts_of(found)] == [(held.log_offset, held.position)]:
        return None
    return (
        f"Redis has a cut at {held.position}, but offset {held.log_offset} of the cut log contains "
        "a different record"
    )


def _data_topics(topics: SourceTopics, tables: frozenset[str] | None) -> Callable[[str], bool]:
    """Says which topics hold rows: those of the tables, or everything named like one."""
    if tables is not None:
        return frozenset(map(topics.data, tables)).__contains__
    others = {topics.transactions, topics.notifications, cut_log_topic(topics.source)}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(topics.source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic in routed or (topic not in others and named(topic) is not None)
