"""An inbox of filters over a database that fails on request: what it remembers of a failed batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from slackwater.protocol import StateError, SystemClock, epoch_ms
from slackwater_messaging.receiving import BloomInbox, FilterPolicy, Place, ReceivedMessage, TakenOverError

PLACE, OTHER = Place("orders", 0), Place("orders", 1)
AWAY = psycopg.OperationalError("away")


class Database:
    """The rows of one inbox; a statement of a failed transaction leaves nothing behind."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        self.positions: dict[Any, int] = {}
        self.journal: list[tuple[Any, int, bytes]] = []
        self.commit_error: Exception | None = None
        self.is_commit_lost = False
        """Whether the failing commit has no effect."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = dict(self.positions), list(self.journal)
        error, self.commit_error = self.commit_error, None
        try:
            yield
            if error is not None and self.is_commit_lost:
                raise error
        except BaseException:
            self.positions, self.journal = before
            raise
        if error is not None:
            raise error

    def execute(self, statement: Any, values: Sequence[Any] = ()) -> Any:
        text = statement.as_string(None).strip()
        rows: list[Any] = []
        if text.startswith('INSERT INTO "inbox_positions"'):
            self.positions.setdefault(Place(*values), -1)
        elif text.startswith('SELECT next_offset FROM "inbox_positions"'):
            rows = [(self.positions[Place(*values)],)]
        elif text.startswith('UPDATE "inbox_positions"'):
            end, topic, partition, expected = values
            rows = [()] if self.positions[Place(topic, partition)] == expected else []
            self.positions.update({Place(topic, partition): end} if rows else {})
        elif text.startswith('INSERT INTO "inbox_journal"'):
            self.journal.append((Place(*values[:2]), values[3], values[4]))
        elif text.startswith('SELECT time_ms, digests FROM "inbox_journal"'):
            rows = [(time_ms, digests) for place, time_ms, digests in self.journal if place == Place(*values)]
        return SimpleNamespace(fetchone=lambda: rows[0], fetchall=lambda: rows, rowcount=len(rows))


@pytest.fixture
def inbox() -> BloomInbox:
    policy = FilterPolicy(capacity=100, error_rate=0.001)
    return BloomInbox("inbox", key_of=lambda found: found.value or b"", policy=policy)


@pytest.fixture
def database(inbox: BloomInbox) -> Any:
    made: Any = Database()
    inbox.load(made, [PLACE, OTHER])
    return made


def receive(inbox: BloomInbox, database: Any, offset: int, key: bytes) -> bool:
    """Returns whether a message was new."""
    message = ReceivedMessage(topic="orders", partition=0, offset=offset, value=key)
    with inbox.receive_batch(database, [message]) as (receipt,):
        return not receipt.is_repeat


@pytest.mark.parametrize("is_lost", [True, False])
def test_after_a_failed_commit_only_the_database_knows_what_was_received(
    inbox: BloomInbox, database: Any, is_lost: bool
) -> None:
    assert receive(inbox, database, 0, b"a")
    database.commit_error, database.is_commit_lost = AWAY, is_lost
    with pytest.raises(psycopg.OperationalError):
        receive(inbox, database, 1, b"b")
    with pytest.raises(StateError, match="has not loaded orders/0"):
        receive(inbox, database, 1, b"b")
    assert inbox.load(database, [PLACE]) == {PLACE: 1 if is_lost else 2}
    assert receive(inbox, database, 1, b"b") is is_lost
    assert not receive(inbox, database, 2, b"a")


class Shifted(SystemClock):
    """A machine's clock that is some hours ahead, and was started at another time."""

    def __init__(self, hours: int) -> None:
        self._by = timedelta(hours=hours)

    def now(self) -> datetime:
        return datetime(2026, 1, 5, 12, tzinfo=UTC) + self._by

    def monotonic(self) -> float:
        return 1e6 * self._by.total_seconds()


@pytest.mark.parametrize("hours", [(0, 1), (1, 0), (0, -1), (-1, 0), (-1, 1), (1, -1)])
def test_who_takes_over_with_another_clock_receives_nothing_twice_and_loses_nothing(
    hours: tuple[int, int],
) -> None:
    """Also not if a producer's clock is days ahead, or a message has no timestamp."""
    policy = FilterPolicy(capacity=100, error_rate=1e-6, remember=timedelta(hours=4), windows=4)
    inboxes = [
        BloomInbox("inbox", key_of=lambda found: found.value or b"", policy=policy, clock=Shifted(each))
        for each in hours
    ]
    database: Any = Database()
    now_ms = epoch_ms(Shifted(0).now())
    offset = 0
    written: list[bytes] = []
    for turn in range(4):
        inbox = inboxes[turn % 2]
        assert inbox.load(database, [PLACE]) == ({PLACE: offset} if offset else {})
        for timestamp_ms in (now_ms, None, now_ms + 10 * 86_400_000, now_ms - 3_600_000):
            written.append(f"{turn} {timestamp_ms}".encode())
            messages = [
                ReceivedMessage(
                    topic="orders", partition=0, offset=offset + at, value=key, timestamp_ms=timestamp_ms
                )
                for at, key in enumerate(written)
            ]
            with inbox.receive_batch(database, messages) as receipts:
                assert [each.is_repeat for each in receipts] == [True] * (len(written) - 1) + [False]
            offset += len(messages)


def test_what_a_partition_s_filter_knew_is_forgotten_with_the_partition(
    inbox: BloomInbox, database: Any
) -> None:
    """Another member may have continued with it: what is in memory is neither whole nor true."""
    assert receive(inbox, database, 0, b"a")
    inbox.forget([PLACE])
    assert PLACE not in inbox._chains  # noqa: SLF001
    for use in (lambda: receive(inbox, database, 1, b"b"), lambda: inbox.save(database, [PLACE])):
        with pytest.raises(StateError, match="has not loaded orders/0"):
            use()
    inbox.save(database, [OTHER])
    assert inbox.load(database, [PLACE]) == {PLACE: 1}
    assert not receive(inbox, database, 1, b"a")


def test_a_load_that_fails_leaves_nothing_of_an_earlier_one(inbox: BloomInbox, database: Any) -> None:
    database.commit_error, database.is_commit_lost = AWAY, True
    database.positions[PLACE] = 5
    with pytest.raises(psycopg.OperationalError):
        inbox.load(database, [PLACE])
    database.info.transaction_status = TransactionStatus.INTRANS
    with pytest.raises(Exception, match="transaction"):
        inbox.load(database, [OTHER])
    database.info.transaction_status = TransactionStatus.IDLE
    with pytest.raises(StateError, match="has not loaded orders/1"):
        inbox.save(database, [OTHER])


def test_who_cannot_save_a_partition_has_to_load_it_again(inbox: BloomInbox, database: Any) -> None:
    database.positions[PLACE] = 7
    with pytest.raises(TakenOverError):
        inbox.save(database, [PLACE])
    with pytest.raises(StateError, match="has not loaded orders/0"):
        inbox.save(database, [PLACE])
    assert inbox.load(database, [PLACE]) == {PLACE: 7}
    inbox.save(database, [PLACE])
