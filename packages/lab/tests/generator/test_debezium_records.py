"""The renderer against recordings of a real connector, byte for byte."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slackwater.sql.postgres import parse_catalog
from slackwater_lab.generator.debezium_records import (
    ConnectorIdentity,
    Headers,
    Stamp,
    begin_record,
    end_record,
    row_renderer,
    stamp,
)
from slackwater_lab.generator.share import TableRows
from slackwater_lab.workloads.workload import Change, Delete, Insert, Update

RECORDINGS = Path(__file__).parents[3] / "slackwater/tests/cdc/recordings"
NAMES = ["insert_update_delete_key_update", "streaming_mix", "commit_order_differs_from_lsn_order"]


class Recorded(NamedTuple):
    topic: str
    key: str
    value: str
    headers: str


def recorded(name: str) -> list[Recorded]:
    fields = (line.split("\t") for line in (RECORDINGS / f"{name}.tsv").read_text().splitlines())
    return [Recorded(topic, key, value, headers) for topic, _, key, value, headers, _ in fields]


def streamed_rows(name: str) -> Iterator[tuple[Recorded, Any]]:
    for record in recorded(name):
        value = json.loads(record.value)
        if value and value.get("op") in ("c", "u", "d") and value["transaction"]:
            yield record, value


def stamp_of(connector: ConnectorIdentity, value: Any) -> Stamp:
    source = value["source"]
    previous = json.loads(source["sequence"])[0]
    return stamp(
        connector,
        source["txId"],
        source["ts_us"],
        None if previous is None else int(previous),
        value["ts_ns"],
    )


def connector_of(record: Recorded, value: Any) -> ConnectorIdentity:
    run = re.search(r"runId=([^;]*)", record.headers)
    source = value["source"]
    return ConnectorIdentity(source["name"], source["db"], source["version"], run[1] if run else "")


def image(text: str, name: str) -> str:
    """`before` or `after` as recorded: what lies between its name and the next member."""
    following = {"before": ',"after":', "after": ',"source":'}[name]
    start = text.index(f'"{name}":') + len(name) + 3
    return text[start : text.index(following, start)]


def written(headers: Headers) -> str:
    return "".join(f"{name}={bytes(value or b'').decode()};" for name, value in headers)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_row_records_are_rendered_byte_for_byte(name: str) -> None:
    ops: Counter[str] = Counter()
    for record, value in streamed_rows(name):
        source, block = value["source"], value["transaction"]
        connector = connector_of(record, value)
        render = row_renderer(connector, source["schema"], source["table"])
        rendered = render(
            value["op"],
            image(record.value, "before"),
            image(record.value, "after"),
            stamp_of(connector, value),
            source["lsn"],
            block["total_order"],
            block["data_collection_order"],
        )
        assert rendered == record.value
        ops[value["op"]] += 1
    assert ops["c"] > 0


def test_the_recordings_hold_every_kind_of_change() -> None:
    ops = {value["op"] for name in NAMES for _, value in streamed_rows(name)}
    assert ops == {"c", "u", "d"}


@pytest.mark.parametrize("name", NAMES)
def test_begin_and_end_are_rendered_byte_for_byte(name: str) -> None:
    seen = Counter[str]()
    for record in recorded(name):
        if not record.topic.endswith(".transaction"):
            continue
        value = json.loads(record.value)
        xid, lsn = map(int, value["id"].split(":"))
        if value["status"] == "BEGIN":
            rendered = begin_record(xid, lsn, value["ts_ms"])
        else:
            counts = [(each["data_collection"], each["event_count"]) for each in value["data_collections"]]
            rendered = end_record(xid, lsn, value["ts_ms"], counts)
        assert rendered == (record.key, record.value)
        seen[value["status"]] += 1
    assert seen["BEGIN"] == seen["END"] > 0


def test_headers_are_those_of_the_recording() -> None:
    for record, value in streamed_rows("insert_update_delete_key_update"):
        connector = connector_of(record, value)
        key = re.search(r"__debezium\.(\w+)=Struct\{id=(\d+)\}", record.headers)
        headers = connector.headers()
        if key and key[1] == "newkey":
            headers = connector.new_key_headers({"id": int(key[2])})
        elif key:
            headers = connector.old_key_headers({"id": int(key[2])})
        assert written(headers) == record.headers


def test_rows_of_a_table_give_the_recorded_keys_values_tombstones_and_headers() -> None:
    """Transactions 737 to 739 of the recording: insert, change of the key, delete."""
    schema = (
        "CREATE TABLE inv.a (id bigint PRIMARY KEY, v text, n numeric(10, 2), ts timestamptz, d int, b text);"
    )
    (table,) = parse_catalog({"schema.sql": schema}).tables
    changes: list[Change] = [
        Insert("inv.a", {"id": 11, "v": "x"}),
        Update("inv.a", 11, {"id": 12}),
        Delete("inv.a", 12),
    ]
    wanted = [
        record
        for record in recorded("insert_update_delete_key_update")
        if record.topic == "dbs.inv.a" and record.key in ('{"id":11}', '{"id":12}')
    ]
    values = [json.loads(record.value) for record in wanted]
    firsts = (0, 1, 4)
    put: list[Recorded] = []
    rows = TableRows(
        connector_of(wanted[0], values[0]),
        table,
        lambda topic, value, key, headers: put.append(
            Recorded(topic, key, value or "null", written(headers))
        ),
    )
    for operation, at in zip(changes, firsts, strict=True):
        value = values[at]
        rows.apply(
            operation, stamp_of(ConnectorIdentity("dbs", "postgres"), value), value["source"]["lsn"], 1, 1
        )
    assert len(put) == len(wanted) == 6
    for made, original in zip(put, wanted, strict=True):
        assert without_render_time(made) == without_render_time(original)


def without_render_time(record: Recorded) -> Recorded:
    """The connector renders each record at a moment of its own, the generator a transaction at one."""
    return record._replace(value=re.sub(r'("op":"."),.*', r"\1", record.value))


def test_an_old_row_without_replica_identity_full_has_its_key_only() -> None:
    schema = "CREATE TABLE s.t (id bigint PRIMARY KEY, a text NOT NULL, b int NOT NULL, c text);"
    made = images_of_a_delete(schema, {"id": 1, "a": "x", "b": 2, "c": "y"})
    assert made == '{"id":1,"a":"","b":0,"c":null}'


def test_an_old_row_with_replica_identity_full_has_all_columns() -> None:
    schema = (
        "CREATE TABLE s.t (id bigint PRIMARY KEY, a text NOT NULL, b boolean, c numeric(5, 1));"
        "ALTER TABLE s.t REPLICA IDENTITY FULL;"
    )
    made = images_of_a_delete(schema, {"id": 1, "a": 'a "b" \\ \n\x1f é', "b": True, "c": None})
    assert made == '{"id":1,"a":"a \\"b\\" \\\\ \\n\\u001f é","b":true,"c":null}'


def images_of_a_delete(schema: str, row: dict[str, Any]) -> str:
    (table,) = parse_catalog({"schema.sql": schema}).tables
    values: list[str | None] = []
    connector = ConnectorIdentity("p")
    rows = TableRows(connector, table, lambda _topic, value, _key, _headers: values.append(value))
    at = stamp(connector, 1, 1_000_000, None, 1_000_000_000)
    rows.apply(Insert("s.t", row), at, 100, 1, 1)
    rows.apply(Delete("s.t", 1), at, 200, 2, 2)
    assert values[2] is None
    return image(values[1] or "", "before")
