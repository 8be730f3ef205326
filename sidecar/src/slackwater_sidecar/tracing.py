"""Traces transactions from their commit to their cut; the pipelines continue from there."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slackwater.protocol import Clock, CommittedTransaction, Cut, PublishedCut, epoch_ms
from slackwater.protocol.tracing import TracedTransaction, TransactionSpan, sidecar_spans

SendSpan = Callable[[TransactionSpan], None]
"""Sends a span on; must not block."""

_REMEMBERED_POLLS = 10_000
"""The number of polls, and of sampled transactions, that are remembered until their cut is written."""


class _Found(NamedTuple):
    transaction: CommittedTransaction
    ended_ms: int
    read_ms: int


class CutTracer:
    """Notes when sampled transactions were read, and sends their spans when their cut is written.

    A cut that another sidecar has written is traced by that one. Used by the source's thread.

    Args:
        source: Whose transactions.
        ratio: The share of them that is traced, from 0 to 1.
        send: Takes the spans.
        clock: The time.
    """

    def __init__(self, source: str, ratio: float, send: SendSpan, clock: Clock) -> None:
        self._source = source
        self._ratio = ratio
        self._send = send
        self._clock = clock
        self._polls: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_POLLS)
        """The newest END of polls, and when it was read."""
        self._found: deque[_Found] = deque(maxlen=_REMEMBERED_POLLS)

    def record_read(self, newest_lsn: int) -> None:
        """Notes up to where ENDs have been read by now."""
        if not self._polls or newest_lsn > self._polls[-1][0]:
            self._polls.append((newest_lsn, self._now_ms()))

    def record_found(self, cuts: Sequence[Cut]) -> None:
        """Notes the sampled transactions of cuts that are to be written."""
        for cut in cuts:
            for transaction, ended_ms in zip(cut.transactions, cut.ends_ms, strict=False):
                traced = self._traced(cut, transaction)
                if ended_ms and not transaction.is_snapshot and traced.is_sampled(self._ratio):
                    read_ms = self._read_ms(transaction.commit_lsn)
                    self._found.append(_Found(transaction, ended_ms, read_ms))

    def record_written(self, published: Sequence[PublishedCut]) -> None:
        """Sends the spans of the sampled transactions of cuts that were written now."""
        now_ms = self._now_ms()
        for each in published:
            while self._found and self._found[0].transaction.commit_lsn <= each.cut.lsn:
                found = self._found.popleft()
                if found.transaction.commit_lsn > each.cut.previous_lsn:
                    ends = (found.ended_ms, found.read_ms, each.written_ms or now_ms)
                    traced = self._traced(each.cut, found.transaction)
                    for span in sidecar_spans(traced, found.transaction.commit_ts_ms, ends):
                        self._send(span)

    def _traced(self, cut: Cut, transaction: CommittedTransaction) -> TracedTransaction:
        return TracedTransaction(self._source, cut.timeline, transaction.xid, transaction.commit_lsn)

    def _read_ms(self, lsn: int) -> int:
        """Returns when the END of a transaction was read; LSNs are asked for in ascending order."""
        while len(self._polls) > 1 and self._polls[0][0] < lsn:
            self._polls.popleft()
        return self._polls[0][1] if self._polls else self._now_ms()

    def _now_ms(self) -> int:
        return epoch_ms(self._clock.now())
