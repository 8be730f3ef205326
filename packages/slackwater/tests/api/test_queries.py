"""SQL over views of several outputs at one commit; outputs answer as a test decides.

Real topics, tables and lakes are in ``packages/slackwater/tests/cli/test_read_integration.py``, all types in
``packages/slackwater/tests/client/test_same_documents.py``.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from slackwater.api import open_views
from slackwater.client import ReadableStates, StateNotKeptError, TypedRows, ViewSnapshot, VisibleCommit
from slackwater.client.snapshot import Key
from slackwater.protocol import CommitPosition, ConfigError, Lease

AT = CommitPosition(1, 200)
LEASE = Lease(
    id="4f",
    source="inv",
    timeline=1,
    commit_lsn=200,
    pipelines=("p",),
    holder="",
    taken_ms=0,
    expires_ms=2**50,
)


@dataclass(eq=False)
class Output:
    """An output whose views have these rows."""

    held: dict[str, TypedRows]
    pipeline: str = "p"
    asked: list[tuple[str, CommitPosition]] = field(default_factory=list)

    def views(self) -> Sequence[str]:
        return list(self.held)

    def newest(self) -> VisibleCommit | None:
        raise NotImplementedError

    def states(self, views: Sequence[str]) -> ReadableStates | None:
        raise NotImplementedError

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        raise NotImplementedError

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        self.asked.append((view, at))
        return self.held[view]

    def close(self) -> None: ...


def documents(*rows: object, types: dict[str, str] | None = None, source: str = "inv") -> TypedRows:
    return TypedRows(source, types or {}, [json.dumps(row).encode() for row in rows])


def described(database: duckdb.DuckDBPyConnection, view: str) -> dict[str, str]:
    found = database.sql(f"FROM {view}")
    return dict(zip(found.columns, map(str, found.types), strict=True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_topics_tables_and_lakes_are_joined_at_the_commit_of_a_lease(folder: Path) -> None:
    topic = Output({"inv.views.orders": documents({"id": 1, "total": "3.50"}, {"id": 2, "total": None})})
    table = Output(
        {"lines": documents({"id": 1, "price": "1.25"}, types={"id": "bigint", "price": "numeric(9,2)"})}
    )
    lake = Output({"shop.names": TypedRows("inv", table=pa.table({"id": [1, 2], "name": ["a", "b"]}))})
    with open_views([topic, table, lake], at=LEASE) as database:
        joined = "SELECT name, price FROM orders JOIN lines USING (id) JOIN shop.names USING (id)"
        assert [(name, str(price)) for name, price in database.sql(joined).fetchall()] == [("a", "1.25")]
        for name in ('"inv.views.orders"', "orders", '"shop.names"', "names", "shop.names"):
            assert len(database.sql(f"FROM {name}").fetchall()) == 2, name
        assert list(folder.iterdir()), "what is copied is not in memory"
    assert topic.asked + table.asked + lake.asked == [
        ("inv.views.orders", AT),
        ("lines", AT),
        ("shop.names", AT),
    ]
    assert not list(folder.iterdir())


def test_of_a_table_columns_have_the_types_of_the_table() -> None:
    row = {"b": "AP8=", "j": '{"a": [1.10]}', "n": 2**100, "t": "2026-11-20T10:11:12.5Z", "x": "y", 'q"': 1}
    types = {
        "b": "bytea",
        "j": "jsonb",
        "n": "numeric(39,0)",
        "t": "timestamp with time zone",
        "x": "text",
        'q"': "smallint",
    }
    with open_views([Output({"v": documents(row, dict.fromkeys(row), types=types)})], at=AT) as database:
        assert described(database, "v") == {
            "b": "BLOB",
            "j": "JSON",
            "n": "HUGEINT",
            "t": "TIMESTAMP WITH TIME ZONE",
            "x": "VARCHAR",
            'q"': "SMALLINT",
        }
        first, second = database.sql("FROM v").fetchall()
        assert (first[:3], first[4:]) == ((b"\0\xff", '{"a": [1.10]}', 2**100), ("y", 1))
        assert second == (None,) * 6
        assert database.sql("SELECT count(*) FROM v WHERE t = '2026-11-20 12:11:12.5+02'").fetchall() == [
            (1,)
        ]


def test_of_a_topic_columns_have_the_types_of_json_and_no_number_loses_a_digit() -> None:
    rows = (
        {"i": 2**100, "f": 1.5, "s": "x", "b": True, "n": {"a": 12345678901234567890123}, "l": [1], "m": 1},
        {"i": -1, "f": 2, "s": None, "b": None, "n": None, "l": None, "m": "x", "later": 1},
    )
    with open_views([Output({"v": documents(*rows)})], at=AT) as database:
        types = {"i": "HUGEINT", "f": "DOUBLE", "s": "VARCHAR", "b": "BOOLEAN", "n": "JSON", "l": "JSON"}
        found = described(database, "v")
        assert {name: found[name] for name in types} == types
        (first, second) = database.sql("SELECT i, f, s, b, n, l, m, later FROM v ORDER BY later").fetchall()
    assert second[:4] == (2**100, 1.5, "x", True)
    assert (second[4], second[5]) == ('{"a":12345678901234567890123}', "[1]")
    assert first == (-1, 2.0, None, None, None, None, '"x"', 1)


def test_a_view_without_rows_can_be_named() -> None:
    with open_views([Output({"v": documents(), "w": documents(types={"id": "bigint"})})], at=AT) as database:
        assert database.sql("SELECT count(*) FROM v").fetchall() == [(0,)]
        assert described(database, "w") == {"id": "BIGINT"}


def test_many_documents_are_copied_in_parts() -> None:
    asked = []

    def endless() -> Iterator[bytes]:
        for number in range(25_000):
            asked.append(number)
            yield b'{"id": %d}' % number

    output = Output({"v": TypedRows("inv", {"id": "bigint"}, endless())})
    with open_views([output], at=AT) as database:
        assert database.sql("SELECT count(*), sum(id) FROM v").fetchall() == [(25_000, sum(range(25_000)))]


def test_a_name_that_two_views_have_is_none_and_only_views_that_are_asked_for_are_read() -> None:
    one, two = Output({"a.v": documents({"x": 1}), "a.w": documents({"x": 1})}), Output({"b.V": documents()})
    with open_views([one, two], at=AT) as database:
        assert database.sql('SELECT x FROM a.v UNION ALL SELECT x FROM "a.v"').fetchall() == [(1,), (1,)]
        with pytest.raises(duckdb.CatalogException, match="Table with name v does not exist"):
            database.sql("FROM v").fetchall()
    one.asked.clear()
    with open_views([one, two], ["a.w"], at=AT):
        assert one.asked == [("a.w", AT)]


def test_a_variable_of_the_program_is_no_view() -> None:
    other = pa.table({"id": [1]})
    with (
        open_views([Output({"v": documents()})], at=AT) as database,
        pytest.raises(duckdb.CatalogException, match="other does not exist"),
    ):
        database.sql("FROM other").fetchall()
    assert len(other)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (TypedRows("inv", documents=[b"\0\0\0\0\7avro"]), "view 'v' of pipeline 'p' cannot be queried"),
        (TypedRows("inv", documents=[b"\xff"]), "cannot be queried"),
        (TypedRows("inv", documents=[b"[1]"]), "its documents are not JSON objects"),
        (documents({"id": "x"}, types={"id": "bigint"}), "Could not convert string 'x' to INT64"),
        (documents({"id": 1}, source="shop"), "different sources: lease 4f of inv, p of shop"),
    ],
)
def test_what_cannot_be_queried_is_refused_by_name(rows: TypedRows, problem: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=problem), open_views([Output({"v": rows})], at=LEASE):
        pass
    assert not list(folder.iterdir())


def test_views_of_two_databases_are_refused() -> None:
    outputs = [Output({"v": documents()}), Output({"w": documents(source="shop")}, "q")]
    with pytest.raises(ConfigError, match="p of inv, q of shop"), open_views(outputs, at=AT):
        pass


def test_a_lease_that_is_over_reads_nothing() -> None:
    output = Output({"v": documents()})
    over = replace(LEASE, expires_ms=1)
    with pytest.raises(StateNotKeptError, match="lease 4f ended"), open_views([output], at=over):
        pass
    assert output.asked == []


def test_a_state_that_is_removed_while_it_is_copied_is_no_part_of_an_answer(folder: Path) -> None:
    def removed() -> Iterator[bytes]:
        yield b'{"id": 1}'
        raise StateNotKeptError("removed")

    output: Any = Output({"v": documents({"id": 1}), "w": TypedRows("inv", {}, removed())})
    with pytest.raises(StateNotKeptError, match="removed"), open_views([output], at=AT):
        pass
    assert not list(folder.iterdir())
