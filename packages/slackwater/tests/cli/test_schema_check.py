"""Declared tables beside those of the database."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

import slackwater.cli.commands.schema
from slackwater.cdc import captured
from slackwater.cli import main
from slackwater.cli.commands.schema import (
    SchemaDifference,
    affected,
    difference_lines,
    differences,
    pulled_catalog,
    uncaptured,
)
from slackwater.pipeline import pipeline_definition
from slackwater.sql.planner.cutting import compile_separately
from slackwater.sql.postgres import parse_catalog

DECLARED = """
CREATE TABLE s.items (id bigint PRIMARY KEY, kind text NOT NULL, price numeric(12, 2) NOT NULL, note text);
ALTER TABLE s.items REPLICA IDENTITY FULL;
"""
PIPELINES = Path(__file__).parents[4] / "pipelines"
VIEWS = {
    "prices": "SELECT TRANSACTIONALLY i.id, i.price FROM s.items i",
    "by_kind": "SELECT TRANSACTIONALLY i.kind, count(*) AS n FROM s.items i GROUP BY i.kind",
}
TABLE = "s.items"


def found(database: str) -> list[SchemaDifference]:
    catalog = parse_catalog({"schema.sql": DECLARED})
    plan = compile_separately([(f"{name}.sql", sql) for name, sql in VIEWS.items()], catalog)
    return differences(plan, catalog, parse_catalog({"the database": database}))


def changed(was: str, now: str) -> list[SchemaDifference]:
    assert was in DECLARED
    return found(DECLARED.replace(was, now))


def test_equal_tables_have_no_differences() -> None:
    assert found(DECLARED) == []
    assert list(difference_lines("p", 1, [])) == ["p: the declared tables match the database"]


@pytest.mark.parametrize(
    ("was", "now", "what", "shown", "views"),
    [
        ("note text", "note text, extra int", "extra", ("absent", "integer"), ()),
        (", note text", "", "note", ("text", "absent"), ()),
        ("note text", "note int", "note", ("text", "integer"), ()),
        (
            "numeric(12, 2)",
            "numeric(14, 2)",
            "price",
            "numeric(12,2) NOT NULL, numeric(14,2) NOT NULL",
            "prices",
        ),
        ("price numeric(12, 2) NOT NULL, ", "", "price", "numeric(12,2) NOT NULL, absent", "prices"),
        ("bigint PRIMARY KEY", "bigint NOT NULL", "PRIMARY KEY", ("id", "absent"), ("prices", "by_kind")),
        ("kind text NOT NULL", "kind text", "kind", "text NOT NULL, text", "by_kind"),
        (
            "REPLICA IDENTITY FULL",
            "REPLICA IDENTITY DEFAULT",
            "REPLICA IDENTITY",
            "FULL, DEFAULT",
            "prices, by_kind",
        ),
    ],
)
def test_a_difference_names_the_views_that_it_touches(
    was: str, now: str, what: str, shown: str | tuple[str, str], views: str | tuple[str, ...]
) -> None:
    shown = tuple(shown.split(", ")) if isinstance(shown, str) else shown  # type: ignore[assignment]
    views = tuple(views.split(", ")) if isinstance(views, str) else views
    (difference,) = changed(was, now)
    assert (difference.table, difference.what) == (TABLE, what)
    assert (difference.declared, difference.found) == shown
    assert difference.views == views


COMPUTED = "price numeric(12, 2) NOT NULL GENERATED ALWAYS AS (1) STORED"


def test_a_column_that_the_database_computes_touches_the_views_that_use_it() -> None:
    (difference,) = changed("price numeric(12, 2) NOT NULL", COMPUTED)
    assert difference.found == "numeric(12,2) GENERATED NOT NULL, which connectors do not send"
    assert difference.views == ("prices",)


def test_a_computed_column_need_not_be_declared() -> None:
    assert changed("note text", f"note text, {COMPUTED.replace('price', 'tax')}") == []


def test_a_table_whose_changes_go_to_its_partitions_touches_its_views() -> None:
    catalog = parse_catalog({"schema.sql": DECLARED})
    plan = pipeline_definition(name="p", source="inv", catalog=catalog, views=VIEWS).plan
    (difference,) = differences(plan, catalog, catalog, apart=("s.items",))
    assert difference == SchemaDifference(
        TABLE, "PARTITIONS", "one table", "published apart", ("prices", "by_kind")
    )
    lines = "\n".join(difference_lines("p", 1, [difference]))
    assert "s.items is partitioned: its changes are published under the names of its partitions" in lines
    assert "publish_via_partition_root = true" in lines


def test_a_table_whose_rows_are_not_all_in_its_topic_touches_the_views_that_use_them() -> None:
    catalog = parse_catalog({"schema.sql": DECLARED})
    plan = compile_separately([(f"{name}.sql", sql) for name, sql in VIEWS.items()], catalog)
    columns = tuple(
        captured.SeenColumn(
            name=name, number=number, type="text", type_oid=25, changed="1", is_sent=name != "price"
        )
        for number, name in enumerate(("id", "kind", "price"), 1)
    )
    table = captured.SeenTable(
        name=TABLE, oid=1, filter="(id > 1)", has_publication=True, is_published=True, columns=columns
    )
    differing = list(uncaptured(plan, captured.faults_of_table(table)))
    assert [(each.what, each.views) for each in differing] == [
        ("ROWS", ("prices", "by_kind")),
        ("price", ("prices",)),
    ]
    lines = "\n".join(difference_lines("p", 1, differing))
    assert "s.items: the publication publishes only its rows with (id > 1)" in lines
    assert "new topics" in lines


def test_a_column_that_may_be_null_may_become_not_null() -> None:
    (difference,) = changed("note text", "note text NOT NULL")
    assert difference.views == ()


def test_another_primary_key_touches_every_view_of_the_table() -> None:
    keyed = DECLARED.replace(" PRIMARY KEY", " NOT NULL").replace(
        "note text", "note text, PRIMARY KEY (kind)"
    )
    assert affected(found(keyed)) == ("prices", "by_kind")


def test_a_table_that_is_gone_touches_its_views() -> None:
    assert found("CREATE TABLE s.other (id int PRIMARY KEY);") == [
        SchemaDifference(TABLE, "TABLE", "declared", "absent", ("prices", "by_kind"))
    ]


def test_the_way_out_names_the_next_revision() -> None:
    lines = "\n".join(difference_lines("p", 2, changed("numeric(12, 2)", "numeric(14, 2)")))
    assert "affected: prices" in lines
    assert "`revision = 3`" in lines


class Nothing:
    """A database without tables."""

    def execute(self, query: str, params: Sequence[Any], /) -> "Nothing":
        return self

    def fetchall(self) -> Sequence[Sequence[Any]]:
        return []


def test_a_database_without_the_tables_gives_an_empty_catalog() -> None:
    assert pulled_catalog(Nothing(), ["s.items"]).tables == ()


@pytest.mark.parametrize(("now", "code"), [("note text, extra int", 0), ("note int", 0), ("", 1)])
def test_the_exit_code_says_whether_a_view_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], now: str, code: int
) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "pipeline.toml").write_text('name = "p"\nsource = "inv"\n')
    (tmp_path / "schema.sql").write_text(DECLARED)
    for name, sql in VIEWS.items():
        (tmp_path / "views" / f"{name}.sql").write_text(sql)
    database = DECLARED.replace("note text", now) if now else DECLARED.replace("price", "cost")
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: nullcontext(Nothing()))
    monkeypatch.setattr(
        slackwater.cli.commands.schema, "pull_schema", lambda _, tables, **__: f"-- {tables}\n{database}"
    )
    assert main.run(["schema", "check", str(tmp_path), "--postgres-url", "postgresql://x"]) == code
    said = capsys.readouterr().out
    assert ("affected: prices" if code else "no view uses what differs") in said


def test_the_tables_of_outputs_are_what_a_reader_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.sql"
    assert main.run(["schema", "outputs", str(PIPELINES / "order_totals"), "--output", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 1 tables\n"
    written = parse_catalog({"written": file.read_text()})
    declared = (PIPELINES / "order_sizes" / "schema.sql").read_text()
    assert written == parse_catalog({"declared": declared})


def test_outputs_that_are_no_tables_are_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["schema", "outputs", str(PIPELINES / "orders")]) == 1
    assert "no output can be read as a table" in capsys.readouterr().err
