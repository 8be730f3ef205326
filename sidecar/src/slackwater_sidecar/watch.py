"""The state of a source in words: why the frontier moves or does not."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta

from slackwater_cdc import Frontier
from slackwater_cdc.regression import Regression
from slackwater_cdc.report import WAITS_FOR_OTHERS
from slackwater_markers import FrontierState, RegressionNotice
from slackwater_protocol import OpenTransaction, format_lsn
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import describe_open

_LISTED = 100


class OpenTransactions:
    """Remembers since when the frontier has been waiting for a transaction.

    How long goes by the monotonic clock: a wall clock that is set back must not keep anything from being
    named.
    """

    def __init__(self, open_after: timedelta) -> None:
        self._open_after_seconds = open_after.total_seconds()
        self._since: dict[int, tuple[float, int]] = {}

    def look(self, frontier: Frontier, now_seconds: float, wall_ms: int) -> list[OpenTransaction]:
        """Those that have been waited for long enough to be named, as of now by both clocks.

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
    """The state of a source and what a person needs to know beyond it."""
    if frontier.regression is not None:
        return FrontierState.REGRESSED, _describe_regression(settings.source, frontier.regression)
    obstacles = frontier.obstacles
    if obstacles:
        more = f" (and {len(obstacles) - 1} more)" if len(obstacles) > 1 else ""
        wrong = obstacles[0].is_misconfiguration
        state = FrontierState.MISCONFIGURED if wrong else FrontierState.BAD_INPUT
        return state, f"{obstacles[0]}{more}; no cut passes it"
    if not topics:
        named = (
            f"{settings.source}.<schema>.<table>"
            if settings.tables is None
            else ", ".join(sorted(settings.tables))
        )
        return FrontierState.WAITING, f"no topic was found for {named} at {settings.bootstrap}"
    missing = frontier.missing_tables()
    if missing:
        hint = "topics appear with the first change; name the tables to follow to leave others out"
        return FrontierState.WAITING, f"no topic was found for {', '.join(missing)} ({hint})"
    if open_ and open_[0].xid == 0:
        return FrontierState.WAITING, describe_open(open_[0])
    if open_:
        return FrontierState.STALLED, describe_open(open_[0])
    if frontier.stale_end_count > _MANY_STALE:
        count, lsn = frontier.stale_end_count, format_lsn(frontier.lsn)
        detail = f"the last {count} commits were at or below {lsn}: repeats, or LSNs that went back"
        return FrontierState.RUNNING, detail
    return FrontierState.RUNNING, ""


def regression_notice(frontier: Frontier) -> RegressionNotice | None:
    """Where the LSNs of a source went back, as it is published; None while they rise."""
    found = frontier.regression
    return None if found is None else RegressionNotice(**asdict(found))


def _describe_regression(source: str, found: Regression) -> str:
    what = f"transaction {found.xid}" if found.xid else "an initial snapshot"
    return (
        f"LSNs went back: {what} at {format_lsn(found.commit_lsn)} after {format_lsn(found.newest_lsn)}, "
        "as after a failover, a restore or with another database behind the connector; no cut passes it. "
        f"`slackwater source new-timeline --source {source}` goes on there and says what pipelines have to do"
    )


_MANY_STALE = 100_000
