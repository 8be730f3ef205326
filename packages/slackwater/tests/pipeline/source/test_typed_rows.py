"""Values of declared columns in Spark's types: exactly, or not at all."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Message
from pyspark.sql.types import StructType

from slackwater.cdc import BadInputError
from slackwater.cdc.batch import BatchTask, OffsetSpan, TransactionTable
from slackwater.cdc.changes import BatchChanges
from slackwater.pipeline.source.data_source import SlackwaterSource
from slackwater.pipeline.source.typed_rows import (
    RowImages,
    TypedRowWriter,
    TypedTable,
    typed_row_schema,
    unsupported_columns,
)
from slackwater.protocol import CommittedTransaction
from slackwater.sql.catalog import ColumnType, TypeKind
from slackwater.sql.errors import RowContradictsSchemaError
from slackwater.sql.postgres import parse_catalog
from slackwater.sql.row_codec import UNAVAILABLE, date_text, in_unknown_forms, timestamp_text, value_text

KINDS = """
CREATE TYPE mood AS ENUM ('rough', 'calm');
CREATE TABLE inv.kinds (
    id bigint, line int, small smallint, yes boolean, price numeric(38,2), amount numeric, r real,
    d double precision, note text, raw bytea, day date, at time, at_ms time(3), stamp timestamp,
    stamp_ms timestamp(3), zoned timestamptz, doc jsonb, uid uuid, prices numeric(6,2)[] NOT NULL,
    days date[], feeling mood, PRIMARY KEY (line, id)
);
ALTER TABLE inv.kinds REPLICA IDENTITY FULL;
"""
VALUES: dict[str, tuple[Any, Any]] = {
    "id": (2**63 - 1, 2**63 - 1),
    "line": (-(2**31), -(2**31)),
    "small": (-(2**15), -(2**15)),
    "yes": (True, True),
    "price": (
        "-999999999999999999999999999999999999.99",
        Decimal("-999999999999999999999999999999999999.99"),
    ),
    "amount": ("0.000000000000000001", Decimal("0.000000000000000001")),
    "r": (1.5, 1.5),
    "d": ("-Infinity", float("-inf")),
    "note": ('é"\u2028', 'é"\u2028'),
    "raw": ("3q2+7w==", b"\xde\xad\xbe\xef"),
    "day": (-719_162, date(1, 1, 1)),
    "at": (86_400_000_000, timedelta(days=1)),
    "at_ms": (1, timedelta(milliseconds=1)),
    "stamp": (253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001 - without
    "stamp_ms": (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),  # noqa: DTZ001 - without time zone
    "zoned": ("2026-11-21T10:34:56.789012Z", datetime(2026, 11, 21, 10, 34, 56, 789_012, UTC)),
    "doc": ('{"a": 1.10}', '{"a": 1.10}'),
    "uid": ("0190f5de-7d1c-7000-8000-000000000001", "0190f5de-7d1c-7000-8000-000000000001"),
    "prices": (["1.1", None, "-0.01"], [Decimal("1.10"), None, Decimal("-0.01")]),
    "days": ([0, None], [date(1970, 1, 1), None]),
    "feeling": ("rough", "rough"),
}
Record = Callable[..., Message]
Value = Callable[..., bytes]
Write = Callable[..., list[dict[str, Any]]]


def table(ddl: str, *as_text: str) -> TypedTable:
    [declared] = parse_catalog({"tables.sql": ddl}).tables
    return TypedTable(declared, as_text)


@pytest.fixture
def written(row_value: Value, record: Record) -> Write:
    """The rows that changes of one transaction become; each is the fields of an envelope."""

    def write(typed: TypedTable, *changes: dict[str, Any]) -> list[dict[str, Any]]:
        name = typed.table.full_name
        batch = BatchChanges(
            BatchTask((), TransactionTable([CommittedTransaction(7, 700, 0)])), "inv", [name]
        )
        writer = TypedRowWriter("inv", typed, typed_row_schema(typed), batch)
        values = [row_value(7, 600 + n, table=name, **change) for n, change in enumerate(changes)]
        messages = [record(value, topic=f"inv.{name}", offset=n) for n, value in enumerate(values)]
        span = OffsetSpan(f"inv.{name}", 0, 0, len(messages), 0)
        return [row for found in writer.write(iter([(span, messages)])) for row in found.to_pylist()]

    return write


def test_a_record_whose_schema_has_another_form_is_refused(written: Write) -> None:
    typed = table("CREATE TABLE s.t (id int PRIMARY KEY, at time, day date)", "day")
    for column, name in (("at", "io.debezium.time.MicroTime"), ("day", "io.debezium.time.Date")):
        fields = [{"field": "after", "fields": [{"field": column, "type": "int64", "name": name}]}]
        change = {"after": {"id": 1, "at": 5, "day": 0}, "schema": {"fields": fields}}
        assert len(written(typed, change)) == 1
        fields[0]["fields"][0]["name"] = "org.apache.kafka.connect.data.Time"  # type: ignore[index]
        with pytest.raises(BadInputError, match=f"column {column} .* as the record's schema says"):
            written(typed, change)


def test_a_change_of_a_connector_is_refused_if_only_its_writer_would_prove_the_form(written: Write) -> None:
    typed = table("CREATE TABLE s.t (id int PRIMARY KEY)")
    assert len(written(typed, {"after": {"id": 1}})) == 1
    with pytest.raises(BadInputError, match="neither a pipeline nor a service wrote"):
        written(replace(typed, takes_only_own=True), {"after": {"id": 1}})


@pytest.mark.parametrize("as_text", [(), ("at",)])
def test_a_value_of_an_unknown_connector_proves_its_form_or_its_schema_does(
    written: Write, as_text: tuple[str, ...]
) -> None:
    typed = table("CREATE TABLE s.t (id int PRIMARY KEY, at time)", *as_text)
    unknown = replace(typed, table=in_unknown_forms(typed.table))
    assert TypedTable.from_json(unknown.to_json()) == unknown, "tasks receive it as JSON"
    change = {"after": {"id": 1, "at": 5}}
    assert len(written(typed, change)) == 1
    with pytest.raises(BadInputError, match="column at"):
        written(unknown, change)
    fields = [{"field": "at", "type": "int64", "name": "io.debezium.time.MicroTime"}]
    schema = {"schema": {"fields": [{"field": "after", "fields": fields}]}}
    assert len(written(unknown, change | schema)) == 1


def test_every_kind_of_value_arrives_exactly(written: Write) -> None:
    typed = table(KINDS)
    nothing: dict[str, Any] = {**dict.fromkeys(VALUES), "id": 1, "line": 1, "prices": []}
    [row, empty] = written(typed, {"after": {n: wire for n, (wire, _) in VALUES.items()}}, {"after": nothing})

    assert row["after"] == {name: value for name, (_, value) in VALUES.items()}
    assert row["key"] == {"line": -(2**31), "id": 2**63 - 1}, "in the key's order"
    assert empty["after"] == nothing
    assert (row["before"], row["unchanged"], row["commit_lsn"], row["op"]) == (None, None, 700, "c")


def test_the_schema_says_the_types() -> None:
    fields = {f.name: f.dataType.simpleString() for f in table(KINDS).row_type}
    assert fields["price"] == "decimal(38,2)"
    assert fields["amount"] == "decimal(38,18)"
    assert (fields["stamp"], fields["zoned"], fields["at"]) == (
        "timestamp_ntz",
        "timestamp",
        "interval hour to second",
    )
    assert fields["prices"] == "array<decimal(6,2)>"


@pytest.mark.parametrize(
    ("column", "wire", "shown"),
    [
        ("day date", 2_146_033_979, "infinity"),
        ("day date", -719_163, "-719163 days"),
        ("stamp timestamp", -(2**63), "-infinity"),
        ("stamp timestamp(3)", 9_223_372_036_825_200_000, "infinity"),
        ("zoned timestamptz", "infinity", "infinity"),
        ("zoned timestamptz", "+10000-01-01T00:00:00Z", "+10000"),
        ("days date[]", [0, -2_147_472_691], "-infinity"),
    ],
)
def test_what_a_type_of_spark_cannot_hold_stops_with_its_place_and_the_way_out(
    column: str, wire: object, shown: str, written: Write
) -> None:
    name = column.split(maxsplit=1)[0]
    typed = table(f"CREATE TABLE inv.t (id bigint PRIMARY KEY, {column});")
    with pytest.raises(BadInputError) as caught:
        written(typed, {"after": {"id": 1, name: wire}})
    assert "topic inv.inv.t, partition 0, offset 0" in str(caught.value)
    assert f"column {name} " in str(caught.value)
    assert shown in str(caught.value)
    assert f"as_text=['{name}']" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "wire", "text"),
    [
        ("day date", 2_146_033_979, "infinity"),
        ("day date", 4_394_192, "14000-11-21"),
        ("stamp timestamp(3)", 1_500, "1970-01-01 00:00:01.5"),
        ("zoned timestamptz", "-infinity", "-infinity"),
        ("at time", 86_400_000_000, "24:00:00"),
        ("big numeric(60,3)", "123456789012345678901234567890123456789012345.678", None),
        ("span interval", 93_600_000_000, "93600000000"),
        ("n numeric", "NaN", "NaN"),
        ("tags int[]", [1, None], "[1,null]"),
        ("note text", None, None),
    ],
)
def test_on_request_a_column_stays_text(column: str, wire: object, text: str | None, written: Write) -> None:
    name = column.split(maxsplit=1)[0]
    typed = table(f"CREATE TABLE inv.t (id bigint PRIMARY KEY, {column});", name)
    [row] = written(typed, {"after": {"id": 1, name: wire}})
    assert row["after"] == {"id": 1, name: wire if text is None else text}


def test_columns_without_an_exact_type_are_named() -> None:
    ddl = "CREATE TABLE inv.t (id bigint PRIMARY KEY, place point, span timetz);"
    assert [c.name for c, reason in unsupported_columns(table(ddl)) if reason] == ["place", "span"]
    assert [c.name for c, _ in unsupported_columns(table(ddl, "place"))] == ["span"]


def test_an_old_row_has_the_key_only_unless_the_database_sends_all_of_it(written: Write) -> None:
    ddl = "CREATE TABLE inv.t (note text NOT NULL, id bigint PRIMARY KEY);"
    delete = {"op": "d", "before": {"id": 4, "note": ""}}
    [row] = written(table(ddl), delete)
    assert (row["key"], row["before"], row["after"]) == ({"id": 4}, {"note": None, "id": 4}, None)
    [row] = written(table(ddl + "ALTER TABLE inv.t REPLICA IDENTITY FULL;"), delete)
    assert row["before"] == {"note": "", "id": 4}


def test_values_that_an_update_left_out_are_named_and_null(written: Write) -> None:
    ddl = "CREATE TABLE inv.t (id bigint PRIMARY KEY, note text NOT NULL, big numeric(60,3), n int);"
    after = {"id": 4, "note": UNAVAILABLE, "big": UNAVAILABLE, "n": 1}
    update = {"op": "u", "after": after, "before": {"id": 4, "note": "old", "big": "1", "n": 0}}
    rows = written(table(ddl, "big"), {**update, "before": None}, {"after": after})
    for row in rows:  # the latter is an update of the primary key
        assert row["after"] == {"id": 4, "note": None, "big": None, "n": 1}
        assert row["unchanged"] == ["note", "big"]
    full = table(ddl + "ALTER TABLE inv.t REPLICA IDENTITY FULL;", "big")
    [row] = written(full, update)
    assert (row["after"]["note"], row["unchanged"]) == ("old", ["big"])


def test_an_array_of_integers_that_an_update_left_out_is_none_of_its_bytes(written: Write) -> None:
    """Debezium then writes the placeholder's bytes as numbers."""
    typed = table("CREATE TABLE inv.t (id bigint PRIMARY KEY, numbers int[]);")
    [row] = written(typed, {"op": "u", "after": {"id": 4, "numbers": list(UNAVAILABLE.encode())}})
    assert (row["after"], row["unchanged"]) == ({"id": 4, "numbers": None}, ["numbers"])


def test_a_table_without_key_has_no_key_column_and_truncate_no_rows(written: Write) -> None:
    typed = table("CREATE TABLE inv.t (note text);")
    [row, truncate] = written(typed, {"after": {"note": "x"}}, {"op": "t"})
    assert "key" not in row
    assert (truncate["before"], truncate["after"], truncate["op"]) == (None, None, "t")


def test_a_record_that_contradicts_the_declaration_stops_with_its_place(written: Write) -> None:
    with pytest.raises(BadInputError, match=r"offset 1: column id of inv\.t contradicts its declaration"):
        written(
            table("CREATE TABLE inv.t (id int PRIMARY KEY);"),
            {"after": {"id": 1}},
            {"after": {"id": "one"}},
        )


def test_the_data_source_has_the_schema_of_the_table() -> None:
    typed = table(KINDS, "amount")
    options = {"source": "inv", "bootstrap": "b", "tables": "inv.kinds", "typing": typed.to_json()}
    schema = SlackwaterSource(options).schema()
    assert isinstance(schema, StructType)
    assert schema == typed_row_schema(typed)
    after = {field.name: field for field in schema}["after"].dataType
    assert isinstance(after, StructType)
    assert after["amount"].dataType.simpleString() == "string"


@pytest.mark.parametrize(
    ("days", "text"),
    [(0, "1970-01-01"), (-719_162, "0001-01-01"), (-719_163, "0001-12-31 BC"), (-735_160, "0044-03-15 BC")],
)
def test_dates_of_any_year_are_written_as_postgresql_does(days: int, text: str) -> None:
    assert date_text(days) == text


def test_a_timestamp_before_christ_ends_with_its_era() -> None:
    assert timestamp_text(-719_163 * 86_400_000_000 + 1_000_000) == "0001-12-31 00:00:01 BC"
    assert value_text(ColumnType(TypeKind.BOOLEAN, "boolean"), b"true") == "true"


def test_a_column_kept_as_text_that_is_no_text_contradicts_its_declaration() -> None:
    images = RowImages(table("CREATE TABLE s.a (id int PRIMARY KEY, note json)", "note"))
    with pytest.raises(RowContradictsSchemaError, match="expected JSON in UTF-8"):
        images.typed("c", None, b'{"id":1,"note":"\xff"}')
