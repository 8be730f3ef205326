"""The open loop against a clock that moves only when somebody looks at it or works."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from slackwater_bench.traffic import OpenLoop, RowChange, SteadyOrders

LOOK_SECONDS = 0.0001
ORDERS = SteadyOrders(orders=10)


class WorkingClock:
    """Looking at it takes a moment."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_000_000 + self.seconds, UTC)

    def monotonic(self) -> float:
        self.seconds += LOOK_SECONDS
        return self.seconds


class SlowAppender:
    """Takes its time for some transactions."""

    def __init__(self, clock: WorkingClock, stalls: dict[int, float]) -> None:
        self.times_ms: list[int] = []
        self.is_flushed = False
        self._clock = clock
        self._stalls = stalls

    def append(self, changes: Sequence[RowChange], ts_ms: int) -> int:
        self._clock.seconds += self._stalls.get(len(self.times_ms), 0.0)
        self.times_ms.append(ts_ms)
        return 100 * len(self.times_ms)

    def serve(self) -> None:
        self._clock.seconds += 0.001

    def flush(self) -> None:
        self.is_flushed = True


def run(stalls: dict[int, float]) -> tuple[OpenLoop, SlowAppender]:
    clock = WorkingClock()
    appender = SlowAppender(clock, stalls)
    transactions = (ORDERS.changes_of(number) for number in range(20))
    loop = OpenLoop(appender, transactions, 100.0, clock)
    loop._work()  # noqa: SLF001 - without its thread
    return loop, appender


@pytest.mark.parametrize("stalls", [{}, {3: 0.5}, {0: 1.0, 10: 1.0}])
def test_a_stall_changes_no_intended_time(stalls: dict[int, float]) -> None:
    loop, appender = run(stalls)
    assert [lsn for lsn, _ in loop.intended] == [100 * number for number in range(1, 21)]
    first = loop.intended[0][1]
    assert [due - first for _, due in loop.intended] == pytest.approx([number / 100 for number in range(20)])
    assert appender.is_flushed


def test_records_carry_the_intended_time() -> None:
    _, appender = run({3: 0.5})
    first = appender.times_ms[0]
    assert [time - first for time in appender.times_ms] == pytest.approx([10 * n for n in range(20)], abs=1)


def test_it_says_how_late_it_was_itself() -> None:
    assert run({})[0].latest_seconds < 0.01
    assert run({3: 0.5})[0].latest_seconds == pytest.approx(0.5, abs=0.02)
