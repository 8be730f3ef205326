"""The newest reports of sidecars, as all commands and the control plane judge them."""

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

from slackwater.command.invocation import redis_settings
from slackwater.control import DelayCause, SourceSigns, Topology, sidecar_absence
from slackwater.cuts import FrontierStatus, MarkerStore, MarkerStoreUnavailableError, RedisMarkerStore
from slackwater.protocol import Clock, SystemClock, epoch_ms
from slackwater.settings.model import Settings

_SETTLES_WITHIN = timedelta(seconds=3)
"""A sidecar reports every second, also to a Redis that has just started empty."""
_LOOK_AGAIN_SECONDS = 0.2
ANSWERS_WITHIN = timedelta(seconds=4)
"""How long commands that show health wait for Kafka and Redis, and all commands for PostgreSQL.

A server that was silent for this time is not asked again for the same picture, so the fault is named within
ten seconds, even if both are silent.
"""

T = TypeVar("T")


def settled(
    look: Callable[[], T], is_settled: Callable[[T], bool], clock: Clock, pause: Callable[[float], object]
) -> T:
    """Looks until what is seen is settled, or for three seconds; returns what was seen last."""
    deadline = clock.monotonic() + _SETTLES_WITHIN.total_seconds()
    while not is_settled(found := look()) and clock.monotonic() < deadline:
        pause(_LOOK_AGAIN_SECONDS)
    return found


def reported_status(store: MarkerStore, source: str) -> FrontierStatus | None:
    """Returns the newest report of a source's sidecar; None if there is none within three seconds.

    A restarted Redis is empty until the next report of a sidecar, and one that was silent has an old report.
    The sidecar is not at fault.

    Raises:
        MarkerStoreUnavailableError: the store is away.
    """
    clock = SystemClock()

    def is_settled(said: FrontierStatus | None) -> bool:
        return not sidecar_absence(SourceSigns(source=source, status=said), epoch_ms(clock.now()))

    return settled(lambda: store.status(source), is_settled, clock, threading.Event().wait)


def read_signs(
    store: MarkerStore, sources: Iterable[str], silent: Container[str] = ()
) -> Iterator[SourceSigns]:
    """Yields the signs of sources. If Redis is away, the signs of one source say so, and no more follow.

    Args:
        store: Where to ask.
        sources: The sources that sidecars follow.
        silent: Sources that are not waited for, because their sidecars were absent the last time.
    """
    for source in sources:
        try:
            status = store.status(source) if source in silent else reported_status(store, source)
            yield SourceSigns(source=source, status=status)
        except MarkerStoreUnavailableError as error:
            yield SourceSigns(source=source, redis_error=str(error))
            return


def signs_of_topology(
    settings: Settings, topology: Topology, before: Iterable[SourceSigns] = ()
) -> tuple[SourceSigns, ...]:
    """Returns the signs of the sources that somebody reads; nothing if the settings name no Redis.

    Args:
        settings: Say where Redis is.
        topology: Has the sources.
        before: What this returned last, for repeated callers: servers that were silent are not waited for.
    """
    if settings.redis.url is None:
        return ()
    now_ms = epoch_ms(SystemClock().now())
    silent = {each.source for each in before if not each.redis_error and sidecar_absence(each, now_ms)}
    redis = redis_settings(settings, "where sidecars report")
    with closing(
        RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWERS_WITHIN)
    ) as store:
        return tuple(read_signs(store, watched_sources(topology), silent))


def watched_sources(topology: Topology) -> tuple[str, ...]:
    """Returns the sources that need a sidecar: an output that nobody reads as a source needs none."""
    return tuple(node.name for node in topology.sources if node.read_by or not node.written_by)


def cause_lines(causes: Iterable[DelayCause]) -> Iterator[str]:
    """Writes each cause with its evidence and a remedy."""
    for cause in causes:
        yield cause.evidence
        if cause.views:
            yield f"  delays  {', '.join(cause.views)}"
        yield f"  try     {cause.advice}"
