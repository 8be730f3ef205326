"""Cut log and Redis as a process sees them: they may be away, and the process may die while it writes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slackwater.cuts import FrontierStatus, MarkerStoreUnavailableError, TopicUnavailableError
from slackwater.protocol import CommitPosition, Cut, LogRecord, Marker, PublishedCut
from slackwater_lab.simulator.oracle import ViolationError
from slackwater_lab.simulator.world import World


class KilledError(Exception):
    """The process is gone."""


class ProcessLog:
    """The cut log of one process; everything not named here is handed through."""

    def __init__(self, world: World, countdown: Callable[[], None]) -> None:
        self._world = world
        self._countdown = countdown

    def append(self, cuts: Sequence[Cut]) -> list[PublishedCut]:
        """Judges the cuts and appends them; the process may die before, between and after."""
        self._countdown()
        world = self._world
        if world.is_log_away and world.rng.random() < 0.5:
            self._answer("append")
        published: list[PublishedCut] = []
        for cut in cuts:
            world.judge_cut(cut)
            published += world.log.append([cut])
            world.logged[published[-1].log_offset] = published[-1]
            self._countdown()
        self._answer("append")
        return published

    def append_records(self, records: Sequence[LogRecord]) -> list[int]:
        """Judges the records and appends them; the process may die before and after."""
        self._countdown()
        world = self._world
        if world.is_log_away and world.rng.random() < 0.5:
            self._answer("append")
        for record in records:
            world.judge_record(record)
        offsets = world.log.append_records(records)
        self._countdown()
        self._answer("append")
        return offsets

    def __getattr__(self, name: str) -> Any:
        self._answer(name)
        return getattr(self._world.log, name)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, operation: str) -> None:
        if self._world.is_log_away:
            raise TopicUnavailableError(operation, "cuts", "away")


class ProcessStore:
    """Redis of one process; everything not named here is handed through."""

    def __init__(self, world: World, countdown: Callable[[], None]) -> None:
        self._world = world
        self._countdown = countdown
        self._log_id = ""

    def bind(self, log_id: str) -> None:
        """Binds the connection to a log; it remembers that, whatever happens to the content."""
        self._log_id = log_id

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """Puts a cut that is in the log; the process may die before and after."""
        self._countdown()
        self._answer("put_cut")
        world = self._world
        if world.logged.get(cut.log_offset) != cut:
            raise ViolationError("G5", f"the cut at {cut.cut.lsn} is in Redis, but not in the cut log")
        result = world.store.put_cut(cut, status)
        self._countdown()
        return result

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        """Judges the markers and sets them; the process may die before."""
        self._countdown()
        self._answer("set_markers")
        self._world.judge_markers(position.timeline, markers)
        return self._world.store.set_markers(source, position, markers)

    def __getattr__(self, name: str) -> Any:
        self._answer(name)
        return getattr(self._world.store, name)

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, operation: str) -> None:
        if self._world.is_redis_away:
            raise MarkerStoreUnavailableError(operation, "simulated", "away")
        self._world.store.bind(self._log_id)
