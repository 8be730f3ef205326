"""Reads several views as of one commit of their source, and waits until a commit is visible in them."""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from slackwater.client.errors import NotVisibleError, StateNotKeptError
from slackwater.client.finishing import finished
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    Lease,
    ProgressRecord,
    SlackwaterError,
    SystemClock,
    epoch_ms,
    from_epoch_ms,
    visible_progress,
)

_LOOK_SECONDS = 0.05
"""How long to wait before an output is read again."""

_PAUSE = threading.Event()
"""Never set."""

Key = Mapping[str, Any]
"""Columns of a view's key with their values."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VisibleCommit:
    """The newest commit that is visible in an output."""

    source: str
    """The ``topic.prefix`` of the connector at the beginning of the chain; if an earlier version has written
    last, that of the source which the pipeline reads."""
    position: CommitPosition


def visible_commit(progress: ProgressRecord | None) -> VisibleCommit | None:
    """Returns the commit of a pipeline's progress; None if nothing is visible yet."""
    visible = visible_progress(progress)
    if visible is None:
        return None
    source = visible.root or visible.source
    return VisibleCommit(source, CommitPosition(visible.timeline, visible.commit_lsn))


class ReadLevel(StrEnum):
    """Which states of several pipelines may be read together; views of one pipeline share one commit."""

    UNCOMMITTED = "uncommitted"
    """The newest state of each pipeline, each at its own commit."""
    COMMITTED = "committed"
    """The newest consistent snapshot: one commit, at which all of the pipelines can be read."""
    REPEATABLE = "repeatable"
    """The commit of a lease: every read sees the same commit, and its complete state is still there."""


@dataclass(frozen=True, slots=True)
class ReadableStates:
    """The commits at which an output can be read at the moment."""

    newest: VisibleCommit
    published_at: datetime
    """When the newest one became visible."""
    ends: Sequence[CommitPosition] = ()
    """Earlier commits at which batches ended, ascending."""
    every_from: CommitPosition | None = None
    """Every commit from this one on can be read; None: only those at which batches ended."""

    def at_or_below(self, position: CommitPosition) -> CommitPosition | None:
        """Returns the newest readable commit up to a given one; None if there is none."""
        if position >= self.newest.position:
            return self.newest.position
        if self.every_from is not None and self.every_from <= position:
            return position
        place = bisect_right(self.ends, position)
        return self.ends[place - 1] if place else None

    @property
    def oldest(self) -> CommitPosition:
        """The oldest readable commit."""
        known = [each for each in (self.every_from, *self.ends[:1]) if each is not None]
        return min([*known, self.newest.position])


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """Views as of one commit, with their documents as the pipeline has published them."""

    source: str
    position: CommitPosition
    """The views contain everything that was committed up to here, and nothing else if they are consistent."""
    documents: Mapping[str, Sequence[bytes]]
    """JSON objects by view, in no particular order."""
    positions: Mapping[str, CommitPosition] = field(default_factory=dict)
    """The commit of each view; empty: all views are at :attr:`position`."""
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The columns of the keys of views that have not the key that was asked for, as far as that is known."""

    @property
    def is_consistent(self) -> bool:
        """Returns whether all views are at one commit."""
        return len({self.position, *self.positions.values()}) == 1


@dataclass(frozen=True, slots=True)
class TypedRows:
    """The rows of a view as of a commit, as its output has them, for a program that evaluates SQL."""

    source: str
    """That of :class:`VisibleCommit`."""
    types: Mapping[str, str] = field(default_factory=dict)
    """PostgreSQL's type of each column of the documents, where ``jsonb`` is text; empty: of JSON values."""
    documents: Iterable[bytes] = ()
    """JSON objects, in no particular order; to be iterated before the output is used again."""
    table: Any = None
    """An Arrow table in place of documents; None: there are documents."""


class PipelineOutput(Protocol):
    """The output of one pipeline. Not thread-safe."""

    pipeline: str
    """The pipeline's name in the output."""

    def views(self) -> Sequence[str]:
        """Returns the names by which its views can be read.

        Raises:
            ConfigError: No pipeline with this name has written here.
            UnavailableError: The server does not answer.
        """

    def newest(self) -> VisibleCommit | None:
        """Returns the newest visible commit; None: nothing is visible yet. Raises like :meth:`views`."""

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        """Returns the commits at which views can be read; None: nothing is visible yet.

        Raises like :meth:`views`. The answer may be outdated immediately, so :meth:`read` may still refuse
        one of these commits.
        """

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        """Reads views, as named by :meth:`views`, as of a commit, or of the newest one.

        With a key, only documents with this key are returned, in views that have such a key.

        Raises:
            NotVisibleError: The commit is not visible yet.
            StateNotKeptError: The output does not keep enough to reconstruct the state at that commit.
            UnavailableError: The server does not answer.
        """

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        """Reads a view with its types, as of a commit. Raises like :meth:`read`, also while it is iterated.

        See :class:`TypedRows`.
        """

    def close(self) -> None:
        """Frees connections."""


@runtime_checkable
class KnowsLeases(Protocol):
    """An output in the cluster in which leases are kept."""

    def has_lease(self, lease: Lease) -> bool:
        """Returns whether nobody has ended a lease.

        Raises:
            UnavailableError: The server does not answer, or the user may not read leases.
        """


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
    """Reads views of one or several pipelines of one source or chain, all as of the same commit.

    By default, this is the newest commit at which all of the pipelines can be read. Pipelines that publish
    batches (``emit = "latest"``) can be read at the ends of recent batches, and all of them end a batch at
    each barrier of the source. A pipeline that is slow or stopped delays only reads of its own views.

    Args:
        outputs: One per pipeline.
        views: Names of views, or output topics; empty: all views of all outputs.
        at: The commit to read at, or a lease that ``take_lease`` returned, which stands for its commit.
        level: The read level if no commit is given. With a lease, it is always ``repeatable``.
        key: Return only documents with this key.
        timeout: How long to look for a common commit.
        clock: Measures the deadline.

    Raises:
        ConfigError: A view is unknown, or exists in several of the outputs; the outputs have different
            sources; or commit, level and lease contradict each other.
        NotVisibleError: The commit, or any commit at all, is not visible yet in one of the outputs.
        StateNotKeptError: The state at that commit is no longer kept; the lease is over; or no common
            commit was found in time, in which case the error names the pipeline that is behind.
        UnavailableError: A server does not answer.
    """
    return repeated(_reading(outputs, views, at, level, key, clock), timeout, clock)


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

    A thread reads the outputs. If the call is cancelled, it still waits for a read that has begun, so that
    the outputs are no longer in use when it ends.
    """
    return await _repeated_async(_reading(outputs, views, at, level, key, clock), timeout, clock)


def wait_visible(
    outputs: Sequence[PipelineOutput],
    at: CommitPosition,
    *,
    timeout: timedelta,
    clock: Clock | None = None,
) -> CommitPosition:
    """Waits until everything up to a commit is visible in all outputs; returns the newest visible commit.

    A client that has just committed gets the LSN from ``pg_current_wal_lsn()``. This LSN is at or after the
    end of its commit, so the wait needs a later commit. In a database that may be idle, write one afterwards:
    ``SELECT pg_logical_emit_message(true, 'slackwater', '')`` is a transaction without rows. The outputs are
    one per pipeline. With a ``timeout`` of zero, it checks once.

    Raises:
        NotVisibleError: The commit was not visible in time; the error says which commit was.
        ConfigError: No pipeline with this name has written here, or the outputs have different sources.
        UnavailableError: A server does not answer.
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


def visible(pipeline: str, newest: VisibleCommit | None, at: CommitPosition | None = None) -> VisibleCommit:
    """Returns the newest commit of a pipeline.

    Raises:
        NotVisibleError: There is none, or it is before a given one.
    """
    if newest is None or (at is not None and at > newest.position):
        raise not_visible(at, pipeline, newest)
    return newest


def not_visible(at: CommitPosition | None, pipeline: str, newest: VisibleCommit | None) -> NotVisibleError:
    """Returns the error that says how far a pipeline is."""
    progress = (
        "nothing is visible yet" if newest is None else f"the newest visible commit is {newest.position}"
    )
    what = "" if at is None else f", but commit {at} was requested"
    return NotVisibleError(
        f"pipeline {pipeline!r}: {progress}{what}",
        "`slackwater status` shows whether the sidecar or the pipeline is late; if nothing was committed "
        "after that position, a later commit has to arrive first",
    )


def _reading(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str],
    at: CommitPosition | Lease | None,
    level: ReadLevel,
    key: Key | None,
    clock: Clock | None,
) -> Callable[[], ViewSnapshot | StateNotKeptError]:
    """Returns what reads views once, with a lease that has been checked."""
    position = commit_to_read(outputs, at, level, clock)
    sources = [(f"lease {at.id}", at.source)] if isinstance(at, Lease) else []
    return partial(_read_once, outputs, views, position, level, key, sources)


def commit_to_read(
    outputs: Sequence[PipelineOutput],
    at: CommitPosition | Lease | None,
    level: ReadLevel,
    clock: Clock | None,
) -> CommitPosition | None:
    """Returns the requested commit; None: one has to be found. Raises like :func:`read_views`."""
    if at is not None and level is ReadLevel.UNCOMMITTED:
        hint = "leave out one of the two: at this level each pipeline is read at its own commit"
        asked = at.position if isinstance(at, Lease) else at
        raise ConfigError(f"commit {asked} was requested at level {level}", hint)
    if not isinstance(at, Lease):
        if level is ReadLevel.REPEATABLE:
            raise ConfigError(f"level {level} was requested without a lease", "take one with `take_lease`")
        return at
    if at.expires_ms <= epoch_ms((clock or SystemClock()).now()):
        raise StateNotKeptError(
            f"lease {at.id} ended at {from_epoch_ms(at.expires_ms):%Y-%m-%d %H:%M:%S} UTC",
            "take a new one for longer, or renew the next one before it expires",
        )
    if not all(each.has_lease(at) for each in outputs if isinstance(each, KnowsLeases)):
        raise StateNotKeptError(f"lease {at.id} was ended", "take a new one")
    return at.position


def _read_once(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str],
    at: CommitPosition | None,
    level: ReadLevel,
    key: Key | None,
    sources: Sequence[tuple[str, str]],
) -> ViewSnapshot | StateNotKeptError:
    """Reads views, or returns the error if a later attempt may find them at one commit."""
    wanted = views_by_output(outputs, views)
    is_searched = at is None and len(wanted) > 1 and level is not ReadLevel.UNCOMMITTED
    try:
        at = newest_common(wanted).position if is_searched else at
        parts = [(each.pipeline, each.read(names, at, key)) for each, names in wanted.items()]
    except StateNotKeptError as error:
        if not is_searched:
            raise
        return error
    check_source([*sources, *((pipeline, part.source) for pipeline, part in parts)])
    found = _joined([part for _, part in parts])
    if key and found.keys.keys() == found.documents.keys():
        raise _no_such_key(key, found.keys)
    return found


def _no_such_key(key: Key, keys: Mapping[str, Sequence[str]]) -> ConfigError:
    """Returns the error for a key that no view has."""
    close = [
        match
        for column in key
        for match in get_close_matches(column, {name for names in keys.values() for name in names}, 1)
    ]
    meant = f"did you mean {' and '.join(close)}? " if close else ""
    known = "; ".join(f"the key of {view} is {', '.join(columns)}" for view, columns in keys.items())
    return ConfigError(f"no view that was read has the key {', '.join(key)}", f"{meant}{known}")


def _look_for_commit(
    outputs: Sequence[PipelineOutput], at: CommitPosition
) -> CommitPosition | NotVisibleError:
    """Returns the commit that is visible in all outputs, or the error that names the one that is behind."""
    newest = [each.newest() for each in outputs]
    shown = list(zip(outputs, newest, strict=True))
    check_source([(each.pipeline, seen.source) for each, seen in shown if seen is not None])
    for each, seen in shown:
        if seen is None or seen.position < at:
            return not_visible(at, each.pipeline, seen)
    return min(seen.position for seen in newest if seen is not None)


def repeated(
    look: Callable[[], T | SlackwaterError],
    timeout: timedelta,
    clock: Clock | None,
    passing: tuple[type[SlackwaterError], ...] = (),
) -> T:
    """Repeats an attempt while it returns an error, or raises one that may pass; finally raises the last."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while True:
        found: T | SlackwaterError
        try:
            found = look()
        except passing as error:
            found = error
        if not isinstance(found, SlackwaterError):
            return found
        if clock.monotonic() >= deadline:
            raise found
        _PAUSE.wait(_LOOK_SECONDS)


async def _repeated_async(
    look: Callable[[], T | SlackwaterError], timeout: timedelta, clock: Clock | None
) -> T:
    """Does what :func:`repeated` does; each attempt runs to its end in a thread."""
    loop = asyncio.get_running_loop()
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while isinstance(found := await finished(loop.run_in_executor(None, look)), SlackwaterError):
        if clock.monotonic() >= deadline:
            raise found
        await asyncio.sleep(_LOOK_SECONDS)
    return found


def views_by_output(
    outputs: Sequence[PipelineOutput], views: Sequence[str]
) -> dict[PipelineOutput, Sequence[str]]:
    """Returns the views to read from each output; all views if none is named.

    Raises:
        ConfigError: A view exists in none of the outputs, or in several.
        NotVisibleError: No view is named, and one of the outputs has none yet.
    """
    found: dict[PipelineOutput, Sequence[str]] = {}
    known = {each: list(each.views()) for each in outputs}
    if not views:
        for each in (each for each, names in known.items() if not names):
            raise not_visible(None, each.pipeline, None)
        return dict(known)
    for view in dict.fromkeys(views):
        holders = [each for each, names in known.items() if view in names]
        if len(holders) != 1:
            pipelines = ", ".join(repr(each.pipeline) for each in holders or outputs)
            problem = "more than one" if holders else "none"
            hint = f"their views are {', '.join(name for names in known.values() for name in names)}"
            raise ConfigError(f"view {view!r} exists in {problem} of {pipelines}", hint)
        found[holders[0]] = [*found.get(holders[0], ()), view]
    return found


def newest_common(wanted: Mapping[PipelineOutput, Sequence[str]], source: str | None = None) -> VisibleCommit:
    """Returns the newest commit of the source of all outputs at which their views can be read.

    The source is given for outputs of several sources that follow one database, and is the one that is named.

    Raises:
        ConfigError: The outputs have different sources.
        NotVisibleError: Nothing is visible yet in one of the outputs.
        StateNotKeptError: There is no such commit; the error names the pipeline that is behind.
    """
    found: list[tuple[str, ReadableStates]] = []
    for each, names in wanted.items():
        states = each.states(names)
        if states is None:
            raise not_visible(None, each.pipeline, None)
        found.append((each.pipeline, states))
    if source is None:
        check_source([(pipeline, states.newest.source) for pipeline, states in found])
    position = common_position([states for _, states in found])
    if position is None:
        raise _nothing_in_common(found)
    return VisibleCommit(source or found[0][1].newest.source, position)


def common_position(outputs: Sequence[ReadableStates]) -> CommitPosition | None:
    """Returns the newest commit at which all of the outputs can be read; None if there is none."""
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
    """Returns the error that says which pipeline is behind, how far and since when."""
    (behind, newest), *others = sorted(found, key=lambda each: each[1].newest.position)
    ahead = ", ".join(
        f"{name!r} can be read from {states.oldest} to {states.newest.position}" for name, states in others
    )
    return StateNotKeptError(
        f"there is no commit at which all of the pipelines can be read: {behind!r} is behind, at "
        f"{newest.newest.position} since {newest.published_at:%Y-%m-%d %H:%M:%S} UTC; {ahead}",
        f"find out why {behind!r} is behind (`slackwater status`), or read each pipeline at its own commit "
        "(level `uncommitted`). `kafka.keep`, `history = true`, and `keep` of a lake determine how long "
        "outputs keep earlier states",
    )


def _joined(parts: Sequence[ViewSnapshot]) -> ViewSnapshot:
    return ViewSnapshot(
        parts[0].source,
        min(part.position for part in parts),
        {view: found for part in parts for view, found in part.documents.items()},
        {view: part.position for part in parts for view in part.documents},
        {view: columns for part in parts for view, columns in part.keys.items()},
    )


def check_source(sources: Sequence[tuple[str, str]]) -> None:
    """Refuses pipelines whose commits are not those of one source, given the source of each.

    Raises:
        ConfigError: There are several sources.
    """
    if len({source for _, source in sources}) > 1:
        shown = ", ".join(f"{name} of {source}" for name, source in sorted(sources))
        raise ConfigError(
            f"these are commits of different sources: {shown}",
            "commits of different databases have no common order; read the pipelines separately. Outputs of "
            "one chain name its database once each of their pipelines was started with this version, after "
            "the one whose output it reads, at the same timeline",
        )
