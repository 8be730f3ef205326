"""Describes the state of a source, and why its frontier moves or not, for people, programs and the log."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from slackwater.cdc import Frontier
from slackwater.cdc.commits import Regression
from slackwater.cdc.completeness import WAITS_FOR_OTHERS
from slackwater.cdc.initial_snapshot import FIRST_SNAPSHOT_HINT, SNAPSHOT_HINT
from slackwater.cuts import FrontierState, RegressionNotice
from slackwater.protocol import (
    SNAPSHOT_XID,
    ConnectorReport,
    OpenTransaction,
    Refusal,
    SkipDecision,
    TimelineDecision,
    format_position,
)
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_LISTED = 100
_NAMED = 5
_MANY_STALE = 100_000
"""Commits below the frontier, one after the other: fewer are repeats of a connector that started again."""
_FINE = frozenset({FrontierState.RUNNING, FrontierState.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStatus:
    """Describes a sidecar at one moment."""

    source: str
    timeline: int
    state: FrontierState
    detail: str
    """What a person needs to know beyond the state; empty when all is well."""
    lsn: int
    """Commit LSN of the frontier; 0 before the first cut."""
    event_count: int
    """Change events at or below the frontier."""
    records_read: int
    """Records read from Kafka since the start of the process."""
    records_per_second: float
    """Since the status before."""
    delay_ms: int | None
    """Wall clock minus commit time of the newest cut; None before the first cut."""
    open: tuple[OpenTransaction, ...]
    """Transactions that have been incomplete for long, next first."""
    redis_error: str | None
    """Why Redis is not up to date; None when it is, or when there is none."""
    kafka_error: str | None = None
    """Why Kafka cannot be read, or the cut log not be written; None when all is well."""
    partitions_read: int = 0
    partitions_paused: int = 0
    queued_transactions: int = 0
    obstacles: int = 0
    stale_ends: int = 0
    held_back_offsets: int = 0


class OpenTransactions:
    """Remembers since when the frontier has been waiting for a transaction.

    How long goes by the monotonic clock: a wall clock that is set back must not keep anything from being
    named.
    """

    def __init__(self, open_after: timedelta) -> None:
        self._open_after_seconds = open_after.total_seconds()
        self._since: dict[int, tuple[float, int]] = {}

    def update(self, frontier: Frontier, now_seconds: float, wall_ms: int) -> list[OpenTransaction]:
        """Returns those that have been waited for long enough to be named, as of now by both clocks.

        Complete ones that only wait for an earlier one are left out: naming them would hide that one.
        """
        waiting = frontier.open_transactions(_LISTED)
        self._since = {t.xid: self._since.get(t.xid, (now_seconds, wall_ms)) for t in waiting}
        return [
            replace(t, since_ms=self._since[t.xid][1])
            for t in waiting
            if now_seconds - self._since[t.xid][0] >= self._open_after_seconds
            and (t is waiting[0] or t.hint != WAITS_FOR_OTHERS)
        ]


def state_of(
    settings: SidecarSettings, frontier: Frontier, topics: Sequence[str], open_: Sequence[OpenTransaction]
) -> tuple[FrontierState, str]:
    """Returns the state of a source and what a person needs to know beyond it."""
    if frontier.regression is not None:
        return FrontierState.REGRESSED, _describe_regression(settings.source, frontier.regression)
    obstacles = frontier.obstacles
    if obstacles:
        more = f" (and {len(obstacles) - 1} more)" if len(obstacles) > 1 else ""
        wrong = obstacles[0].is_misconfiguration
        state = FrontierState.MISCONFIGURED if wrong else FrontierState.BAD_INPUT
        return state, f"{obstacles[0]}{more}; no cut goes past it"
    if frontier.missing_snapshot:
        detail = f"the source has had no snapshot: {frontier.missing_snapshot}; nothing of it is shown: "
        state = FrontierState.WAITING if frontier.is_in_snapshot else FrontierState.MISCONFIGURED
        return state, detail + FIRST_SNAPSHOT_HINT
    if not topics:
        named = (
            f"{settings.source}.<schema>.<table>"
            if settings.tables is None
            else ", ".join(sorted(settings.tables))
        )
        return FrontierState.WAITING, f"no topic found for {named} at {settings.servers.kafka.bootstrap}"
    missing = frontier.missing_tables()
    if missing:
        hint = (
            "topics are created with the first change; list the tables to follow in order to exclude others"
        )
        return FrontierState.WAITING, f"no topic found for {', '.join(missing)} ({hint})"
    if open_ and open_[0].xid == 0:
        return FrontierState.WAITING, describe_open(open_[0])
    if open_:
        return FrontierState.STALLED, describe_open(open_[0])
    if frontier.without_snapshot:
        return FrontierState.RUNNING, _describe_missing(frontier.without_snapshot)
    if frontier.stale_end_count > _MANY_STALE:
        count, lsn = frontier.stale_end_count, format_position(frontier.lsn)
        detail = f"the last {count} commits were at or below {lsn}: repeats, or LSNs that went back"
        return FrontierState.RUNNING, detail
    return FrontierState.RUNNING, ""


def regression_notice(frontier: Frontier) -> RegressionNotice | None:
    """Returns where the LSNs of a source went back, as it is published; None while they rise."""
    found = frontier.regression
    return None if found is None else RegressionNotice(**asdict(found))


def _describe_missing(without_snapshot: Mapping[str, str]) -> str:
    lacking = "; ".join(f"{topic}: {reason}" for topic, reason in sorted(without_snapshot.items())[:_NAMED])
    more = f" (and {len(without_snapshot) - _NAMED} more topics)" if len(without_snapshot) > _NAMED else ""
    return f"{lacking}{more}; pipelines that read this are refused: {SNAPSHOT_HINT}"


def _describe_regression(source: str, found: Regression) -> str:
    what = f"transaction {found.xid}" if found.xid else "an initial snapshot"
    return (
        f"LSNs went back: {what} at {format_position(found.commit_lsn)} after "
        f"{format_position(found.newest_lsn)}, "
        "as after a failover, a restore or with another database behind the connector; no cut goes past it. "
        f"`slackwater source new-timeline --source {source}` continues from there and shows what to "
        "do with pipelines"
    )


class FaultHold:
    """Returns whether a connector's faults forbid cuts: those of now, and those that were seen before.

    What was committed since the last check without a fault may have been written with it, whichever sidecar
    saw it: the source stays refused until an operator says that the values are right, or begins a new
    timeline.
    Only a fault that was gone before anything was read leaves nothing behind.

    A fault that was seen may have been there until the first look that finds none, so all that the
    transaction topic holds at that look may be wrong, read or not. An operator's decision counts once this is
    known.

    Commits up to ``sound_lsn`` were published already. Where no looks are expected (``sees_connector``), an
    operator's decision counts at once.
    """

    def __init__(self, source: str, timeline: int, sound_lsn: int, *, sees_connector: bool = False) -> None:
        self._source = source
        self._timeline = timeline
        self._sound_lsn = sound_lsn
        self._sees_connector = sees_connector
        self._fault = ""
        self._is_without_properties = False
        """Whether the fault was seen without the connector's properties, such as one of the topics."""
        self._is_sound = False
        """Whether the newest look found no fault."""
        self._is_bounded = False
        """Whether all commits that may have been written with the fault are known."""
        self._word_lsn = -1
        """The highest LSN up to which an operator says that values are right, since the refusal began."""
        self._refusal: Refusal | None = None
        self._recorded_lsn = -1

    @property
    def reason(self) -> str:
        """Why no cut may be published; empty: cuts may be."""
        refusal = self._refusal
        if refusal is None:
            return f"{self._fault}; no cut is published" if self._fault else ""
        what = f"{self._fault}; correct it" if self._fault else f"{refusal.reason}; it was seen earlier"
        since = f"commits after {format_position(refusal.since_lsn)}" if refusal.since_lsn else "all commits"
        return (
            f"{what}. Values of {since} may be wrong, so no cut is published. Let the connector take a new "
            f"snapshot, and start the sidecars with timeline {self._timeline + 1}; or, if you know that the "
            f"values are right, `slackwater source skip --source {self._source} --to LSN` with the newest "
            f"commit before the correction, at least {format_position(refusal.newest_lsn)}"
        )

    @property
    def unrecorded(self) -> Refusal | None:
        """What the cut log has to hold so that no sidecar forgets it; None: it holds it.

        It is written when a refusal begins, and with the last commit when the fault is gone.
        """
        refusal, recorded = self._refusal, self._recorded_lsn
        if refusal is None or refusal.newest_lsn <= recorded or (self._fault and recorded >= 0):
            return None
        return refusal

    @property
    def needs_bound(self) -> bool:
        """Whether :meth:`bound` needs the newest commit that the source's topics hold."""
        return self._refusal is not None and self._is_sound and not self._is_bounded

    def update(self, report: ConnectorReport | None, newest_lsn: int, *, has_read: bool) -> None:
        """Takes the newest look.

        Args:
            report: The look; one that could not see the connector's properties does not end its fault.
            newest_lsn: The newest commit that was read.
            has_read: Whether any record was, by this process or before.
        """
        if report is None or not (report.properties or report.faults or self._is_without_properties):
            return
        self._is_without_properties = bool(report.faults) and not report.properties
        before, faults = self._fault, report.faults
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        self._fault = f"{faults[0].subject}: {faults[0].text}{more}" if faults else ""
        self._is_sound = not faults
        self._is_bounded = self._is_bounded and self._is_sound
        if has_read and (self._fault or before):
            self._refuse(self._fault or before, newest_lsn)
        elif self._refusal is None:
            self._sound_lsn = newest_lsn

    def bound(self, newest_lsn: int) -> None:
        """Takes the newest commit that could be read after a look that found no fault."""
        if self._refusal is not None:
            self._refuse(self._refusal.reason, newest_lsn)
            self._is_bounded = True
            self.skip_to(self._word_lsn)

    def take(self, refusal: Refusal) -> None:
        """Takes a refusal that the cut log contains, whichever sidecar wrote it."""
        self._recorded_lsn = max(self._recorded_lsn, refusal.newest_lsn)
        self._sound_lsn = min(self._sound_lsn, refusal.since_lsn)
        self._refuse(refusal.reason, refusal.newest_lsn)

    def skip_to(self, lsn: int) -> None:
        """Takes an operator's decision that values up to a commit are right; a present fault starts over."""
        if self._refusal is None:
            return
        self._word_lsn = lsn = max(self._word_lsn, lsn)
        if lsn >= self._refusal.newest_lsn and (self._is_bounded or self._fault or not self._sees_connector):
            self._refusal, self._recorded_lsn, self._sound_lsn = None, -1, lsn
            self._is_bounded, self._word_lsn = False, -1

    def _refuse(self, reason: str, newest_lsn: int) -> None:
        if self._refusal is not None:
            reason, newest_lsn = self._refusal.reason, max(self._refusal.newest_lsn, newest_lsn)
        self._refusal = Refusal(
            source=self._source,
            timeline=self._timeline,
            since_lsn=self._sound_lsn,
            newest_lsn=newest_lsn,
            reason=reason,
        )


class StateLogger:
    """Writes to the log what changes about a source, once for each event."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._state: FrontierState | None = None
        self._open: dict[int, OpenTransaction] = {}

    def log_changes(self, state: FrontierState, detail: str, open_: Sequence[OpenTransaction]) -> None:
        """Logs a change of state, transactions that are named for the first time, and those that resolved."""
        if state is not self._state:
            level = logging.INFO if state in _FINE else logging.WARNING
            fields = {"source": self._source, "state": str(state), "detail": detail}
            more = f": {detail}" if detail else ""
            logger.log(level, "state of source %s is %s%s", self._source, state, more, extra=fields)
            self._state = state
        now = {t.xid: t for t in open_}
        for xid in now.keys() - self._open.keys():
            logger.warning("waiting for %s", describe_open(now[xid]), extra=self._fields(now[xid]))
        for xid in self._open.keys() - now.keys():
            name = f"transaction {xid}" if xid != SNAPSHOT_XID else "the snapshot"
            logger.info("waiting no longer for %s", name, extra=self._fields(self._open[xid]))
        self._open = now

    def log_decision(self, decision: SkipDecision | TimelineDecision) -> None:
        """Logs that an operator's decision was carried out."""
        fields = {
            "source": self._source,
            "timeline": decision.timeline,
            "decided_by": decision.decided_by,
            "reason": decision.reason,
        }
        if isinstance(decision, SkipDecision):
            logger.warning(
                "applying the decision to skip to %s",
                format_position(decision.to_lsn),
                extra=fields | {"to_lsn": decision.to_lsn},
            )
        else:
            logger.warning("applying the decision to begin timeline %d", decision.timeline, extra=fields)

    def _fields(self, transaction: OpenTransaction) -> dict[str, object]:
        return {"source": self._source, **asdict(transaction)}


def format_status(status: SidecarStatus) -> str:
    """Returns a status as one line; several when transactions have been open for long."""
    parts = [
        f"{status.source} {status.state}",
        f"frontier {status.timeline}/{format_position(status.lsn)}" if status.lsn else "no cut yet",
        f"{status.event_count:,} events",
        f"{status.records_per_second:,.0f} records/s",
    ]
    if status.delay_ms is not None:
        parts.append(f"newest commit {status.delay_ms / 1000:.1f} s ago")
    if status.redis_error:
        parts.append(f"Redis is behind: {status.redis_error.partition(';')[0]}")
    if status.detail:
        parts.append(status.detail)
    lines = [" | ".join(parts)]
    lines += [f"  waiting for {describe_open(t)}" for t in status.open[:5]]
    return "\n".join(lines)


def describe_open(transaction: OpenTransaction) -> str:
    """Says which transaction is open, and what is missing where."""
    name = f"transaction {transaction.xid}" if transaction.xid else "the initial snapshot"
    at = f" (commit {format_position(transaction.commit_lsn)})" if transaction.commit_lsn else ""
    tables = sorted({*transaction.expected, *transaction.received})
    counts = ", ".join(
        f"{t} {transaction.received.get(t, 0)}/{transaction.expected.get(t, '?')}" for t in tables
    )
    return f"{name}{at}: {transaction.hint}" + (f"; rows read: {counts}" if counts else "")
