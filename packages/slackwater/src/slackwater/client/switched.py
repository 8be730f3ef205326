"""What all switches of readers have in common: the checks, the commit, and the result."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.client.errors import NotVisibleError, StateNotKeptError
from slackwater.client.snapshot import OfOneSource, PipelineOutput, newest_common, not_visible
from slackwater.protocol import CommitPosition, ConfigError


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


def check_not_behind(
    before: str, seen: tuple[str, CommitPosition], pipeline: str, found: tuple[str, CommitPosition]
) -> None:
    """Checks that a switch does not take readers back in time, given source and commit of each pipeline.

    Raises:
        ConfigError: The pipelines have different sources.
        NotVisibleError: The new pipeline is behind.
    """
    if seen[0] != found[0]:
        raise ConfigError(
            f"{before!r} reads source {seen[0]!r} and {pipeline!r} reads {found[0]!r}",
            "commits of two connectors have no common order; move each reader by hand",
        )
    if found[1] < seen[1]:
        raise NotVisibleError(
            f"pipeline {pipeline!r} is at {found[1]}, but readers are at {seen[1]} of {before!r}; they were "
            "not switched",
            "wait until it has caught up (`slackwater topology`), or accept that readers go back in time",
        )


def place_of_switch(
    old: PipelineOutput | None,
    old_names: Collection[str],
    new: PipelineOutput,
    names: Collection[str],
    *,
    accept_earlier: bool,
    source: str | None,
) -> tuple[Switched, str] | NotVisibleError | StateNotKeptError:
    """Finds the commit from which on readers read another revision.

    It is the newest commit at which both revisions can be read. Readers that are past it switch at a later
    one.

    Args:
        old: The output that is read now; None: no output yet.
        old_names: The names of its views.
        new: The output to read from now on.
        names: The names of its views.
        accept_earlier: Whether the new output may be behind.
        source: Overrides the source of both outputs; None: their own sources.

    Returns:
        The switch with the name of the source, or the error if a later attempt may succeed.

    Raises:
        ConfigError: The outputs have different sources.
    """
    if source is not None:
        new = OfOneSource(new, source)
        old = None if old is None else OfOneSource(old, source)
    found = new.newest()
    if found is None:
        return not_visible(None, new.pipeline, None)
    if old is None:
        return Switched(None, None, found.position), found.source
    seen = old.newest()
    if seen is None:
        return not_visible(None, old.pipeline, None)
    here, there = (seen.source, seen.position), (found.source, found.position)
    try:
        if not accept_earlier or seen.source != found.source:
            check_not_behind(old.pipeline, here, new.pipeline, there)
        _, common = newest_common({old: list(old_names), new: list(names)})
    except NotVisibleError as error:
        return error
    except StateNotKeptError as error:
        if not accept_earlier:
            return error
        common = seen.position
    return Switched(old.pipeline, seen.position, common), found.source


Views = Mapping[str, str]
"""The name of the topic or table of each view."""
