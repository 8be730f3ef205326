"""The texts of ``slackwater source``."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from slackwater.decisions import Decision, SkipPlan, TimelinePlan
from slackwater.output import aligned
from slackwater_markers import FrontierStatus, PipelineStatus
from slackwater_protocol import PassDecision, PublishedCut, SkipDecision, format_lsn
from slackwater_sidecar import describe_open


def show_lines(
    source: str, newest: PublishedCut | None, status: FrontierStatus | None, decided: Sequence[Decision]
) -> Iterator[str]:
    """What the log holds of a source."""
    rows = [("source", source)]
    if status is not None:
        detail = f": {status.detail}" if status.detail else ""
        rows.append(("state", f"{status.state}{detail}"))
    if newest is None:
        rows.append(("newest cut", "none yet"))
    else:
        cut = newest.cut
        rows.append(("newest cut", f"{format_lsn(cut.lsn)} on timeline {cut.timeline}"))
        rows.append(("in the cut log", f"at offset {newest.log_offset}"))
    yield from aligned(rows)
    if not decided:
        yield "decisions: none"
        return
    yield ""
    table = [("decided", "by", "what", "reason")]
    yield from aligned(table + [(_time(d.wall_ms), d.decided_by, _what(d), d.reason or "-") for d in decided])


def skip_lines(source: str, plan: SkipPlan) -> Iterator[str]:
    """What would be let pass."""
    yield f"source {source}, timeline {plan.timeline}: up to commit {format_lsn(plan.to_lsn)} would pass"
    for transaction in plan.passed:
        yield f"  {describe_open(transaction)}"
    yield "What was not read of these transactions will be missing from every pipeline."


def timeline_lines(source: str, plan: TimelinePlan) -> Iterator[str]:
    """Where the new timeline would begin."""
    found = plan.regression
    yield f"source {source}: timeline {plan.timeline} would begin where LSNs went back"
    what = f"transaction {found.xid}" if found.xid else "an initial snapshot"
    yield f"  {what} at {format_lsn(found.commit_lsn)}, after {format_lsn(found.newest_lsn)}"
    yield f"  offset {found.transaction_offset} of the transaction topic; data topics from the newest cut"
    seen = "a new snapshot was seen behind it" if found.has_snapshot else "NO new snapshot was seen behind it"
    yield f"  {seen}"


def pipeline_lines(source: str, timeline: int, pipelines: Sequence[PipelineStatus]) -> Iterator[str]:
    """What has to be done with the pipelines of a source."""
    yield f"Pipelines of {source} end at the last cut of the old timeline. For each of them:"
    yield "  1. stop it"
    yield f"  2. set timeline = {timeline} in slackwater.toml (or SLACKWATER_TIMELINE={timeline})"
    yield "  3. start it with a new --checkpoint, and a new output topic (a new revision) if readers must"
    yield "     not see documents of the old database until they are replaced"
    names = sorted(p.name for p in pipelines if p.source == source)
    yield f"Registered: {', '.join(names) or 'none'}"


def _what(decision: Decision) -> str:
    if isinstance(decision, SkipDecision):
        return f"skip to {format_lsn(decision.to_lsn)} on timeline {decision.timeline}"
    if isinstance(decision, PassDecision):
        return f"read on past offset {decision.log_offset} of the cut log"
    return f"begin timeline {decision.timeline} at transaction offset {decision.transaction_offset}"


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
