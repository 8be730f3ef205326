"""What is known of leases from their topic: who needs which commit, and whether pipelines keep it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slackwater.protocol import Hold, Lease, LeaseRecord


class LeaseState(StrEnum):
    """What becomes of a lease."""

    TAKEN = "taken"
    """Not all of its pipelines have answered."""
    HELD = "held"
    """All of them keep their views readable at its commit."""
    REFUSED = "refused"
    """One of them does not."""
    OVER = "over"
    """Its time is over."""


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """A lease, with what its pipelines say to it."""

    lease: Lease
    state: LeaseState
    waits_for: tuple[str, ...]
    """The pipelines that have not answered, or not to its present end."""
    refusals: Mapping[str, str]
    """The reason of each pipeline that refuses it."""


def is_over(lease: Lease, now_ms: int) -> bool:
    """Says whether the time of a lease is over."""
    return lease.expires_ms <= now_ms


def lease_standings(records: Iterable[LeaseRecord], now_ms: int) -> list[LeaseStanding]:
    """Returns the state of each lease of a topic, in the order in which they end.

    Args:
        records: Of the topic of leases, in any order.
        now_ms: The time, milliseconds since the epoch.
    """
    records = list(records)
    holds = {(each.lease, each.pipeline): each for each in records if isinstance(each, Hold)}
    leases = [each for each in records if isinstance(each, Lease)]
    return [_standing(each, holds, now_ms) for each in sorted(leases, key=lambda lease: lease.expires_ms)]


def _standing(lease: Lease, holds: Mapping[tuple[str, str], Hold], now_ms: int) -> LeaseStanding:
    answers = {name: holds.get((lease.id, name)) for name in lease.pipelines}
    refusals = {name: hold.refusal for name, hold in answers.items() if hold is not None and hold.refusal}
    waits_for = tuple(
        name for name, hold in answers.items() if hold is None or hold.until_ms < lease.expires_ms
    )
    if is_over(lease, now_ms):
        state = LeaseState.OVER
    elif refusals:
        state = LeaseState.REFUSED
    else:
        state = LeaseState.TAKEN if waits_for else LeaseState.HELD
    return LeaseStanding(lease, state, waits_for, refusals)
