"""What the sidecars of sources have last said, as every command and the control plane judge it."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta

from slackwater.command.conversion import redis_settings
from slackwater.control import Culprit, SourceSigns, Topology
from slackwater.cuts import FrontierStatus, MarkerStore, MarkerStoreUnavailableError, RedisMarkerStore
from slackwater.settings.model import Settings

_TIMEOUT = timedelta(seconds=3)
"""Redis answers at once, or is away."""


def signs_of(source: str, status: FrontierStatus | None) -> SourceSigns:
    """Returns a source's signs from its status; None: no sidecar has ever reported."""
    if status is None:
        return SourceSigns(source=source)
    return SourceSigns(
        source=source,
        sidecar=status.sidecar,
        state=str(status.state),
        detail=status.detail,
        heard_ms=status.wall_ms,
        connector=status.connector,
    )


def read_signs(store: MarkerStore, sources: Iterable[str]) -> Iterator[SourceSigns]:
    """Yields the signs of sources; those of a Redis that is away say so once, and no more follow."""
    for source in sources:
        try:
            yield signs_of(source, store.status(source))
        except MarkerStoreUnavailableError as error:
            yield SourceSigns(source=source, redis_error=str(error))
            return


def signs_of_topology(settings: Settings, topology: Topology) -> tuple[SourceSigns, ...]:
    """Returns the signs of the sources that somebody reads; nothing if the settings name no Redis."""
    if settings.redis.url is None:
        return ()
    redis = redis_settings(settings, "where sidecars report")
    with closing(RedisMarkerStore.connect(redis.url, password=redis.password, timeout=_TIMEOUT)) as store:
        return tuple(read_signs(store, watched_sources(topology)))


def watched_sources(topology: Topology) -> tuple[str, ...]:
    """Returns the sources that need a sidecar: an output that nobody reads as a source needs none."""
    return tuple(node.name for node in topology.sources if node.read_by or not node.written_by)


def culprit_lines(culprits: Iterable[Culprit]) -> Iterator[str]:
    """Writes who is to blame, why, and what helps."""
    for culprit in culprits:
        yield culprit.evidence
        if culprit.views:
            yield f"  delays  {', '.join(culprit.views)}"
        yield f"  try     {culprit.advice}"
