"""Which source commit became visible when: END records matched with commit records. No I/O."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One source transaction that became visible."""

    commit_lsn: int
    delay_ms: int
    """From its commit in the database to the commit record that covers it."""


class VisibilityMatcher:
    """Takes both topics in any interleaving; each transaction gives one sample at most.

    A transaction whose END is read after the commit record that covers it is matched at that moment: it
    became visible when the commit record was read, not when its END was.

    Args:
        since_ms: transactions committed before, in milliseconds since the epoch, are left out.
    """

    def __init__(self, *, since_ms: int = 0) -> None:
        self._since_ms = since_ms
        self._waiting: deque[tuple[int, int]] = deque()
        self._visible: deque[tuple[int, int]] = deque()
        self._newest_end = 0

    @property
    def waiting(self) -> int:
        """Transactions that were committed and are not visible yet."""
        return len(self._waiting)

    def committed(self, commit_lsn: int, commit_ts_ms: int) -> Sample | None:
        """An END record. A replayed one (at or below the newest) is ignored."""
        if commit_lsn <= self._newest_end or commit_ts_ms < self._since_ms:
            return None
        self._newest_end = commit_lsn
        while self._visible and self._visible[0][0] < commit_lsn:
            self._visible.popleft()
        if self._visible:
            return Sample(commit_lsn, self._visible[0][1] - commit_ts_ms)
        self._waiting.append((commit_lsn, commit_ts_ms))
        return None

    def visible(self, commit_lsn: int, at_ms: int) -> list[Sample]:
        """A commit record: everything up to ``commit_lsn`` became visible at ``at_ms``."""
        samples = []
        while self._waiting and self._waiting[0][0] <= commit_lsn:
            lsn, committed_ms = self._waiting.popleft()
            samples.append(Sample(lsn, at_ms - committed_ms))
        if commit_lsn > self._newest_end:
            self._visible.append((commit_lsn, at_ms))
        return samples
