from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from slackwater_bench.peers.registry import Peer
from slackwater_bench.peers.runs import LOOK_SECONDS, Patience, Running, total_mib
from slackwater_lab.errors import RunFailedError

PEER = Peer(name="tiny", title="tiny", settings="none")


class MovedClock:
    """Time that passes only when somebody naps."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    def nap(self, seconds: float) -> None:
        self.elapsed += seconds


def fine() -> None:
    """The peer runs."""


def patience(clock: MovedClock, written: Callable[[], int], check: Callable[[], None] = fine) -> Patience:
    running = Running({}, lambda: clock.elapsed >= 3, check)
    return Patience(PEER, running, written, clock, clock.nap)


def test_reading_is_noticed_when_it_begins() -> None:
    clock = MovedClock()
    reading = patience(clock, lambda: 0).until_reading(10)
    assert reading == pytest.approx(datetime(2026, 1, 1, tzinfo=UTC).timestamp() + 3, abs=2 * LOOK_SECONDS)


def test_a_peer_that_never_reads_fails() -> None:
    with pytest.raises(RunFailedError, match="tiny: did not begin to read after 1 s"):
        patience(MovedClock(), lambda: 0).until_reading(1)


def test_a_run_ends_after_a_quiet_while() -> None:
    clock = MovedClock()
    patience(clock, lambda: 100).until_quiet(records=100, quiet_seconds=5, seconds=60)
    assert 5 <= clock.elapsed < 6


def test_a_peer_with_long_pauses_is_given_twice_as_long() -> None:
    clock = MovedClock()
    patience(clock, lambda: 100 * int(min(clock.elapsed, 21) // 7)).until_quiet(
        records=100, quiet_seconds=5, seconds=60
    )
    assert 21 + 14 <= clock.elapsed < 21 + 15


def test_too_few_documents_are_no_end() -> None:
    with pytest.raises(RunFailedError, match="tiny: was not finished with 99 documents after 30 s"):
        patience(MovedClock(), lambda: 99).until_quiet(records=100, quiet_seconds=5, seconds=30)


def test_a_peer_that_ends_is_not_waited_for() -> None:
    clock = MovedClock()

    def check() -> None:
        raise RunFailedError("tiny", "ended with exit code 1: oh")

    with pytest.raises(RunFailedError, match="exit code 1"):
        patience(clock, lambda: 0, check).until_quiet(records=1, quiet_seconds=5, seconds=60)
    assert clock.elapsed == 0


def test_memory_is_that_of_all_processes() -> None:
    assert total_mib({"tiny": 1.25, "tiny jvm": 10.0}) == 11.2
