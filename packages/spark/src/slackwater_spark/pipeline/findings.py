"""What an examination found, one thing at a time."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    WARNING = "warning"
    """A run begins, and something is perhaps not as it was meant."""
    PROBLEM = "problem"
    """A run would fail, or would wait in vain."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was examined.

    Attributes:
        subject: What, e.g. ``brokers`` or ``table public.invoice``.
        verdict: What it means.
        text: How it is.
        hint: What to do; empty if nothing is.
    """

    subject: str
    verdict: Verdict
    text: str
    hint: str = ""
