"""The readers of a pipeline, and their switches from one revision to another, at one commit."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from slackwater.client.errors import NotVisibleError, StateNotKeptError
from slackwater.client.snapshot import (
    PipelineOutput,
    VisibleCommit,
    newest_common,
    visible,
)
from slackwater.protocol import Clock, CommitPosition, ConfigError, ReaderSwitch, SystemClock, epoch_ms

Views = Mapping[str, str]
"""The name of the topic or table of each view."""


@dataclass(frozen=True, slots=True)
class Switched:
    """What readers saw before and after a switch."""

    before: str | None
    """The pipeline that was read, with its revision; None: this is the first switch."""
    left_at: CommitPosition | None
    """The commit up to which it was read."""
    position: CommitPosition
    """The commit at which readers continue."""


def base_name(pipeline: str) -> str:
    """Returns the name of a pipeline without its revision."""
    return re.sub(r"\.v\d+$", "", pipeline)


def never_switched(pipeline: str) -> ConfigError:
    """Says that nothing says which revision is to be read."""
    return ConfigError(
        f"readers of pipeline {pipeline!r} were never switched to a revision",
        f"switch them once: slackwater revise switch {pipeline} --to 1",
    )


def check_views(before: str, views_before: Collection[str], pipeline: str, views: Collection[str]) -> None:
    """Checks that readers keep all of their views.

    Raises:
        ConfigError: The pipeline lacks a view that readers have.
    """
    missing = sorted(set(views_before) - set(views))
    if missing:
        raise ConfigError(
            f"{pipeline!r} lacks view {missing[0]!r}, which readers of {before!r} have",
            "keep the view in the pipeline for as long as it is read",
        )


def check_not_behind(before: str, seen: VisibleCommit, pipeline: str, found: VisibleCommit) -> None:
    """Checks that a switch does not take readers back in time, given the newest commit of each pipeline.

    Raises:
        ConfigError: The pipelines have different sources.
        NotVisibleError: The new pipeline is behind.
    """
    if seen.source != found.source:
        raise ConfigError(
            f"{before!r} reads source {seen.source!r} and {pipeline!r} reads {found.source!r}",
            "commits of two connectors have no common order; move each reader by hand",
        )
    if found.position < seen.position:
        raise NotVisibleError(
            f"pipeline {pipeline!r} is at {found.position}, but readers are at {seen.position} of "
            f"{before!r}; they were not switched",
            "wait until it has caught up (`slackwater topology`), or accept that readers go back in time",
        )


PASSING = NotVisibleError, StateNotKeptError
"""Errors after which another attempt to switch may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch that is wanted; :meth:`Readers.switch` has the meaning of its fields."""

    base_name: str
    pipeline: str
    revision: int
    views: Views
    accept_earlier: bool
    source: str | None

    def attempt(
        self, before: ReaderSwitch | None, old: PipelineOutput | None, new: PipelineOutput, clock: Clock
    ) -> tuple[Switched, ReaderSwitch | None]:
        """Finds the commit from which on readers read the revision.

        It is the newest commit at which both revisions can be read. Readers that are past it switch at a
        later one. ``before`` is the newest switch, and ``old`` the output that is read now.

        Returns:
            The switch with the record to write, which is None if readers were switched to this already.

        Raises:
            NotVisibleError, StateNotKeptError: A later attempt may succeed.
            ConfigError: The pipeline lacks a view that readers have, or the outputs have different sources.
        """
        if before is not None:
            check_views(before.pipeline, before.views, self.pipeline, self.views)
            if before.pipeline == self.pipeline and before.views == self.views:
                found = new.newest()
                at = before.position if found is None else found.position
                return Switched(self.pipeline, at, at), None
        done, source = self._place(old, () if before is None else [*before.views.values()], new)
        return done, ReaderSwitch(
            base_name=self.base_name,
            pipeline=self.pipeline,
            revision=self.revision,
            source=source,
            timeline=done.position.timeline,
            commit_lsn=done.position.lsn,
            views=dict(self.views),
            switched_ms=epoch_ms(clock.now()),
        )

    def _place(
        self, old: PipelineOutput | None, old_names: Collection[str], new: PipelineOutput
    ) -> tuple[Switched, str]:
        """Returns the commit with the name of the source."""
        found = self._named(visible(new.pipeline, new.newest()))
        if old is None:
            return Switched(None, None, found.position), found.source
        seen = self._named(visible(old.pipeline, old.newest()))
        if not self.accept_earlier or seen.source != found.source:
            check_not_behind(old.pipeline, seen, new.pipeline, found)
        try:
            wanted = {old: list(old_names), new: [*self.views.values()]}
            common = newest_common(wanted, self.source).position
        except StateNotKeptError:
            if not self.accept_earlier:
                raise
            common = seen.position
        return Switched(old.pipeline, seen.position, common), found.source

    def _named(self, found: VisibleCommit) -> VisibleCommit:
        return found if self.source is None else replace(found, source=self.source)


class Readers(ABC):
    """The readers of a pipeline's topics or of its tables in a lake.

    Which revision they read is recorded where the outputs are, and is replaced as a whole: a process that is
    killed during a switch has made it or not. The pipeline is named with or without a revision.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = base_name(pipeline)
        """The name without a revision."""

    @abstractmethod
    def newest_switch(self) -> ReaderSwitch | None:
        """Returns the newest switch to a revision; None: the readers were never switched.

        Raises:
            UnavailableError: The server does not answer.
        """

    @abstractmethod
    def open(self, pipeline: str, views: Collection[str] = ()) -> PipelineOutput:
        """Opens the output of a revision, given its name with the revision.

        ``views`` are those that it has for readers, by the names of their topics or tables; empty: all.
        """

    def open_current(self) -> PipelineOutput:
        """Opens the output that the readers were switched to; read it with ``read_views``.

        It has the views of the switch, also if the revision is one of several pipelines.

        Raises:
            ConfigError: The readers were never switched.
            UnavailableError: The server does not answer.
        """
        found = self.newest_switch()
        if found is None:
            raise never_switched(self.pipeline)
        return self.open(found.pipeline, found.views.values())

    def switch(
        self,
        pipeline: str,
        revision: int,
        views: Views,
        *,
        accept_earlier: bool = False,
        source: str | None = None,
        timeout: timedelta = timedelta(seconds=30),
    ) -> Switched:
        """Switches the readers to a revision, from one commit on.

        It waits until the revision has caught up with the one that is read now, and both have ended a batch
        at one commit. Repeating the call changes nothing. With ``accept_earlier``, it also switches to a
        revision that is behind: readers of a lake then go back to an earlier commit, and readers of topics
        wait until it has caught up. ``source`` is the one to name if the revisions are of two sources that
        follow one database.

        Raises:
            ConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
                source.
            NotVisibleError: The revision was still behind at the end; nothing was changed.
            StateNotKeptError: The revisions have no commit in common at which both ended a batch; nothing was
                changed.
            OvertakenError: Another process switches readers of topics at the same time; nothing was changed.
            UnavailableError: A server does not answer or rejects a request, or another process switched
                readers of a lake at the same time.
            OutcomeUnknownError: It is not known whether the switch was committed; call again.
        """
        wanted = Switch(
            base_name=self.pipeline,
            pipeline=pipeline,
            revision=revision,
            views=views,
            accept_earlier=accept_earlier,
            source=source,
        )
        return self._make(wanted, timeout, SystemClock())

    @abstractmethod
    def _make(self, wanted: Switch, timeout: timedelta, clock: Clock) -> Switched:
        """Makes a switch, see :meth:`switch`."""
