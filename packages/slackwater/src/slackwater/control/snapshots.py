"""What readers can rely on: the commits at which pipelines can be read together, and leases that keep one."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slackwater.control.topology import PipelineNode, PipelineState, SourceNode, Topology
from slackwater.protocol import CommitPosition, Hold, Lease, LeaseRecord, format_position, parse_position


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierStanding:
    """How far a pipeline has come, counted in barriers of its source."""

    pipeline: str
    state: PipelineState
    views: tuple[str, ...]
    processed: str | None
    """The newest barrier up to which its views are computed; None: it has reached none that is known."""
    committed: str | None
    """The newest barrier that its views show. It is durable, too: progress and state are written with it, and
    the next run continues from there, however this one ends."""
    is_waited_for: bool
    """Whether others show a newer barrier than it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """The barriers of a source, and the newest one at which all pipelines that derive from it can be read."""

    source: str
    timeline: int
    newest_barrier: str
    """The newest one that is known."""
    snapshot: str | None
    """The newest barrier that all pipelines show; None: one of them shows none that is known."""
    pipelines: tuple[BarrierStanding, ...]
    """Those that publish whole commits, by name."""


def find_snapshots(
    topology: Topology, barriers: Mapping[str, Sequence[CommitPosition]]
) -> tuple[SourceSnapshot, ...]:
    """Finds the newest consistent snapshot of each source that no pipeline writes, chains included.

    A pipeline that was stopped counts as well as one that runs: its views are read, too. The barriers are the
    newest ones of each source, ascending; sources without are left out.
    """
    known = {each.name for each in topology.pipelines}
    first = [node for node in topology.sources if known.isdisjoint(node.written_by)]
    return tuple(
        _snapshot(node, topology.of_source(node.name), barriers[node.name])
        for node in first
        if barriers.get(node.name)
    )


def _snapshot(source: SourceNode, topology: Topology, barriers: Sequence[CommitPosition]) -> SourceSnapshot:
    newest = barriers[-1]
    of_order = [p for p in topology.pipelines if source.name == p.source or p.timeline == newest.timeline]
    whole = [each for each in of_order if each.scope == "strict"]
    shown = {each.name: _newest_at(barriers, _shown(each)) for each in whole}
    reached = [lsn for lsn in shown.values() if lsn is not None]
    common = min(reached) if reached and len(reached) == len(whole) else None
    ahead = max(reached, default=None)
    return SourceSnapshot(
        source=source.name,
        timeline=newest.timeline,
        newest_barrier=format_position(newest.lsn),
        snapshot=None if common is None else format_position(common.lsn),
        pipelines=tuple(
            BarrierStanding(
                pipeline=each.name,
                state=each.state,
                views=tuple(view.name for view in each.views),
                processed=_text(_newest_at(barriers, _computed(each)) or shown[each.name]),
                committed=_text(shown[each.name]),
                is_waited_for=ahead is not None and (shown[each.name] or CommitPosition(0, 0)) < ahead,
            )
            for each in whole
        ),
    )


def _shown(pipeline: PipelineNode) -> CommitPosition | None:
    batch = pipeline.batch
    return None if batch is None else CommitPosition(batch.timeline, parse_position(batch.commit_lsn))


def _computed(pipeline: PipelineNode) -> CommitPosition | None:
    lsn = pipeline.processed_lsn
    return None if lsn is None else CommitPosition(pipeline.timeline, parse_position(lsn))


def _newest_at(barriers: Sequence[CommitPosition], reached: CommitPosition | None) -> CommitPosition | None:
    """Returns the newest barrier up to a commit."""
    place = 0 if reached is None else bisect_right(barriers, reached)
    return barriers[place - 1] if place else None


def _text(barrier: CommitPosition | None) -> str | None:
    return None if barrier is None else format_position(barrier.lsn)


class LeaseState(StrEnum):
    """The state of a lease."""

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
    """A lease, with the answers of its pipelines."""

    lease: Lease
    state: LeaseState
    waits_for: tuple[str, ...]
    """The pipelines that have not answered, or not to its present end."""
    refusals: Mapping[str, str]
    """The reason of each pipeline that refuses it."""


def is_over(lease: Lease, now_ms: int) -> bool:
    """Returns whether the time of a lease is over."""
    return lease.expires_ms <= now_ms


def lease_standings(records: Iterable[LeaseRecord], now_ms: int) -> list[LeaseStanding]:
    """Returns the state of each lease of a topic, in the order in which they end."""
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
