"""Reads several views as of one commit of their source, and waits until a commit is visible in them.

What differs between the places where outputs are kept is behind :class:`PipelineOutput`; which commit several
pipelines are read at is decided here. Batches of all pipelines of a source end at its barriers, so the newest
commit at which all of them can be read is a barrier, or they stand at one commit by chance: both will do.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from slackwater_client.errors import (
    ClientConfigError,
    ClientError,
    NotVisibleError,
    StateNotKeptError,
)
from slackwater_client.finishing import finished
from slackwater_protocol import Clock, CommitPosition, Lease, SystemClock, epoch_ms, from_epoch_ms

_LOOK_SECONDS = 0.05
"""How long is waited before an output is asked again."""

_PAUSE = threading.Event()
"""Never set."""

Key = Mapping[str, Any]
"""Columns of a view's key with their values."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VisibleCommit:
    """The newest commit that is visible in an output."""

    source: str
    """The connector's ``topic.prefix``."""
    position: CommitPosition


class ReadLevel(StrEnum):
    """What views of several pipelines may show together; those of one pipeline are always of one commit."""

    UNCOMMITTED = "uncommitted"
    """The newest state of each pipeline, each at a commit of its own."""
    COMMITTED = "committed"
    """The newest consistent snapshot: one commit, at which all of the pipelines can be read."""
    REPEATABLE = "repeatable"
    """The commit of a lease: the same one whenever it is read, and all that belongs to it is still there."""


@dataclass(frozen=True, slots=True)
class ReadableStates:
    """The commits at which an output can be read, as of now."""

    newest: VisibleCommit
    published_at: datetime
    """When the newest one became visible."""
    ends: Sequence[CommitPosition] = ()
    """Earlier ones at which batches ended, ascending."""
    every_from: CommitPosition | None = None
    """Every commit from here on; None: only those at which batches ended."""

    def at_or_below(self, position: CommitPosition) -> CommitPosition | None:
        """Returns the newest of them up to a commit; None if there is none."""
        if position >= self.newest.position:
            return self.newest.position
        if self.every_from is not None and self.every_from <= position:
            return position
        place = bisect_right(self.ends, position)
        return self.ends[place - 1] if place else None

    @property
    def oldest(self) -> CommitPosition:
        """The oldest of them."""
        known = [each for each in (self.every_from, *self.ends[:1]) if each is not None]
        return min([*known, self.newest.position])


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """Views as of one commit: each row's document is as the pipeline has published it."""

    source: str
    position: CommitPosition
    """The views hold everything that was committed up to here; if it is consistent, nothing else."""
    documents: Mapping[str, Sequence[bytes]]
    """JSON objects by view, in no particular order."""
    positions: Mapping[str, CommitPosition] = field(default_factory=dict)
    """The commit of each view; empty: all are of :attr:`position`."""

    @property
    def is_consistent(self) -> bool:
        """Says whether all views are of one commit."""
        return len({self.position, *self.positions.values()}) == 1


class PipelineOutput(Protocol):
    """The output of one pipeline. Not thread-safe."""

    @property
    def pipeline(self) -> str:
        """Its name, as it stands in the output."""
        ...

    def views(self) -> Sequence[str]:
        """Returns the names by which its views can be read.

        Raises:
            ClientConfigError: No pipeline of that name has written here.
            ClientUnavailableError: The server does not answer.
        """
        ...

    def newest(self) -> VisibleCommit | None:
        """Returns the newest visible commit; None: nothing is visible yet. Raises like :meth:`views`."""
        ...

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """Returns at which commits views can be read; None: nothing is visible yet.

        Raises like :meth:`views`. Another moment has other answers: :meth:`read` may refuse what was possible
        a moment before.
        """
        ...

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """Reads views as of a commit.

        Args:
            views: Some of :meth:`views`.
            at: The commit; None: the newest one.
            key: Only documents of this key, in views that have such a key.

        Raises:
            NotVisibleError: The commit is not visible yet.
            StateNotKeptError: The state at that commit cannot be told from what is kept.
            ClientUnavailableError: The server does not answer.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class OfOneSource:
    """A :class:`PipelineOutput` that names another source, whose commits its own source has, too.

    So are pipelines of a chain: whatever was built over revisions of an output has the commits of the
    database at the beginning.

    Args:
        output: What is read; it is closed with this.
        source: The name.
    """

    def __init__(self, output: PipelineOutput, source: str) -> None:
        self._output, self._source = output, source

    @property
    def pipeline(self) -> str:
        """See the protocol."""
        return self._output.pipeline

    def views(self) -> Sequence[str]:
        """See the protocol."""
        return self._output.views()

    def newest(self) -> VisibleCommit | None:
        """See the protocol."""
        found = self._output.newest()
        return None if found is None else replace(found, source=self._source)

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """See the protocol."""
        found = self._output.states(views)
        return found and replace(found, newest=replace(found.newest, source=self._source))

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """See the protocol."""
        return replace(self._output.read(views, at, key), source=self._source)

    def close(self) -> None:
        """See the protocol."""
        self._output.close()


def read_views(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    at: CommitPosition | Lease | None = None,
    level: ReadLevel = ReadLevel.COMMITTED,
    key: Key | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> ViewSnapshot:
    """Reads views of one or several pipelines of one source, all as of the same commit.

    Without a commit that is the newest one at which all of the pipelines can be read. Pipelines that publish
    batches (``emit = "latest"``) can be read where recent batches ended; all of them end one at each barrier
    of the source. One that is slow or stopped holds up only reads that ask for its views.

    Args:
        outputs: One per pipeline.
        views: Names of views, or output topics; none: all views of all outputs.
        at: The commit; or a lease, as ``take_lease`` returns it, whose commit it is.
        level: What is asked for when no commit is given; with a lease it is ``repeatable`` in any case.
        key: Only documents of this key.
        timeout: How long a common commit is looked for.
        clock: For the deadline.

    Raises:
        ClientConfigError: A view is unknown, or in several of the outputs; the outputs are of several
            sources; or commit, level and lease do not go together.
        NotVisibleError: The commit is not visible yet in one of them, or nothing is.
        StateNotKeptError: The state at that commit cannot be told; the lease is over; or there was no common
            commit in time: then it says which pipeline is behind.
        ClientUnavailableError: A server does not answer.
    """
    return repeated(_Look(outputs, views, _commit_to_read(at, level, clock), level, key), timeout, clock)


async def read_views_async(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    at: CommitPosition | Lease | None = None,
    level: ReadLevel = ReadLevel.COMMITTED,
    key: Key | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> ViewSnapshot:
    """Does what :func:`read_views` does, without blocking the event loop.

    Outputs are asked in a thread. When it is cancelled, it ends as soon as a question that has begun is
    answered: then nobody uses the outputs any more.
    """
    return await _repeated_async(
        _Look(outputs, views, _commit_to_read(at, level, clock), level, key), timeout, clock
    )


def wait_visible(
    outputs: Sequence[PipelineOutput],
    at: CommitPosition,
    *,
    timeout: timedelta,
    clock: Clock | None = None,
) -> CommitPosition:
    """Waits until everything up to a commit is visible in all outputs; returns what is visible then.

    A client that has just committed takes the LSN from ``pg_current_wal_lsn()``. It lies at or behind the end
    of its commit, so a later commit may have to arrive before the answer is yes; where the database can be
    idle, a connector with ``heartbeat.action.query`` sees to it.

    Args:
        outputs: One per pipeline.
        at: The commit.
        timeout: How long to wait; zero: only look.
        clock: For the deadline.

    Raises:
        NotVisibleError: It was not visible in time; says what was.
        ClientConfigError: No pipeline of that name has written here, or the outputs are of several sources.
        ClientUnavailableError: A server does not answer.
    """
    return repeated(partial(_look_for_commit, outputs, at), timeout, clock)


async def wait_visible_async(
    outputs: Sequence[PipelineOutput],
    at: CommitPosition,
    *,
    timeout: timedelta,
    clock: Clock | None = None,
) -> CommitPosition:
    """Does what :func:`wait_visible` does, without blocking the event loop, as :func:`read_views_async`."""
    return await _repeated_async(partial(_look_for_commit, outputs, at), timeout, clock)


def not_visible(at: CommitPosition | None, pipeline: str, newest: VisibleCommit | None) -> NotVisibleError:
    """Says how far a pipeline is."""
    stands = "nothing is visible yet" if newest is None else f"the newest visible commit is {newest.position}"
    what = "" if at is None else f" and commit {at} is asked for"
    return NotVisibleError(
        f"pipeline {pipeline!r}: {stands}{what}",
        "if nothing was committed since, there is nothing behind it to wait for; else `slackwater status` "
        "says whether the sidecar or the pipeline holds it up",
    )


def _commit_to_read(
    at: CommitPosition | Lease | None, level: ReadLevel, clock: Clock | None
) -> CommitPosition | None:
    """Returns the commit that is asked for; None: one that is to be found.

    Raises:
        ClientConfigError: Commit and level do not go together.
        StateNotKeptError: The lease is over.
    """
    if at is not None and level is ReadLevel.UNCOMMITTED:
        hint = "leave one of the two out: at this level each view is of a commit of its own"
        asked = at.position if isinstance(at, Lease) else at
        raise ClientConfigError(f"commit {asked} is asked for at level {level}", hint)
    if not isinstance(at, Lease):
        if level is ReadLevel.REPEATABLE:
            raise ClientConfigError(f"level {level} is asked for without a lease", "take one: `take_lease`")
        return at
    if at.expires_ms <= epoch_ms((clock or SystemClock()).now()):
        raise StateNotKeptError(
            f"lease {at.id} ended at {from_epoch_ms(at.expires_ms):%Y-%m-%d %H:%M:%S} UTC",
            "take another one, for longer; or renew it before its end",
        )
    return at.position


class _Look:
    """Reads views once; returns the error if another look may find them at one commit.

    For arguments see :func:`read_views`.
    """

    def __init__(
        self,
        outputs: Sequence[PipelineOutput],
        views: Sequence[str],
        at: CommitPosition | None,
        level: ReadLevel,
        key: Key | None,
    ) -> None:
        self._outputs, self._views, self._at = outputs, views, at
        self._level, self._key = level, key

    def __call__(self) -> ViewSnapshot | StateNotKeptError:
        wanted = views_by_output(self._outputs, self._views)
        if self._at is not None or len(wanted) == 1 or self._level is ReadLevel.UNCOMMITTED:
            return self._read(wanted, self._at)
        try:
            return self._read(wanted, newest_common(wanted)[1])
        except StateNotKeptError as error:
            return error

    def _read(
        self, wanted: Mapping[PipelineOutput, Sequence[str]], at: CommitPosition | None
    ) -> ViewSnapshot:
        return _joined([each.read(names, at, self._key) for each, names in wanted.items()])


def _look_for_commit(
    outputs: Sequence[PipelineOutput], at: CommitPosition
) -> CommitPosition | NotVisibleError:
    """Returns what is visible in all outputs, or says which one is behind."""
    newest = [each.newest() for each in outputs]
    _check_source([seen.source for seen in newest if seen is not None])
    for each, seen in zip(outputs, newest, strict=True):
        if seen is None or seen.position < at:
            return not_visible(at, each.pipeline, seen)
    return min(seen.position for seen in newest if seen is not None)


def repeated(look: Callable[[], T | ClientError], timeout: timedelta, clock: Clock | None) -> T:
    """Looks until something is found, at least once; raises in the end what the last look returned.

    Args:
        look: Returns the error if another look may find something.
        timeout: How long to look.
        clock: For the deadline.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while isinstance(found := look(), ClientError):
        if clock.monotonic() >= deadline:
            raise found
        _PAUSE.wait(_LOOK_SECONDS)
    return found


async def _repeated_async(look: Callable[[], T | ClientError], timeout: timedelta, clock: Clock | None) -> T:
    """Does what :func:`repeated` does; each look is in a thread, and goes on to its end."""
    loop = asyncio.get_running_loop()
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while isinstance(found := await finished(loop.run_in_executor(None, look)), ClientError):
        if clock.monotonic() >= deadline:
            raise found
        await asyncio.sleep(_LOOK_SECONDS)
    return found


def views_by_output(
    outputs: Sequence[PipelineOutput], views: Sequence[str]
) -> dict[PipelineOutput, Sequence[str]]:
    """Returns which views are wanted of each output; all if none is named.

    Raises:
        ClientConfigError: A view is in none of the outputs, or in several.
    """
    found: dict[PipelineOutput, Sequence[str]] = {}
    known = {each: list(each.views()) for each in outputs}
    if not views:
        return {each: names for each, names in known.items() if names}
    for view in dict.fromkeys(views):
        holders = [each for each, names in known.items() if view in names]
        if len(holders) != 1:
            pipelines = ", ".join(repr(each.pipeline) for each in holders or outputs)
            problem = "in several pipelines" if holders else "in none"
            hint = f"their views are {', '.join(name for names in known.values() for name in names)}"
            raise ClientConfigError(f"view {view!r} is {problem} of {pipelines}", hint)
        found[holders[0]] = [*found.get(holders[0], ()), view]
    return found


def newest_common(wanted: Mapping[PipelineOutput, Sequence[str]]) -> tuple[str, CommitPosition]:
    """Returns the source of all outputs, and its newest commit at which their views can be read.

    Raises:
        ClientConfigError: The outputs are of several sources.
        NotVisibleError: Nothing is visible yet in one of them.
        StateNotKeptError: There is none; says which pipeline is behind.
    """
    found: list[tuple[str, ReadableStates]] = []
    for each, names in wanted.items():
        states = each.states(names)
        if states is None:
            raise not_visible(None, each.pipeline, None)
        found.append((each.pipeline, states))
    _check_source([states.newest.source for _, states in found])
    position = common_position([states for _, states in found])
    if position is None:
        raise _nothing_in_common(found)
    return found[0][1].newest.source, position


def common_position(outputs: Sequence[ReadableStates]) -> CommitPosition | None:
    """Returns the newest commit at which all of some outputs can be read; None if there is none."""
    position = min(states.newest.position for states in outputs)
    while True:
        below = [states.at_or_below(position) for states in outputs]
        known = [each for each in below if each is not None]
        if len(known) < len(below):
            return None
        if min(known) == position:
            return position
        position = min(known)


def _nothing_in_common(found: Sequence[tuple[str, ReadableStates]]) -> StateNotKeptError:
    """Says which pipeline is behind, how far and since when."""
    (behind, stands), *others = sorted(found, key=lambda each: each[1].newest.position)
    ahead = ", ".join(
        f"{name!r} can be read from {states.oldest} to {states.newest.position}" for name, states in others
    )
    return StateNotKeptError(
        f"there is no commit at which all of the pipelines can be read: {behind!r} is behind, at "
        f"{stands.newest.position} since {stands.published_at:%Y-%m-%d %H:%M:%S} UTC; {ahead}",
        f"see to {behind!r} (`slackwater status`), or read each at its own commit (level `uncommitted`). "
        "How long outputs keep their states for one that is behind say `kafka.keep`, `history = true`, and "
        "`keep` of a lake",
    )


def _joined(parts: Sequence[ViewSnapshot]) -> ViewSnapshot:
    _check_source([part.source for part in parts])
    return ViewSnapshot(
        parts[0].source,
        min(part.position for part in parts),
        {view: found for part in parts for view, found in part.documents.items()},
        {view: part.position for part in parts for view in part.documents},
    )


def _check_source(sources: Sequence[str]) -> None:
    if len(set(sources)) > 1:
        raise ClientConfigError(
            f"the pipelines are of several sources: {', '.join(sorted(set(sources)))}",
            "commits of different databases have no common order: read each by itself",
        )
