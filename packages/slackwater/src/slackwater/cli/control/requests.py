"""What the control plane is asked to do, and what it answers: values of its JSON."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec


class DecisionKind(StrEnum):
    """What is decided about a source."""

    SKIP = "skip"
    """Every transaction up to a commit LSN passes, complete or not."""
    NEW_TIMELINE = "new-timeline"
    """Continue where the LSNs went back."""


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decision about a source, as ``slackwater source skip`` and ``new-timeline`` record it."""

    kind: DecisionKind
    to_lsn: str = ""
    """Of a skip: a commit LSN, as PostgreSQL writes it."""
    without_snapshot: bool = False
    """Of a new timeline: although no new snapshot was seen."""
    reason: str = ""
    """Kept with the decision."""
    dry_run: bool = False
    """Only say what it would do."""


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of a lease: it is ended, as ``slackwater lease end`` does."""

    end: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAnswer:
    """What a decision does, or would do."""

    lines: tuple[str, ...]
    """For people."""
    cut_log_offset: int | None
    """Where it is recorded; None: it was not."""


class SwitchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A switch of a pipeline's readers, as ``slackwater revise switch`` makes it."""

    revision: int
    """The revision to be read."""
    schema: str | None = None
    """Of tables in PostgreSQL: where the views of readers are."""
    accept_earlier: bool = False
    """Also to a revision that is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAnswer:
    """What was switched."""

    pipeline: str
    """What is read now, with its revision."""
    commit: str
    """The commit from which on, timeline and LSN."""
    before: str | None
    """What was read before; None: nothing was said about it."""
