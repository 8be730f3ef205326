"""What each inbox promises, over a real database, without Kafka."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from slackwater.dev import PostgresServer
from slackwater.protocol import ConfigError, StateError
from slackwater_lab.messaging.receiving.member import POLICY, Twin, Way, business_key, make_inbox
from slackwater_messaging.database import make_durable
from slackwater_messaging.receiving import (
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    Place,
    Receipt,
    ReceivedMessage,
    TableInbox,
    TakenOverError,
    header_key,
)

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]
PLACE = Place("orders", 0)
WITH_ANSWERS = [Way.TABLE, Way.FILTERED]


@pytest.fixture
def connect(postgres_server: PostgresServer) -> Iterator[Connect]:
    """Connections whose tables are this test's alone."""
    schema = f"i{uuid.uuid4().hex[:10]}"
    opened: list[Connection] = []

    def open_one(**settings: Any) -> Connection:
        options = f"-c search_path={schema} -c lock_timeout=60s"
        connection: Connection = psycopg.connect(postgres_server.dsn(), options=options, **settings)
        opened.append(connection)
        return connection

    connection = open_one()
    with connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute("CREATE TABLE effect (item text NOT NULL)")
    yield open_one
    for each in opened:
        each.close()


def message(offset: int, item: str, *, time_ms: int | None = None, partition: int = 0) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        partition=partition,
        offset=offset,
        key=item.encode(),
        value=b"",
        timestamp_ms=time_ms,
    )


def loaded(connection: Connection, way: Way | Twin, *places: Place) -> Inbox:
    inbox = make_inbox(way, "inbox")
    inbox.create(connection)
    inbox.load(connection, places or [PLACE])
    return inbox


def process(connection: Connection, inbox: Inbox, *messages: ReceivedMessage) -> list[Receipt]:
    """What a service does: if another process was faster, it loads and tries again."""
    try:
        return process_once(connection, inbox, *messages)
    except TakenOverError:
        inbox.load(connection, sorted({each.place for each in messages}))
        return process_once(connection, inbox, *messages)


def process_once(connection: Connection, inbox: Inbox, *messages: ReceivedMessage) -> list[Receipt]:
    with inbox.receive_batch(connection, messages) as receipts:
        for receipt in receipts:
            if not receipt.is_repeat:
                apply(connection, receipt.key)
                receipt.answer = b"done " + receipt.key if inbox.keeps_answers else None
    return receipts


def apply(connection: Connection, key: bytes) -> None:
    connection.execute("INSERT INTO effect VALUES (%s)", [key.decode()])


def effects(connect: Connect) -> list[str]:
    with connect() as connection:
        return [row[0] for row in connection.execute("SELECT item FROM effect ORDER BY item").fetchall()]


def is_repeat(receipts: list[Receipt]) -> list[bool]:
    return [receipt.is_repeat for receipt in receipts]


@pytest.mark.parametrize("is_autocommit", [True, False])
@pytest.mark.parametrize(
    ("wanted", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_what_a_receiver_commits_is_on_disk_before_kafka_learns_of_it(
    connect: Connect, wanted: str, used: str, is_autocommit: bool
) -> None:
    """Offsets of messages whose effects a crash of the database takes back would lose them."""
    connection = connect(autocommit=is_autocommit)
    connection.execute(f"SET synchronous_commit = {wanted}".encode())
    connection.commit()
    make_durable(connection)
    for _ in range(2):
        assert connection.info.transaction_status is TransactionStatus.IDLE
        assert connection.execute("SHOW synchronous_commit").fetchone() == (used,)
        connection.rollback()


# --- all of them


@pytest.mark.parametrize("way", list(Way))
def test_a_message_that_comes_again_is_a_repeat(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    assert is_repeat(process(connection, inbox, message(0, "a"), message(1, "b"))) == [False, False]
    assert is_repeat(process(connection, inbox, message(1, "b"), message(2, "c"))) == [True, False]
    assert effects(connect) == ["a", "b", "c"]


@pytest.mark.parametrize("way", list(Way))
def test_a_message_that_its_producer_has_written_again_is_a_repeat(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    process(connection, inbox, message(0, "a"))
    assert is_repeat(process(connection, inbox, message(7, "a"), message(8, "b"))) == [True, False]
    assert effects(connect) == ["a", "b"]


@pytest.mark.parametrize("way", list(Way))
def test_a_message_that_comes_twice_within_a_batch_is_a_repeat(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    receipts = process(connection, inbox, message(0, "a"), message(1, "a"), message(2, "b"))
    assert is_repeat(receipts) == [False, True, False]
    assert receipts[1].answer == receipts[0].answer
    assert effects(connect) == ["a", "b"]


@pytest.mark.parametrize("way", WITH_ANSWERS)
def test_each_message_of_a_batch_has_its_own_answer(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    process(connection, inbox, message(0, "a"))
    process(connection, inbox, message(1, "b"), message(2, "c"))
    again = process(connection, inbox, message(3, "c"), message(4, "a"), message(5, "b"))
    assert [receipt.answer for receipt in again] == [b"done c", b"done a", b"done b"]


@pytest.mark.parametrize("way", list(Way))
def test_what_was_rolled_back_is_not_known(connect: Connect, way: Way) -> None:
    """Fails for a filter that learns keys before they are committed: the message would be lost."""
    connection = connect()
    inbox = loaded(connection, way)
    with suppress(ZeroDivisionError), inbox.receive_batch(connection, [message(0, "a")]):
        apply(connection, b"a")
        raise ZeroDivisionError
    assert effects(connect) == []
    inbox.load(connection, [PLACE])
    assert is_repeat(process(connection, inbox, message(0, "a"))) == [False]
    assert effects(connect) == ["a"]


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("way", list(Way))
def test_another_process_goes_on_where_one_has_ended(connect: Connect, way: Way, is_saved: bool) -> None:
    connection = connect()
    first = loaded(connection, way)
    process(connection, first, message(0, "a"), message(1, "b"))
    process(connection, first, message(2, "c"))
    if is_saved:
        first.save(connection, [PLACE])
        process(connection, first, message(3, "d"))
    second = loaded(connect(), way)
    again = [message(n, item) for n, item in enumerate("abcd", start=10)]
    assert is_repeat(process(connect(), second, *again)) == [True, True, True, is_saved]
    assert effects(connect) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("way", [Way.TABLE, Way.BLOOM])
def test_of_two_that_process_a_message_at_once_the_second_waits_and_sees_a_repeat(
    connect: Connect, way: Way
) -> None:
    """A member that has lost its partition to another one, and does not know it yet."""
    connection = connect()
    slow, fast = loaded(connection, way), loaded(connect(), way)
    outcome: list[list[Receipt]] = []
    with slow.receive_batch(connection, [message(0, "a")]):
        apply(connection, b"a")
        working = threading.Thread(target=lambda: outcome.append(process(connect(), fast, message(0, "a"))))
        working.start()
        wait_until_blocked(connect, working)
    working.join()
    assert is_repeat(outcome[0]) == [True]
    assert effects(connect) == ["a"]


def test_of_two_that_process_a_message_at_once_behind_a_filter_one_is_told_at_the_end(
    connect: Connect,
) -> None:
    connection = connect()
    slow, fast = loaded(connection, Way.FILTERED), loaded(connect(), Way.FILTERED)
    is_told = pytest.raises(TakenOverError, match="has processed one of 1")
    with is_told, slow.receive_batch(connection, [message(0, "a")]):
        apply(connection, b"a")
        process(connect(), fast, message(0, "a"))
    assert is_repeat(process(connection, slow, message(0, "a"))) == [True]
    assert effects(connect) == ["a"]


def test_without_the_comparison_of_positions_both_process_it(connect: Connect) -> None:
    """The twin of the two tests before."""
    connection = connect()
    slow, fast = loaded(connection, Twin.UNFENCED), loaded(connect(), Twin.UNFENCED)
    process(connect(), fast, message(0, "a"))
    process(connection, slow, message(0, "a"), message(1, "b"))
    assert effects(connect) == ["a", "a", "b"]


def wait_until_blocked(connect: Connect, working: threading.Thread) -> None:
    """Waits until the thread waits for a lock of the database."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with connect(autocommit=True) as connection:
        while (row := connection.execute(query).fetchone()) is not None and row[0] == 0:
            working.join(0.02)
            assert working.is_alive(), "it did not wait"


@pytest.mark.parametrize("way", list(Way))
def test_an_inbox_that_waits_for_one_that_fails_is_the_first(connect: Connect, way: Way) -> None:
    connection = connect()
    slow, fast = loaded(connection, way), loaded(connect(), way)
    outcome: list[list[Receipt]] = []
    with suppress(ZeroDivisionError), slow.receive_batch(connection, [message(0, "a")]):
        apply(connection, b"a")
        working = threading.Thread(target=lambda: outcome.append(process(connect(), fast, message(0, "a"))))
        working.start()
        if way is not Way.FILTERED:  # its keys are written at the end
            wait_until_blocked(connect, working)
        raise ZeroDivisionError
    working.join()
    assert is_repeat(outcome[0]) == [False]
    assert effects(connect) == ["a"]


@pytest.mark.parametrize("way", [Way.FILTERED, Way.BLOOM])
def test_a_connection_within_a_transaction_is_refused(connect: Connect, way: Way) -> None:
    """The filter would learn keys that are rolled back later."""
    connection = connect()
    inbox = loaded(connection, way)
    connection.execute("SELECT 1")
    with (
        pytest.raises(ConfigError, match="already has an open transaction"),
        inbox.receive_batch(connection, [message(0, "a")]),
    ):
        pass


# --- with a table


@pytest.mark.parametrize("way", WITH_ANSWERS)
def test_a_repeat_has_the_answer_of_the_first(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    process(connection, inbox, message(0, "a"))
    assert [r.answer for r in process(connection, inbox, message(1, "a"))] == [b"done a"]
    assert [r.answer for r in process(connect(), loaded(connect(), way), message(1, "a"))] == [b"done a"]


@pytest.mark.parametrize("way", WITH_ANSWERS)
def test_the_answer_of_a_repeat_cannot_be_changed(connect: Connect, way: Way) -> None:
    connection = connect()
    inbox = loaded(connection, way)
    process(connection, inbox, message(0, "a"))
    with (
        pytest.raises(StateError, match="is a repeat"),
        inbox.receive_batch(connection, [message(0, "a")]) as receipts,
    ):
        receipts[0].answer = b"another"


@pytest.mark.parametrize("way", WITH_ANSWERS)
def test_keys_that_are_older_are_deleted_in_small_pieces_and_no_others(connect: Connect, way: Way) -> None:
    """The oldest first: the higher the key, the older it is here."""
    connection = connect()
    inbox = loaded(connection, way)
    process(connection, inbox, *[message(n, str(n)) for n in range(10)])
    with connection:
        age = "interval '31 days' + get_byte(key, 0) * interval '1 minute'"
        connection.execute(f"UPDATE inbox SET received_at = now() - ({age}) WHERE key < '8'".encode())  # noqa: S608
    table = TableInbox("inbox")
    connection = connect()
    left: list[tuple[int, bytes]] = []
    for _ in range(4):
        deleted = table.clean(connection, at_most=3)
        rows = connection.execute("SELECT key FROM inbox ORDER BY key").fetchall()
        left.append((deleted, b"".join(key for (key,) in rows)))
        connection.rollback()
    assert left == [(3, b"0123489"), (3, b"0189"), (2, b"89"), (0, b"89")]
    inbox.maintain(connection)
    assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (2,)


def test_maintaining_deletes_old_keys(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.TABLE)
    process(connection, inbox, message(0, "a"))
    with connection.transaction():
        connection.execute("UPDATE inbox SET received_at = now() - interval '31 days'")
    inbox.maintain(connection)
    assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (0,)


def test_a_key_that_is_deleted_while_somebody_asks_for_it_is_new(connect: Connect) -> None:
    connection, cleaner = connect(), connect()
    inbox = TableInbox("inbox", remember=timedelta(microseconds=1))
    inbox.create(connection)
    with inbox.receive(connection, "a"):
        pass
    outcome: list[bool] = []

    def ask() -> None:
        with inbox.receive(connection, "a") as receipt:
            outcome.append(receipt.is_repeat)

    with cleaner.transaction():
        assert inbox.clean(cleaner) == 1
        working = threading.Thread(target=ask)
        working.start()
        wait_until_blocked(connect, working)
    working.join()
    ask()
    assert outcome == [False, True]


def test_cleaning_passes_over_rows_that_others_hold(connect: Connect) -> None:
    connection, other = connect(), connect()
    inbox = TableInbox("inbox", remember=timedelta(microseconds=1))
    inbox.create(connection)
    for key in "ab":
        with inbox.receive(connection, key):
            pass
    with other.transaction():
        other.execute("SELECT FROM inbox WHERE key = 'a' FOR UPDATE")
        assert inbox.clean(connection) == 1
    assert inbox.clean(connection) == 1


def test_the_table_is_sharded_by_the_hash_of_the_key(connect: Connect) -> None:
    connection = connect()
    inbox = TableInbox("inbox", key_of=business_key, shards=4)
    inbox.create(connection)
    inbox.create(connection)
    process(connection, inbox, *[message(n, str(n)) for n in range(100)])
    query = "SELECT count(*) FROM inbox GROUP BY tableoid"
    assert len(connection.execute(query).fetchall()) == 4


@pytest.mark.parametrize("way", WITH_ANSWERS)
def test_batches_lock_their_keys_in_one_order_so_that_they_do_not_wait_in_a_circle(
    connect: Connect, way: Way
) -> None:
    """Fails when keys are inserted as they come."""
    batch = loaded(connect(), way)
    requests, outcome = TableInbox("inbox"), list[list[Receipt]]()
    first = connect()
    with requests.receive(first, "a"):
        messages = message(0, "z"), message(1, "a")
        working = threading.Thread(target=lambda: outcome.append(process(connect(), batch, *messages)))
        working.start()
        wait_until_blocked(connect, working)
        with requests.receive(first, "z"):
            pass
    working.join()
    assert is_repeat(outcome[0]) == [True, True]


# --- one request


def test_a_request_is_a_transaction_of_its_own_unless_one_is_open(connect: Connect) -> None:
    inbox = TableInbox("inbox")
    inbox.create(connect())
    for settings in ({}, {"autocommit": True}):
        connection = connect(**settings)
        key = f"own {settings}"
        with inbox.receive(connection, key) as receipt:
            apply(connection, key.encode())
            receipt.answer = b"1"
        connection.close()
        with inbox.receive(connect(), key) as receipt:
            assert receipt.is_repeat
            assert receipt.answer == b"1"
    assert len(effects(connect)) == 2
    outer = connect()
    outer.execute("SELECT 1")
    with inbox.receive(outer, "outer"):
        apply(outer, b"outer")
    outer.rollback()
    with inbox.receive(connect(), "outer") as receipt:
        assert not receipt.is_repeat


def test_an_error_takes_the_key_back_also_where_the_service_goes_on(connect: Connect) -> None:
    """The key of a request whose effect is not there would lose it."""
    inbox = TableInbox("inbox")
    inbox.create(connect())
    connection = connect()
    connection.execute("SELECT 1")
    with suppress(ZeroDivisionError), inbox.receive(connection, "a"):
        apply(connection, b"a")
        raise ZeroDivisionError
    connection.commit()
    assert effects(connect) == []
    with inbox.receive(connect(), "a") as receipt:
        assert not receipt.is_repeat


@pytest.mark.parametrize("key", ["", b"", b"x" * 1025])
def test_a_key_that_cannot_be_stored_is_refused(connect: Connect, key: bytes | str) -> None:
    inbox = TableInbox("inbox")
    with pytest.raises(ConfigError, match="expected 1 to 1024"), inbox.receive(connect(), key):
        pass


@pytest.mark.parametrize("name", ["", "a.b.c", "a.", "x" * 64])
def test_a_name_that_cannot_be_a_table_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name of a table"):
        TableInbox(name)


@pytest.mark.parametrize("values", [{"shards": 0}, {"shards": 1025}, {"remember": timedelta(0)}])
def test_settings_of_a_table_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        TableInbox("inbox", **values)


# --- filters


def test_a_filter_that_has_forgotten_what_the_table_knows_loses_and_repeats_nothing(connect: Connect) -> None:
    connection = connect()
    process(connection, loaded(connection, Way.TABLE), message(0, "a"))
    inbox = loaded(connection, Way.FILTERED)
    with pytest.raises(TakenOverError, match="has processed one of 2"):
        process_once(connection, inbox, message(1, "b"), message(2, "a"))
    assert effects(connect) == ["a"]
    inbox.load(connection, [PLACE])
    assert is_repeat(process(connection, inbox, message(1, "b"), message(2, "a"))) == [False, True]
    assert effects(connect) == ["a", "b"]


def test_an_effect_that_the_database_refuses_the_second_time_is_no_error_of_the_service(
    connect: Connect,
) -> None:
    """The filter lacks what was committed without an answer, so the service is asked to do it again."""
    connection = connect()
    connection.execute("ALTER TABLE effect ADD UNIQUE (item)")
    connection.commit()
    process(connection, loaded(connection, Way.TABLE), message(0, "a"))
    inbox = loaded(connection, Way.FILTERED)
    with pytest.raises(TakenOverError, match="has processed one of 2"):
        process_once(connection, inbox, message(1, "b"), message(2, "a"))
    assert is_repeat(process_once(connection, inbox, message(1, "b"), message(2, "a"))) == [False, True]
    assert effects(connect) == ["a", "b"]


def test_an_error_of_the_service_behind_a_filter_is_passed_on(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.FILTERED)
    with pytest.raises(ZeroDivisionError), inbox.receive_batch(connection, [message(0, "a")]):
        raise ZeroDivisionError
    lost = pytest.raises(psycopg.OperationalError)
    with lost, inbox.receive_batch(connection, [message(0, "a")]):
        connection.close()
        connection.execute("SELECT 1")
    assert effects(connect) == []


def test_a_table_is_asked_only_about_what_the_filter_seems_to_know(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.FILTERED)
    process(connection, inbox, message(0, "a"))
    with inbox.receive_batch(connection, [message(1, "b")]):
        assert connection.execute("SELECT key FROM inbox").fetchall() == [(b"a",)]
    with inbox.receive_batch(connection, [message(2, "b"), message(3, "c")]) as receipts:
        assert is_repeat(receipts) == [True, False]


def test_without_a_filter_the_table_is_asked(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.FILTERED)
    process(connection, inbox, message(0, "a"))
    inbox.forget([PLACE])
    assert is_repeat(process(connection, inbox, message(1, "a"), message(2, "b"))) == [True, False]


def test_new_messages_that_a_filter_takes_for_known_are_dropped_at_the_stated_rate_and_not_with_a_table(
    connect: Connect,
) -> None:
    """Measured: one of five, stated; what the filters alone lose, the table finds out to be new."""
    rate = 0.2
    policy = FilterPolicy(capacity=500, error_rate=rate, windows=1)
    connection = connect()
    inbox = BloomInbox("inbox", key_of=business_key, policy=policy)
    inbox.create(connection)
    inbox.load(connection, [PLACE])
    process(connection, inbox, *[message(n, f"a{n}") for n in range(500)])
    new = [message(1_000 + n, f"b{n}") for n in range(1_000)]
    dropped = sum(is_repeat(process(connection, inbox, *new)))
    assert 0 < dropped < 1_000 * rate
    checked = FilteredInbox(TableInbox("checked", key_of=business_key), policy=policy)
    checked.create(connection)
    checked.load(connection, [PLACE])
    process(connection, checked, *[message(n, f"a{n}") for n in range(500)])
    assert not any(is_repeat(process(connection, checked, *new)))


def test_reading_goes_on_where_the_database_is(connect: Connect) -> None:
    connection = connect()
    inbox = make_inbox(Way.BLOOM, "inbox")
    inbox.create(connection)
    assert inbox.load(connection, [PLACE]) == {}
    process(connection, inbox, message(5, "a"), message(9, "b"))
    other = Place("orders", 1)
    assert make_inbox(Way.BLOOM, "inbox").load(connect(), [PLACE, other]) == {PLACE: 10}


def test_a_message_from_the_future_makes_nobody_forget(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.BLOOM)
    process(connection, inbox, message(0, "a"))
    process(connection, inbox, message(1, "b", time_ms=32_503_680_000_000))
    assert is_repeat(process(connection, inbox, message(2, "a"))) == [True]


def test_the_journal_is_folded_into_filters(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.BLOOM)
    process(connection, inbox, message(0, "a"))
    process(connection, inbox, message(1, "b"))
    count = "SELECT (SELECT count(*) FROM inbox_journal), (SELECT count(*) FROM inbox_filters)"
    assert connection.execute(count).fetchone() == (2, 0)
    connection.commit()
    inbox.maintain(connection)
    assert connection.execute(count).fetchone() == (0, 1)
    connection.commit()
    process(connection, inbox, message(2, "c"))
    inbox.save(connection, [PLACE])
    assert connection.execute(count).fetchone() == (0, 1)
    connection.commit()
    again = [message(number, key) for number, key in enumerate("abcd", 3)]
    assert is_repeat(process(connect(), loaded(connect(), Way.BLOOM), *again)) == [True, True, True, False]


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_partition_has_a_filter_and_a_journal_of_its_own(connect: Connect, is_saved: bool) -> None:
    connection, places = connect(), [PLACE, Place("orders", 1)]
    inbox = loaded(connection, Way.BLOOM, *places)
    process(connection, inbox, message(0, "a"), message(0, "b", partition=1))
    if is_saved:
        inbox.save(connection, places)
    other = loaded(connect(), Way.BLOOM, *places)
    again = [message(1, "b"), message(2, "a"), message(1, "a", partition=1), message(2, "b", partition=1)]
    receipts = [process_once(connect(), other, each)[0] for each in again]
    assert is_repeat(receipts) == [False, True, False, True]


def test_who_has_lost_a_partition_can_neither_commit_nor_save(connect: Connect) -> None:
    connection = connect()
    lost, owner = loaded(connection, Way.BLOOM), loaded(connect(), Way.BLOOM)
    process(connect(), owner, message(0, "a"))
    with pytest.raises(TakenOverError, match="has taken over orders/0"):
        lost.save(connection, [PLACE])
    lost.load(connection, [PLACE])
    process(connect(), owner, message(1, "b"))
    with pytest.raises(TakenOverError, match="has taken over orders/0"):
        process_once(connection, lost, message(1, "c"))
    assert effects(connect) == ["a", "b"]


def test_who_loads_a_partition_waits_for_the_batch_that_its_owner_has_open(connect: Connect) -> None:
    connection = connect()
    owner, successor = loaded(connection, Way.BLOOM), make_inbox(Way.BLOOM, "inbox")
    positions: list[Mapping[Place, int]] = []
    with owner.receive_batch(connection, [message(0, "a")]):
        working = threading.Thread(target=lambda: positions.append(successor.load(connect(), [PLACE])))
        working.start()
        wait_until_blocked(connect, working)
    working.join()
    assert positions == [{PLACE: 1}]
    assert is_repeat(process_once(connect(), successor, message(1, "a"))) == [True]


def test_filters_are_not_stored_over_those_of_a_process_that_has_taken_over(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process may advance the position between the look at it and the end of the transaction."""
    connection = connect()
    slow, owner = loaded(connection, Way.BLOOM), loaded(connect(), Way.BLOOM)
    lock, outcome, working = BloomInbox._lock, list[list[Receipt]](), list[threading.Thread]()  # noqa: SLF001

    def locked(inbox: BloomInbox, over: Connection, place: Place) -> int:
        found = lock(inbox, over, place)
        if inbox is slow:
            work = threading.Thread(target=lambda: outcome.append(process(connect(), owner, message(0, "a"))))
            working.append(work)
            work.start()
            wait_until_blocked(connect, work)
        return found

    monkeypatch.setattr(BloomInbox, "_lock", locked)
    slow.save(connection, [PLACE])
    working[0].join()
    assert is_repeat(outcome[0]) == [False]


def test_partitions_that_are_not_loaded_are_refused_by_filters_alone(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.BLOOM)
    with pytest.raises(StateError, match="has not loaded orders/1"):
        process(connection, inbox, message(0, "a", partition=1))


def test_filters_alone_refuse_answers(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.BLOOM)
    with (
        pytest.raises(ConfigError, match="a BloomInbox does not store answers"),
        inbox.receive_batch(connection, [message(0, "a")]) as receipts,
    ):
        receipts[0].answer = b"x"


def test_a_damaged_filter_in_the_table_is_named(connect: Connect) -> None:
    connection = connect()
    inbox = loaded(connection, Way.BLOOM)
    process(connection, inbox, message(0, "a"))
    inbox.save(connection, [PLACE])
    with connection.transaction():
        connection.execute(
            "UPDATE inbox_filters SET filter = set_byte(filter, 100, get_byte(filter, 100) # 255)"
        )
    with pytest.raises(StateError, match="damaged"):
        inbox.load(connection, [PLACE])


def test_filters_of_another_partition_are_named(connect: Connect) -> None:
    connection, other = connect(), Place("orders", 1)
    inbox = loaded(connection, Way.BLOOM, PLACE, other)
    process(connection, inbox, message(0, "a"), message(0, "b", partition=1))
    inbox.save(connection, [PLACE, other])
    with connection.transaction():
        connection.execute("UPDATE inbox_filters SET partition = -partition - 1")
        connection.execute("UPDATE inbox_filters SET partition = partition + 2")
    with pytest.raises(StateError, match="belongs to another partition"):
        inbox.load(connection, [PLACE])


def test_policies_may_change_between_two_runs(connect: Connect) -> None:
    connection = connect()
    process(connection, loaded(connection, Way.BLOOM), message(0, "a"))
    inbox = loaded(connection, Way.BLOOM)
    inbox.save(connection, [PLACE])
    policy = FilterPolicy(capacity=5, error_rate=0.001, remember=POLICY.remember * 2, windows=3)
    other = BloomInbox("inbox", key_of=business_key, policy=policy)
    other.load(connection, [PLACE])
    assert is_repeat(process(connection, other, message(1, "a"), message(2, "b"))) == [True, False]


def test_a_header_can_be_the_key(connect: Connect) -> None:
    connection = connect()
    inbox = TableInbox("inbox", key_of=header_key("slackwater-message"))
    inbox.create(connection)

    def sent(offset: int, *headers: tuple[str, bytes]) -> ReceivedMessage:
        return ReceivedMessage(topic="orders", partition=0, offset=offset, value=b"", headers=headers)

    first, again = (
        sent(0, ("slackwater-message", b"outbox/1/2")),
        sent(1, ("slackwater-message", b"outbox/1/2")),
    )
    assert is_repeat(process(connection, inbox, first)) == [False]
    assert is_repeat(process(connection, inbox, again)) == [True]
    with pytest.raises(ConfigError, match=r"at orders/0, offset 2: it lacks the header slackwater-message"):
        process(connection, inbox, sent(2, ("other", b"x")))


def test_without_another_key_each_offset_is_a_message(connect: Connect) -> None:
    connection = connect()
    inbox = TableInbox("inbox")
    inbox.create(connection)
    assert is_repeat(process(connection, inbox, message(0, "a"), message(1, "a"))) == [False, False]
    assert is_repeat(process(connection, inbox, message(1, "a"), message(1, "a", partition=1))) == [
        True,
        False,
    ]


class DeletedInBetween:
    """A connection during whose first two statements another one deletes what the first of them has met."""

    def __init__(self, connection: Connection, other: Connection) -> None:
        self._connection, self._other = connection, other
        self._count = 0

    def execute(self, *arguments: Any) -> Any:
        self._count += 1
        if self._count == 2:
            self._other.execute("DELETE FROM inbox")
            self._other.commit()
        return self._connection.execute(*arguments)


def test_a_key_that_is_cleaned_away_while_it_is_looked_for_is_a_first_one(connect: Connect) -> None:
    connection, other = connect(), connect()
    inbox = TableInbox("inbox")
    inbox.create(connection)
    with inbox.receive(connection, "paid-1") as receipt:
        assert not receipt.is_repeat
    connection.commit()
    receipts = [Receipt(b"paid-1")]
    between: Any = DeletedInBetween(connection, other)
    inbox.mark(between, receipts)
    connection.commit()
    assert not receipts[0].is_repeat
    with inbox.receive(other, "paid-1") as receipt:
        assert receipt.is_repeat, "the key is there again"
