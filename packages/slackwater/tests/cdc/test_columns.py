"""Rows that were decoded elsewhere mean the same as the records themselves."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.cdc import Frontier, Partition
from slackwater.cdc.partition import BadRow, OtherRow, RowColumns, parse_rows
from slackwater_lab.debezium.records import begin_value, change_value, end_value, snapshot_value

TABLES = ("s.a", "s.b")


def row(xid: int, order: int, table: str = "s.a", op: str = "c") -> bytes:
    return change_value(table, op, position=(xid, xid * 100), orders=(order, order), after={"id": order})


def edited(value: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    fields: dict[str, Any] = json.loads(value)
    edit(fields)
    return json.dumps(fields).encode()


def without_xid(xid_text: str) -> bytes:
    def edit(fields: dict[str, Any]) -> None:
        fields["source"]["txId"] = None
        fields["transaction"]["id"] = xid_text

    return edited(row(1, 1), edit)


def wrapped(value: bytes) -> bytes:
    return b'{"schema":{"type":"struct"},"payload":' + value + b"}"


NESTED = edited(
    row(2, 1), lambda f: f["after"].update(transaction={"id": '9:9"}', "total_order": 7}, source={"txId": 9})
)
ODD = [
    None,
    b"garbage",
    b"",
    b"{}",
    b"\xff\xfe",
    without_xid("1:100"),
    without_xid("nonsense"),
    without_xid(""),
    NESTED,
    wrapped(row(2, 2)),
    wrapped(snapshot_value("s.b", 50, {"id": 1})),
    snapshot_value("s.a", 50, {"id": 1}),
    edited(
        snapshot_value("s.a", 50, {"id": 1}), lambda f: f["source"].update(snapshot="incremental", lsn=None)
    ),
    edited(row(1, 1), lambda f: f.update(transaction=None)),
    edited(row(1, 1), lambda f: f["transaction"].update(data_collection_order=0)),
    edited(row(1, 1), lambda f: f["transaction"].update(data_collection_order=1 << 40)),
    edited(row(1, 1), lambda f: f.update(op="m")),
    row(3, 1, op="t"),
]
rows = st.builds(
    row, st.integers(1, 4), st.integers(1, 4), st.sampled_from(TABLES), st.sampled_from(("c", "u", "d"))
)
batches = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(rows | st.sampled_from(ODD), max_size=12),
        st.sampled_from(("r1", "r2", "")),
        st.booleans(),
    ),
    max_size=6,
)


class Reading:
    def __init__(self, read: Callable[[Partition, list[tuple[int, bytes | None]], str, bool], None]) -> None:
        self.frontier = Frontier("inv")
        self.partitions = [self.frontier.add_partition(f"inv.{TABLES[n % 2]}", n // 2, 0) for n in range(3)]
        self._read = read
        self._offsets = [0, 0, 0]

    def take(self, number: int, values: list[bytes | None], run: str, is_keyless: bool) -> None:
        first = self._offsets[number]
        self._offsets[number] += len(values)
        self._read(self.partitions[number], list(enumerate(values, first)), run, is_keyless)

    def end(self) -> None:
        frontier = self.frontier
        values = [
            v
            for xid in (1, 2, 3)
            for v in (begin_value(xid, xid * 100), end_value(xid, xid * 100 + 8, COUNTS))
        ]
        frontier.read_transactions((offset, value, 5) for offset, value in enumerate(values))
        for _ in range(3):
            frontier.advance()
            ends = {p.key: p.position for p in frontier.partitions}
            frontier.end_offsets({**ends, ("inv.transaction", 0): len(values)})

    @property
    def outcome(self) -> object:
        frontier = self.frontier
        return (
            [(o.topic, o.partition, o.offset, o.is_misconfiguration) for o in frontier.obstacles],
            frontier.open_transactions(),
            frontier.lsn,
            frontier.cuts(),
            [(p.position, p.end_offset(), p.tables) for p in frontier.partitions],
        )


COUNTS = {"s.a": 2}


def directly(
    partition: Partition, records: list[tuple[int, bytes | None]], run: str, is_keyless: bool
) -> None:
    partition.read(records, run, timestamp_ms=7, is_keyless=is_keyless)


def elsewhere(
    partition: Partition, records: list[tuple[int, bytes | None]], run: str, is_keyless: bool
) -> None:
    parsed = pickle.loads(pickle.dumps(parse_rows(records)))  # noqa: S301 - made here
    partition.read_parsed(parsed, run, timestamp_ms=7, is_keyless=is_keyless)


@given(batches)
def test_rows_decoded_elsewhere_lead_to_the_same_cuts_obstacles_and_reports(
    given_batches: list[tuple[int, list[bytes | None], str, bool]],
) -> None:
    first, second = Reading(directly), Reading(elsewhere)
    for reading in (first, second):
        for batch in given_batches:
            reading.take(*batch)
        reading.end()

    assert first.outcome == second.outcome


def test_a_record_that_belongs_to_no_transaction_keeps_its_place_between_rows() -> None:
    values = [row(1, 1), snapshot_value("s.a", 50, {"id": 1}), row(1, 2), b"garbage", row(2, 1)]

    parsed = parse_rows(enumerate(values))

    kinds = [type(segment) for segment in parsed.segments]
    assert kinds == [RowColumns, OtherRow, RowColumns, BadRow, RowColumns]
    assert parsed.position == 5


def test_numbers_beyond_64_bits_are_refused_not_raised() -> None:
    value = edited(row(1, 1), lambda f: f["source"].update(txId=1 << 70))

    (segment,) = parse_rows([(3, value)]).segments

    assert isinstance(segment, BadRow)
    assert segment.offset == 3


def test_more_tables_than_a_segment_names_begin_a_new_one() -> None:
    parsed = parse_rows(enumerate(row(1, 1, f"s.t{n}") for n in range(600)))

    found = [s.places[p] for s in parsed.segments if isinstance(s, RowColumns) for p in s.place]
    assert found == [("s", f"t{n}") for n in range(600)]


@pytest.mark.parametrize("value", [without_xid("nonsense"), without_xid("x:1"), without_xid("")])
def test_a_row_that_names_no_transaction_is_an_obstacle(value: bytes) -> None:
    reading = Reading(directly)
    reading.take(0, [value], "r", False)

    assert [o.offset for o in reading.frontier.obstacles] == [0]
