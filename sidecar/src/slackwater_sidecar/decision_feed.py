"""Reads what operators have decided about a source from its cut log."""

from slackwater_markers import CutLog
from slackwater_protocol import SkipDecision, TimelineDecision

Decision = SkipDecision | TimelineDecision

_LOOK_BACK = 5_000
"""How many offsets before the newest cut are read again: a decision there may not be carried out in full."""


class LoggedDecisions:
    """Finds new decisions about one timeline. Used by one thread.

    Args:
        log: The source's cut log.
        timeline: The one that is followed.
        newest_offset: Where the newest cut stands; -1 when there is none.
    """

    def __init__(self, log: CutLog, timeline: int, newest_offset: int) -> None:
        self._log = log
        self._timeline = timeline
        self._read_to = max(0, newest_offset - _LOOK_BACK)

    def new(self) -> list[Decision]:
        """Returns decisions since the last call, in order: to skip on this timeline, or to begin a newer one.

        The first call also returns what was decided shortly before the newest cut.

        Raises:
            slackwater_markers.CutLogError: the log cannot be read.
        """
        end = self._log.end()
        if end <= self._read_to:
            return []
        found = self._log.records(self._read_to - 1, with_cuts=False)
        self._read_to = max(end, found[-1].log_offset + 1 if found else 0)
        decisions = [r.record for r in found if isinstance(r.record, SkipDecision | TimelineDecision)]
        return [decision for decision in decisions if self._concerns(decision)]

    def _concerns(self, decision: Decision) -> bool:
        if isinstance(decision, SkipDecision):
            return decision.timeline == self._timeline
        return decision.timeline > self._timeline
