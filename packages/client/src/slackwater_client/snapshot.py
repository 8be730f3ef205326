"""Reads several views as of one commit of their source, and waits until a commit is visible in them.

What differs between the places where outputs are kept is behind :class:`PipelineOutput`; which commit several
pipelines are read at is decided here.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from slackwater_client.errors import (
    ClientConfigError,
    ClientError,
    ClientStateError,
    NotVisibleError,
    StateNotKeptError,
)
from slackwater_client.finishing import finished
from slackwater_protocol import Clock, CommitPosition, SystemClock

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


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """Views as of one commit: each row's document is as the pipeline has published it."""

    source: str
    position: CommitPosition
    """The views hold everything that was committed up to here, and nothing else."""
    documents: Mapping[str, Sequence[bytes]]
    """JSON objects by view, in no particular order."""


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


def read_views(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    at: CommitPosition | None = None,
    key: Key | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> ViewSnapshot:
    """Reads views of one or several pipelines of one source, all as of the same commit.

    Without a commit that is the newest one at which all of the pipelines can be read. Pipelines that publish
    batches (``emit = "latest"``) can be read where their newest batches end, so several of them are tried
    until they stand at one commit.

    Args:
        outputs: One per pipeline.
        views: Names of views, or output topics; none: all views of all outputs.
        at: The commit.
        key: Only documents of this key.
        timeout: How long a common commit is looked for.
        clock: For the deadline.

    Raises:
        ClientConfigError: A view is unknown, or in several of the outputs; or the outputs are of several
            sources.
        NotVisibleError: The commit is not visible yet in one of them, or nothing is.
        StateNotKeptError: The state at that commit cannot be told, or there was no common commit in time.
        ClientUnavailableError: A server does not answer.
    """
    return _repeated(partial(_look_at_views, outputs, views, at, key), timeout, clock)


async def read_views_async(
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    at: CommitPosition | None = None,
    key: Key | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> ViewSnapshot:
    """Does what :func:`read_views` does, without blocking the event loop.

    Outputs are asked in a thread. When it is cancelled, it ends as soon as a question that has begun is
    answered: then nobody uses the outputs any more.
    """
    return await _repeated_async(partial(_look_at_views, outputs, views, at, key), timeout, clock)


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
    return _repeated(partial(_look_for_commit, outputs, at), timeout, clock)


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


def _look_at_views(
    outputs: Sequence[PipelineOutput], views: Sequence[str], at: CommitPosition | None, key: Key | None
) -> ViewSnapshot | StateNotKeptError:
    """Reads views; returns the error if another look may find them at one commit."""
    wanted = _by_output(outputs, views)
    is_alone = at is not None or len(wanted) == 1
    try:
        target = at if is_alone else _common(list(wanted))
        return _joined([each.read(names, target, key) for each, names in wanted.items()])
    except StateNotKeptError as error:
        if is_alone:
            raise
        return error


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


def _repeated(look: Callable[[], T | ClientError], timeout: timedelta, clock: Clock | None) -> T:
    """Looks until something is found, at least once; raises in the end what the last look returned."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while isinstance(found := look(), ClientError):
        if clock.monotonic() >= deadline:
            raise found
        _PAUSE.wait(_LOOK_SECONDS)
    return found


async def _repeated_async(look: Callable[[], T | ClientError], timeout: timedelta, clock: Clock | None) -> T:
    """Does what :func:`_repeated` does; each look is in a thread, and goes on to its end."""
    loop = asyncio.get_running_loop()
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout.total_seconds()
    while isinstance(found := await finished(loop.run_in_executor(None, look)), ClientError):
        if clock.monotonic() >= deadline:
            raise found
        await asyncio.sleep(_LOOK_SECONDS)
    return found


def _by_output(
    outputs: Sequence[PipelineOutput], views: Sequence[str]
) -> dict[PipelineOutput, Sequence[str]]:
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


def _common(outputs: Sequence[PipelineOutput]) -> CommitPosition:
    newest = []
    for each in outputs:
        seen = each.newest()
        if seen is None:
            raise not_visible(None, each.pipeline, None)
        newest.append(seen)
    _check_source([seen.source for seen in newest])
    return min(seen.position for seen in newest)


def _joined(parts: Sequence[ViewSnapshot]) -> ViewSnapshot:
    _check_source([part.source for part in parts])
    if len({part.position for part in parts}) != 1:
        raise ClientStateError(
            "outputs were read at different commits", "report this as an error of Slackwater"
        )
    documents = {view: found for part in parts for view, found in part.documents.items()}
    return ViewSnapshot(parts[0].source, parts[0].position, documents)


def _check_source(sources: Sequence[str]) -> None:
    if len(set(sources)) > 1:
        raise ClientConfigError(
            f"the pipelines are of several sources: {', '.join(sorted(set(sources)))}",
            "commits of different databases have no common order: read each by itself",
        )
