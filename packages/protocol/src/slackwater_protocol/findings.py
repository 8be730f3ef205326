"""The findings of an examination, each about one thing."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    WARNING = "warning"
    """A run begins, but something may not be as intended."""
    PROBLEM = "problem"
    """A run would fail, or would wait forever."""
    FAULT = "fault"
    """Values would be wrong, or rows would be missing: whatever reads the source refuses it."""

    @property
    def is_problem(self) -> bool:
        """Says whether somebody has to do something before a run can begin."""
        return self in (Verdict.PROBLEM, Verdict.FAULT)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: What was checked, e.g. ``brokers`` or ``table public.invoice``.
        verdict: What the finding means for a run.
        text: What was found.
        hint: What to do; empty if there is nothing to do.
    """

    subject: str
    verdict: Verdict
    text: str
    hint: str = ""
