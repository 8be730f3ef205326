"""What is written to the log about a source, once for each event."""

import logging
from collections.abc import Sequence

from slackwater_markers import FrontierState
from slackwater_protocol import SNAPSHOT_XID, OpenTransaction, SkipDecision, TimelineDecision, format_lsn
from slackwater_sidecar.status import describe_open

logger = logging.getLogger(__name__)

_FINE = frozenset({FrontierState.RUNNING, FrontierState.STOPPED})


class Chronicle:
    """Logs what has changed since the last look."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._state: FrontierState | None = None
        self._open: dict[int, OpenTransaction] = {}

    def look(self, state: FrontierState, detail: str, open_: Sequence[OpenTransaction]) -> None:
        """Logs a change of state, transactions that are named for the first time, and those that resolved."""
        if state is not self._state:
            level = logging.INFO if state in _FINE else logging.WARNING
            fields = {"source": self._source, "state": str(state), "detail": detail}
            logger.log(level, "state of source %s is %s%s", self._source, state, _after(detail), extra=fields)
            self._state = state
        now = {t.xid: t for t in open_}
        for xid in now.keys() - self._open.keys():
            logger.warning("waiting for %s", describe_open(now[xid]), extra=self._fields(now[xid]))
        for xid in self._open.keys() - now.keys():
            logger.info("waiting no longer for %s", _name(xid), extra=self._fields(self._open[xid]))
        self._open = now

    def obeyed(self, decision: SkipDecision | TimelineDecision) -> None:
        """Logs that an operator's decision was carried out."""
        fields = {
            "source": self._source,
            "timeline": decision.timeline,
            "decided_by": decision.decided_by,
            "reason": decision.reason,
        }
        if isinstance(decision, SkipDecision):
            logger.warning(
                "obeying the decision to skip to %s",
                format_lsn(decision.to_lsn),
                extra=fields | {"to_lsn": decision.to_lsn},
            )
        else:
            logger.warning("obeying the decision to begin timeline %d", decision.timeline, extra=fields)

    def _fields(self, transaction: OpenTransaction) -> dict[str, object]:
        return {
            "source": self._source,
            "xid": transaction.xid,
            "commit_lsn": transaction.commit_lsn,
            "expected": transaction.expected,
            "received": transaction.received,
            "places": dict(transaction.places),
            "hint": transaction.hint,
        }


def _name(xid: int) -> str:
    return f"transaction {xid}" if xid != SNAPSHOT_XID else "the snapshot"


def _after(detail: str) -> str:
    return f": {detail}" if detail else ""
