"""Which commits are barriers: the cuts at which all pipelines of a source end a batch."""

from slackwater_protocol import Cut


class Barriers:
    """Chooses the last commit of each interval of commit time.

    Commits and their times alone decide, so all sidecars of a source choose the same ones, and so does that
    of an output that is a source again. The time of a commit is taken a little before its place in the order,
    so a time in the interval before is no reason for a barrier; where a clock goes back by more, there is
    one. Who begins in the middle may choose one more than others have.

    Args:
        interval_ms: Its length; 0: there are no barriers.
        start: The cut to go on from.
    """

    def __init__(self, interval_ms: int, start: Cut | None) -> None:
        self._interval_ms = interval_ms
        self.newest_lsn = 0 if start is None else start.barrier_lsn
        """The newest barrier; 0: there is none yet."""
        self._lsn = 0
        self._interval: int | None = None
        if start is not None:
            self.pass_commit(start.lsn, start.commit_ts_ms)

    def is_before(self, commit_ts_ms: int) -> bool:
        """Says whether the newest commit is a barrier, since the next one has this commit time."""
        if not self._interval_ms or self._interval is None:
            return False
        return not self._interval - 1 <= commit_ts_ms // self._interval_ms <= self._interval

    def mark(self) -> None:
        """Makes the newest commit a barrier."""
        self.newest_lsn = self._lsn

    def pass_commit(self, lsn: int, commit_ts_ms: int) -> None:
        """Takes the next commit, or the snapshot that stands for all before it."""
        self._lsn = lsn
        if self._interval_ms and (self._interval is None or self.is_before(commit_ts_ms)):
            self._interval = commit_ts_ms // self._interval_ms
