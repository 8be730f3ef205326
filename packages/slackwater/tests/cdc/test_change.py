"""The full decoder, on records that a real connector wrote."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.cdc import Change, UndecodableRecordError, decode_change
from slackwater.cdc.errors import missing_transaction
from slackwater.protocol import ConfigError, SlackwaterError
from slackwater_lab.debezium.records import change_value, snapshot_value

RECORDINGS = Path(__file__).parent / "recordings"


def changes(name: str) -> Iterator[Change]:
    for line in (RECORDINGS / f"{name}.tsv").read_text().splitlines():
        value = line.split("\t")[3]
        if '"op":' in value:
            yield decode_change(value.encode())


def test_a_streamed_change_has_its_table_position_and_rows() -> None:
    update = list(changes("insert_update_delete_key_update"))[2]

    assert (update.op, update.table, update.xid, update.lsn) == ("u", "inv.a", 736, 22270360)
    assert (update.order, update.total_order, update.is_snapshot) == (2, 3, False)
    assert update.after is not None
    assert json.loads(bytes(update.after))["id"] == 10


def test_a_delete_has_no_row_after() -> None:
    delete = next(c for c in changes("insert_update_delete_key_update") if c.op == "d")

    assert delete.after is None
    assert delete.before is not None


def test_an_insert_has_no_row_before() -> None:
    insert = next(c for c in changes("insert_update_delete_key_update") if c.op == "c")

    assert insert.before is None
    assert insert.after is not None


def test_a_row_of_an_initial_snapshot_carries_the_lsn_of_the_snapshot() -> None:
    rows = list(changes("initial_snapshot"))

    assert {(r.is_snapshot, r.xid, r.lsn) for r in rows} == {(True, None, 22270008)}


def test_records_with_schemas_are_unwrapped() -> None:
    rows = list(changes("parallel_snapshot"))

    assert {r.table for r in rows} == {"inv.a", "inv.e"}


def test_a_row_of_an_incremental_snapshot_has_no_lsn() -> None:
    row = next(c for c in changes("truncates_messages_zero_counts") if c.op == "r")

    assert (row.is_snapshot, row.lsn, row.xid) == (False, None, None)


def test_a_logical_message_has_no_table() -> None:
    message = next(c for c in changes("insert_update_delete_key_update") if c.op == "m")

    assert message.table == ""


def test_old_connectors_write_the_snapshot_marker_as_a_boolean() -> None:
    value = snapshot_value("inv.a", 5, {"id": 1}).replace(b'"snapshot":"true"', b'"snapshot":true')

    assert decode_change(value).is_snapshot


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"{}", b"[]", b'{"ts_ms":1}', b'{"payload":null}', b"\xff", b'{"op":"\xff"}', b'{"op":1}'],
)
def test_what_is_no_change_is_refused_with_its_bytes(value: bytes) -> None:
    with pytest.raises(UndecodableRecordError) as caught:
        decode_change(value)

    assert caught.value.value == value
    assert "value.converter" in str(caught.value)


def test_a_change_without_transaction_names_the_setting() -> None:
    value = change_value("inv.a", "c", position=(7, 8), orders=(1, 1), after={"id": 1})
    document = {**json.loads(value), "transaction": None}

    with pytest.raises(ConfigError, match=r"provide\.transaction\.metadata=true") as caught:
        decode_change(json.dumps(document).encode())

    assert "a change of inv.a has" in str(caught.value)


def test_errors_travel_between_processes() -> None:
    for error in (
        UndecodableRecordError("change", "why", b"x" * 500),
        missing_transaction("a.b"),
    ):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert isinstance(copy, SlackwaterError)
        assert str(copy) == str(error)
