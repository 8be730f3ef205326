"""Collects the facts about a source from Redis and Kafka."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.doctor.facts import EndFacts, Place, PlaceFacts, SourceFacts
from slackwater.doctor.kafka import KafkaProbe
from slackwater.errors import ServerUnreachableError
from slackwater_markers import (
    CutLog,
    CutLogError,
    CutLogUnavailableError,
    MarkerStore,
    MarkerStoreContentError,
    MarkerStoreUnavailableError,
    cuts_of,
)
from slackwater_protocol import Clock, Cut, Evidence, OpenTransaction, SourceTopics

_SIDECAR_SECONDS = 3.0
"""A sidecar reports every second: positions older than Kafka's ends must not look like a slow sidecar."""
_LOOK_AGAIN_SECONDS = 0.2
_MANY_PLACES = 1_000
"""Partitions of which the last rows are read."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where facts come from."""

    topics: SourceTopics
    evidence: Mapping[str, Evidence]
    store: MarkerStore
    log: CutLog
    probe: Callable[[], KafkaProbe]
    clock: Clock
    tables: frozenset[str] = frozenset()
    """Those that the settings name; empty: all are followed."""


def examine(sources: Sources) -> SourceFacts:
    """All that can be learnt of a source now; what cannot be asked is noted, not raised. Takes seconds."""
    now_ms = int(sources.clock.now().timestamp() * 1000)
    facts = SourceFacts(
        topics=sources.topics, evidence=sources.evidence, tables=sources.tables, now_ms=now_ms
    )
    try:
        with sources.probe() as probe:
            seen = probe.look()
            facts = replace(
                facts,
                data_topics=seen.data_topics,
                places=seen.places,
                transactions=seen.transactions,
            )
            facts = _with_redis(sources, facts)
            facts = replace(facts, newest_end=newest_end(seen.ends, facts.cut))
            return _with_tails(probe, facts)
    except ServerUnreachableError as error:
        return replace(_with_redis(sources, facts), kafka_error=str(error))


def newest_end(ends: Sequence[EndFacts], cut: Cut | None) -> EndFacts | None:
    """The newest END of the cut's timeline: what stands before the cut's last END may be of an earlier one.

    The connector repeats ENDs behind newer ones, so the largest LSN counts.
    """
    behind = [end for end in ends if cut is None or end.offset >= cut.transaction_offset - 1]
    return max(behind or ends[-1:], key=lambda end: end.commit_lsn, default=None)


def _with_redis(sources: Sources, facts: SourceFacts) -> SourceFacts:
    """Adds what the sidecar says; waits until it speaks of now, or a little."""
    deadline = sources.clock.monotonic() + _SIDECAR_SECONDS
    pause = threading.Event()
    while True:
        try:
            facts = replace(facts, status=sources.store.status(facts.source), open=_open(sources))
        except MarkerStoreContentError as error:
            return _with_cut(sources, replace(facts, redis_wrong=str(error)))
        except MarkerStoreUnavailableError as error:
            return _with_cut(sources, replace(facts, redis_error=str(error)))
        if sources.clock.monotonic() >= deadline or not _lags(facts):
            return _with_cut(sources, replace(facts, redis_wrong=_wrong(sources)))
        pause.wait(_LOOK_AGAIN_SECONDS)


def _open(sources: Sources) -> tuple[OpenTransaction, ...]:
    return tuple(sources.store.open(sources.topics.source))


def _lags(facts: SourceFacts) -> bool:
    """Whether the sidecar's positions are below the readable ends."""
    positions = _positions(facts)
    return any(positions[p] < facts.places[p].stable_end for p in positions.keys() & facts.places.keys())


def _positions(facts: SourceFacts) -> dict[Place, int]:
    result = {}
    for transaction in facts.open:
        for name, (_, position) in transaction.places.items():
            topic, _, number = name.rpartition("/")
            result[topic, int(number)] = position
    return result


def _with_tails(probe: KafkaProbe, facts: SourceFacts) -> SourceFacts:
    """Adds the last rows of the places of open transactions, and looks again whether anything hangs."""
    places: Mapping[Place, PlaceFacts] = {
        place: facts.places[place] for place in sorted(_positions(facts)) if place in facts.places
    }
    looked_at = probe.still_hanging(dict(list(places.items())[:_MANY_PLACES]))
    transactions = facts.transactions
    if transactions is not None and transactions.hangs:
        place = (facts.topics.transactions, 0)
        transactions = probe.still_hanging({place: transactions})[place]
    return replace(
        facts,
        places={**facts.places, **probe.with_newest_rows(looked_at)},
        transactions=transactions,
    )


def _with_cut(sources: Sources, facts: SourceFacts) -> SourceFacts:
    try:
        published = sources.log.newest()
    except CutLogUnavailableError:
        return facts
    except CutLogError as error:
        return replace(facts, cut_log_error=str(error))
    return replace(facts, cut=published.cut if published else None)


def _wrong(sources: Sources) -> str | None:
    """What the frontier in Redis says that the cut log does not; None: nothing, as far as can be seen."""
    try:
        held = sources.store.position(sources.topics.source)
        if held is None:
            return None
        log, offset = sources.log, held.log_offset
        found = log.records(offset - 1, limit=1) if offset < log.end() else []
    except MarkerStoreContentError as error:
        return str(error)
    except (MarkerStoreUnavailableError, CutLogError):
        return None
    if [(c.log_offset, c.cut.position) for c in cuts_of(found)] == [(held.log_offset, held.position)]:
        return None
    return (
        f"Redis names a cut at {held.position}, but offset {held.log_offset} of the cut log is not that cut"
    )
