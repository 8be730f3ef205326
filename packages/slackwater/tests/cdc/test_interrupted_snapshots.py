"""Initial snapshots that are interrupted and taken again, at the same LSN, a higher or a lower one."""

import json

import pytest

from slackwater.protocol import OpenTransaction
from slackwater_lab.debezium.fed_source import SECOND, FedSource, end, snapshot_row
from slackwater_lab.debezium.records import change_value, notification_value, snapshot_notifications


@pytest.fixture
def source() -> FedSource:
    return FedSource()


def announced(kind: str, ts_ms: int, **data: str) -> bytes:
    return notification_value(kind, ts_ms=ts_ms, **data)


def read(
    source: FedSource,
    key: int,
    lsn: int,
    ts_ms: int,
    *,
    table: str = "a",
    run: str = "r1",
    mark: str = "true",
) -> None:
    """Gives a row of a snapshot to the partition of its key."""
    value = snapshot_row(lsn, key, ts_ms=ts_ms, table=table, mark=mark)
    source.row(f"{table}/{key % 2}", value, run=run)


def commit(source: FedSource, xid: int, lsn: int, ts_ms: int, key: int) -> None:
    """Gives a transaction of one row."""
    value = change_value("inv.a", "u", position=(xid, lsn - 8), orders=(1, 1), after={"id": key})
    source.row(f"a/{key % 2}", value)
    source.tell(end(xid, a=1, lsn=lsn, ts_ms=ts_ms))


def waiting(source: FedSource) -> OpenTransaction:
    """The only thing that is waited for."""
    (found,) = source.frontier.open_transactions()
    return found


def test_a_snapshot_that_is_interrupted_twice_at_one_lsn_ends(source: FedSource) -> None:
    for second in (1, 2):
        source.notify(announced("STARTED", second * SECOND))
        read(source, 1, 400, second * SECOND + 5)
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=3 * SECOND))
    read(source, 1, 400, 3 * SECOND + 5)
    assert source.at_rest() == [], "a row of the third attempt is missing, and those before do not count"

    read(source, 2, 400, 3 * SECOND + 5)
    (cut,) = source.at_rest()

    assert (cut.lsn, cut.event_count, cut.late_snapshots) == (400, 2, ())
    assert source.frontier.open_transactions() == []


@pytest.mark.parametrize(("after_ms", "is_counted"), [(100, True), (101, False)])
def test_rows_read_long_after_an_attempt_was_completed_are_of_the_next_one(
    source: FedSource, after_ms: int, is_counted: bool
) -> None:
    """All announcements of the first attempt were written, but not all of its rows."""
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=SECOND))
    read(source, 1, 400, SECOND)
    read(source, 2, 400, SECOND + after_ms)
    assert [cut.event_count for cut in source.at_rest()] == ([2] if is_counted else [])

    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND + after_ms))
    assert [cut.event_count for cut in source.at_rest()] == ([] if is_counted else [1])


def test_what_is_waited_for_counts_the_rows_of_the_newest_attempt_only(source: FedSource) -> None:
    for second in (1, 2):
        source.notify(announced("STARTED", second * SECOND))
        read(source, 1, 400, second * SECOND)
        read(source, 2, 400, second * SECOND)
    source.notify(*snapshot_notifications({"inv.a": 4}, ts_ms=3 * SECOND))
    read(source, 1, 400, 3 * SECOND)

    assert waiting(source).expected == {"inv.a": 4}
    assert waiting(source).received == {"inv.a": 1}


def test_threads_of_a_parallel_snapshot_are_one_attempt(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 3}, ts_ms=SECOND))
    for key, ts_ms in enumerate((SECOND + 4, SECOND + 16, SECOND + 30)):
        read(source, key, 400, ts_ms)

    (cut,) = source.cuts()
    assert (cut.lsn, cut.event_count, cut.late_snapshots) == (400, 3, ())
    assert [t.is_snapshot for t in cut.transactions] == [True], "its rows are exact: it is the first attempt"


@pytest.mark.parametrize("reads_newer_first", [False, True])
def test_an_attempt_below_the_lsn_of_the_one_before_counts(
    source: FedSource, *, reads_newer_first: bool
) -> None:
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 1}, ts_ms=2 * SECOND))
    rows = [(1, 440, SECOND + 5), (2, 400, 2 * SECOND + 5)]
    for row in reversed(rows) if reads_newer_first else rows:
        read(source, *row)

    commit(source, 7, 600, 60 * SECOND, key=1)
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots) == (600, (400,))


def test_rows_of_an_interrupted_attempt_that_are_read_last_do_not_count(source: FedSource) -> None:
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 2}, ts_ms=2 * SECOND))
    read(source, 1, 400, 2 * SECOND + 5)
    read(source, 2, 400, SECOND + 5)
    read(source, 4, 400, SECOND + 5)

    assert source.at_rest() == []
    assert waiting(source).received == {"inv.a": 1}


@pytest.mark.parametrize("early_ms", [0, 1, 100])
def test_rows_may_be_stamped_a_little_before_their_own_start(source: FedSource, early_ms: int) -> None:
    source.notify(announced("STARTED", SECOND))
    read(source, 1, 400, SECOND + 5)
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=2 * SECOND))
    read(source, 2, 400, 2 * SECOND - early_ms)

    (cut,) = source.at_rest()
    assert cut.event_count == 1


def test_rows_that_were_read_long_before_an_attempt_began_are_not_its_rows(source: FedSource) -> None:
    """The announcement of theirs was lost in the crash that interrupted it."""
    read(source, 1, 400, SECOND)
    read(source, 2, 400, SECOND)
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=2 * SECOND))

    assert source.at_rest() == []
    assert "older than every announcement" in waiting(source).hint

    read(source, 1, 400, 2 * SECOND)
    read(source, 2, 400, 2 * SECOND)
    (cut,) = source.at_rest()
    assert cut.event_count == 2


def test_rows_belong_to_the_attempt_in_which_the_first_of_their_transaction_was_read(
    source: FedSource,
) -> None:
    """All rows of a database transaction have its time, but the connector stamps each when it reads it."""
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 2}, ts_ms=9 * SECOND))
    for key, read_ms in ((1, SECOND + 5), (2, 9 * SECOND - 50)):
        fields = json.loads(snapshot_row(400, key, ts_ms=SECOND))
        source.row("a/0", json.dumps(fields | {"ts_ms": read_ms}).encode())

    assert source.at_rest() == []


def test_the_databases_clock_does_not_say_which_attempt_rows_belong_to(source: FedSource) -> None:
    """``source.ts_ms`` is the database's, and that may be a second behind the connector's."""
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 1}, ts_ms=9 * SECOND))
    read(source, 1, 400, SECOND)
    fields = json.loads(snapshot_row(400, 2, ts_ms=8 * SECOND + 200))
    source.row("a/0", json.dumps(fields | {"ts_ms": 9 * SECOND + 5}).encode())

    (cut,) = source.at_rest()
    assert cut.event_count == 1


def test_a_repeated_attempt_is_shown_with_a_commit_that_is_newer_than_its_newest_row(
    source: FedSource,
) -> None:
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 2}, ts_ms=2 * SECOND)[:-1])
    source.notify(announced("COMPLETED", 9 * SECOND))
    read(source, 1, 400, SECOND)
    read(source, 1, 400, 2 * SECOND)
    read(source, 2, 400, 9 * SECOND)
    commit(source, 7, 600, 10 * SECOND, key=1)
    assert source.cuts() == []

    commit(source, 8, 700, 10 * SECOND + 1, key=1)
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots) == (700, (400,))


def test_an_attempt_behind_one_that_was_shown_at_the_same_lsn_is_shown_with_a_newer_commit(
    source: FedSource,
) -> None:
    """The connector stopped before it had stored that its snapshot was over."""
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND))
    read(source, 1, 400, SECOND)
    assert [cut.lsn for cut in source.cuts()] == [400]

    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=5 * SECOND))
    read(source, 1, 400, 5 * SECOND)
    commit(source, 7, 600, 6 * SECOND, key=1)
    assert source.cuts() == [], "the row may hold what this commit has changed"

    commit(source, 8, 700, 7 * SECOND, key=1)
    (cut,) = source.cuts()
    assert (cut.lsn, cut.late_snapshots) == (700, (400,))
    assert source.frontier.regression is None


def test_an_ad_hoc_snapshot_of_one_table_does_not_stand_for_the_initial_one_of_two(source: FedSource) -> None:
    """Without a commit in between it has the same LSN, and looks like a further attempt."""
    source.notify(
        *snapshot_notifications({"inv.a": 1, "inv.b": 1}, ts_ms=SECOND),
        *snapshot_notifications({"inv.a": 1}, ts_ms=5 * SECOND),
    )
    read(source, 1, 400, SECOND)
    read(source, 1, 400, 5 * SECOND)
    assert source.at_rest() == []
    assert waiting(source).expected == {"inv.a": 1, "inv.b": 1}

    read(source, 1, 400, SECOND, table="b")
    assert [cut.lsn for cut in source.at_rest()] == [400]


def test_tables_of_a_complete_attempt_at_another_lsn_need_not_be_read(source: FedSource) -> None:
    """The connector was set up again, with fewer tables, before anything was shown."""
    source.notify(
        *snapshot_notifications({"inv.a": 1, "inv.b": 9}, ts_ms=SECOND),
        *snapshot_notifications({"inv.a": 1}, ts_ms=5 * SECOND),
    )
    read(source, 1, 400, SECOND)
    read(source, 1, 480, 5 * SECOND)

    assert [cut.lsn for cut in source.at_rest()] == [480]


def test_tables_of_an_interrupted_attempt_need_not_be_read(source: FedSource) -> None:
    scanned = announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b", total_rows_scanned="9")
    source.notify(
        announced("STARTED", SECOND), scanned, *snapshot_notifications({"inv.a": 1}, ts_ms=5 * SECOND)
    )
    read(source, 1, 400, SECOND, table="b")
    read(source, 1, 400, 5 * SECOND)

    assert [cut.lsn for cut in source.at_rest()] == [400]


def test_tables_that_nobody_reads_are_not_waited_for() -> None:
    source = FedSource(tables=frozenset({"inv.a"}))
    source.notify(*snapshot_notifications({"inv.a": 1, "inv.b": 9}, ts_ms=SECOND))
    read(source, 1, 400, SECOND)
    read(source, 1, 400, SECOND, table="b")

    (cut,) = source.cuts()
    assert cut.event_count == 1


@pytest.mark.parametrize(
    ("runs", "second_ms", "is_late"),
    [
        (("r1", "r1"), 2 * SECOND, False),
        (("r1", "r2"), 2 * SECOND, True),
        (("", ""), 2 * SECOND, True),
        (("", ""), SECOND, False),
    ],
)
def test_without_notifications_attempts_are_told_apart_by_the_connectors_run(
    source: FedSource, runs: tuple[str, str], second_ms: int, *, is_late: bool
) -> None:
    read(source, 1, 400, SECOND, run=runs[0], mark="last")
    read(source, 2, 400, second_ms, run=runs[1])
    commit(source, 7, 600, 2 * SECOND, key=1)
    commit(source, 8, 700, 2 * SECOND, key=2)
    for number in (0, 1):
        source.row(f"b/{number}", _other_row(9), run=runs[1])

    assert bool(source.cuts()) is not is_late


def test_without_notifications_the_last_row_of_an_earlier_attempt_does_not_end_the_newest(
    source: FedSource,
) -> None:
    read(source, 1, 400, SECOND, run="r1", mark="last")
    read(source, 2, 400, 2 * SECOND, run="r2")
    assert source.at_rest() == []

    read(source, 1, 400, 2 * SECOND, run="r2", mark="last")
    (cut,) = source.at_rest()
    assert cut.event_count == 2
    assert cut.late_snapshots == ()


def _other_row(xid: int) -> bytes:
    return change_value("inv.b", "u", position=(xid, 900), orders=(1, 1), after={"id": 1})


# --- what cannot be decided is named


def test_rows_that_never_arrive_are_named(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 2}, ts_ms=SECOND))
    read(source, 1, 400, SECOND)
    assert source.at_rest() == []
    assert waiting(source).hint.endswith("announcements do not match its rows: rows are missing")


def test_an_attempt_of_which_nothing_is_read_yet_is_named(source: FedSource) -> None:
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 0}, ts_ms=9 * SECOND))
    read(source, 1, 400, SECOND)
    assert source.at_rest() == []
    assert "begun again" in waiting(source).hint


def test_an_attempt_that_the_connector_gave_up_is_named(source: FedSource) -> None:
    """Killed right after STARTED, Debezium finds an offset, and takes the snapshot for complete."""
    source.notify(announced("STARTED", SECOND))
    read(source, 1, 400, SECOND)
    source.notify(announced("SKIPPED", 9 * SECOND))
    assert source.at_rest() == []
    assert "the connector did not take it again" in waiting(source).hint

    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=20 * SECOND))
    read(source, 1, 400, 20 * SECOND)
    assert [cut.lsn for cut in source.at_rest()] == [400]


def test_a_connector_that_starts_again_after_its_snapshot_skips_it(source: FedSource) -> None:
    skipped = announced("SKIPPED", 9 * SECOND)
    source.notify(skipped, *snapshot_notifications({"inv.a": 2}, ts_ms=SECOND), skipped)
    read(source, 1, 400, SECOND)
    assert "rows are missing" in waiting(source).hint

    read(source, 2, 400, SECOND)
    assert [cut.lsn for cut in source.cuts()] == [400]


def test_while_rows_are_read_nothing_is_wrong(source: FedSource) -> None:
    source.notify(announced("STARTED", SECOND))
    read(source, 1, 400, SECOND)
    assert source.cuts() == []
    assert waiting(source).hint == "initial snapshot"


@pytest.mark.parametrize(
    "value",
    [
        b"garbage",
        b'{"a":' * 50_000,
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b", total_rows_scanned="many"),
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b", total_rows_scanned="-1"),
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b", total_rows_scanned="9" * 19),
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b", total_rows_scanned="9" * 9999),
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="inv.b"),
        announced("TABLE_SCAN_COMPLETED", SECOND, total_rows_scanned="1"),
        announced("TABLE_SCAN_COMPLETED", SECOND, scanned_collection="", total_rows_scanned="1"),
        b'{"type":"TABLE_SCAN_COMPLETED","aggregate_type":"Initial Snapshot",'
        b'"additional_data":{"scanned_collection":"inv.b","total_rows_scanned":{"n":1}}}',
        b'{"type":"STARTED","aggregate_type":"Initial Snapshot","timestamp":"soon"}',
        b'{"type":"STARTED","aggregate_type":"Initial Snapshot","timestamp":1.5}',
        b'{"type":"STARTED","aggregate_type":"Initial Snapshot","timestamp":-1}',
    ],
)
def test_a_notification_that_cannot_be_read_may_have_told_of_rows(source: FedSource, value: bytes) -> None:
    """Passed over, the counts of a table might be missing, and its rows would be lost."""
    source.notify(
        announced("STARTED", SECOND), value, *snapshot_notifications({"inv.a": 1}, ts_ms=SECOND)[1:]
    )
    read(source, 1, 400, SECOND)

    assert source.at_rest() == []
    assert "a notification cannot be read: s.notifications/0 offset 1: " in waiting(source).hint

    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=9 * SECOND))
    read(source, 1, 400, 9 * SECOND)
    assert [cut.lsn for cut in source.at_rest()] == [400], "the way out: the snapshot is taken again"


@pytest.mark.parametrize("count", [0, 1])
def test_what_else_stands_in_the_notification_topic_disturbs_no_snapshot_that_is_over(
    source: FedSource, count: int
) -> None:
    other = b'{"type":"STARTED","aggregate_type":"Incremental Snapshot","additional_data":{"n":1}}'
    source.notify(b"garbage", other, *snapshot_notifications({"inv.a": count}, ts_ms=SECOND), b"garbage")
    read(source, 0, 400, SECOND)

    assert [cut.lsn for cut in source.cuts()] == [400]


def test_rows_of_a_snapshot_that_do_not_say_when_they_were_read_are_named(source: FedSource) -> None:
    source.notify(*snapshot_notifications({"inv.a": 1}, ts_ms=SECOND))
    fields = json.loads(snapshot_row(400, ts_ms=SECOND))
    times: list[object] = ["soon", 1.5, -1, 1 << 63, 10**400, True, [1], {}]
    odd: list[bytes] = [json.dumps(fields | {"ts_ms": ts_ms}).encode() for ts_ms in times]
    odd += [
        json.dumps(fields | {"source": fields["source"] | changed}).encode()
        for changed in (
            {"sequence": 7}, {"sequence": ["1", "2"]}, {"lsn": -8}, {"lsn": 0}, {"lsn": 1 << 63},
            {"lsn": "x"}, {"ts_ms": -1}, {"ts_ms": 1 << 63}, {"ts_ms": 1.5}, {"ts_ms": None},
        )
    ]  # fmt: skip
    odd.append(snapshot_row(400, ts_ms=3).replace(b'"[null', b'"\xff[null'))
    for value in odd:
        source.row("a/0", value)

    assert source.at_rest() == []
    assert [o.offset for o in source.frontier.obstacles] == list(range(len(odd)))
    assert all("not a Debezium change: " in o.detail for o in source.frontier.obstacles)


def test_a_row_without_the_connectors_time_is_as_new_as_its_record(source: FedSource) -> None:
    source.notify(announced("STARTED", SECOND), *snapshot_notifications({"inv.a": 1}, ts_ms=2 * SECOND))
    read(source, 1, 400, SECOND)
    fields = json.loads(snapshot_row(400, ts_ms=2 * SECOND))
    source.row("a/1", json.dumps(fields | {"ts_ms": None}).encode(), ms=50 * SECOND)
    commit(source, 7, 600, 51 * SECOND, key=1)
    assert source.cuts() == []

    commit(source, 8, 700, 51 * SECOND + 1, key=1)
    assert [cut.lsn for cut in source.cuts()] == [700]
