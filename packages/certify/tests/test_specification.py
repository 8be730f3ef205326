"""certify.toml: what it may say, and what an error names."""

import pickle
from pathlib import Path

import pytest

from slackwater_certify import load_specification
from slackwater_certify.errors import CertifyConfigError
from slackwater_certify.specification import OutputKind, Scope
from slackwater_certify.view import load_view, row_keys
from slackwater_lab.fakes.certified import SPECIFICATION, write_specification


def test_paths_count_from_the_file_and_a_folder_names_its_certify_toml(tmp_path: Path) -> None:
    write_specification(tmp_path)
    specification = load_specification(tmp_path)
    assert specification.output.kind is OutputKind.TOPIC
    assert specification.source.schema == tmp_path / "schema.sql"
    assert specification.source.topic("shop.orders") == "shop.shop.orders"
    assert specification.source.transactions == "shop.transaction"
    assert specification.view.rows == {"shop.orders": ("id",), "shop.lines": ("order_id",)}
    assert specification.invariants[0].scope is Scope.DOCUMENT


def test_tables_may_stand_in_topics_of_other_names(tmp_path: Path) -> None:
    routed = SPECIFICATION.replace("[view]", '[source.topics]\n"shop.orders" = "all"\n\n[view]', 1)
    source = load_specification(write_specification(tmp_path, routed)).source
    assert (source.topic("shop.orders"), source.topic("shop.lines")) == ("all", "shop.shop.lines")


def test_tables_of_any_name_are_read_from_the_topics_that_debezium_makes(tmp_path: Path) -> None:
    odd = SPECIFICATION.replace('"shop.orders" =', "'shop.\"a.😀 b\"' =")
    specification = load_specification(write_specification(tmp_path, odd))
    assert specification.view.rows == {"shop.a.😀 b": ("id",), "shop.lines": ("order_id",)}
    assert specification.source.topic("shop.a.😀 b") == "shop.shop.a.___b"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('kind = "topic"', 'kind = "file"', "output.kind"),
        ('name = "orders"', "", "output.name"),
        ('name = "orders"', "name = 7", "output.name"),
        ('name = "orders"', 'name = "orders"\ncomits = "x"', "output.comits"),
        ('name = "orders"', 'name = "orders"\ntable = "x"', "output.table"),
        ("schema.sql", "other.sql", "source.schema"),
        ('key = ["id"]', "key = []", "view.key"),
        ('key = ["id"]', 'key = "id"', "view.key"),
        ('["order_id"]', '["order_id", "id"]', 'view.rows."shop.lines"'),
        ("[[invariant]]", "[invariant]", "invariant"),
        ('name = "total"', 'scope = "all"', "invariant[0].name"),
        ("[source]", "[sauce]", "source"),
        ("[view]", '[source.topics]\n"shop.orders" = 1\n[view]', "source.topics"),
    ],
)
def test_an_error_names_file_and_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    file = write_specification(tmp_path, SPECIFICATION.replace(old, new, 1))
    with pytest.raises(CertifyConfigError) as caught:
        load_specification(file)
    assert str(caught.value).startswith(f"{file}: {key}: ")
    assert caught.value.hint == "`slackwater-certify --help` shows the format"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own


@pytest.mark.parametrize("text", ["[output", "\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CertifyConfigError, match="not TOML"):
        load_specification(write_specification(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('key = ["id"]', 'key = ["nr"]', "the view has no column nr"),
        ('["order_id"]', '["order"]', 'view.rows."shop.lines"'),
        ('"shop.lines" = ["order_id"]', "", 'view.rows."shop.lines"'),
    ],
)
def test_columns_that_do_not_exist_are_named(tmp_path: Path, old: str, new: str, text: str) -> None:
    specification = load_specification(write_specification(tmp_path, SPECIFICATION.replace(old, new, 1)))
    with pytest.raises(CertifyConfigError, match=text):
        row_keys(specification, load_view(specification))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("schema.sql", "CREATE TABLE shop.orders (id nonsense);"),
        ("schema.sql", "-- nothing"),
        ("view.sql", "SELECT nothing FROM shop.orders"),
        ("view.sql", "DELETE FROM shop.orders"),
    ],
)
def test_sql_that_duckdb_refuses_is_named(tmp_path: Path, file: str, text: str) -> None:
    specification = load_specification(write_specification(tmp_path))
    (tmp_path / file).write_text(text)
    with pytest.raises(CertifyConfigError, match=file):
        load_view(specification)


def test_the_statements_of_postgresql_are_understood(tmp_path: Path) -> None:
    specification = load_specification(write_specification(tmp_path))
    (tmp_path / "schema.sql").write_text(
        """
        -- A comment; with a semicolon.
        CREATE SCHEMA shop;
        CREATE TABLE shop.orders (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total numeric(12, 2), placed_at timestamptz,
            note text DEFAULT 'a;b', extra jsonb
        );
        CREATE TABLE IF NOT EXISTS shop.lines (id bigserial PRIMARY KEY, order_id bigint, price numeric);
        CREATE INDEX ON shop.lines (order_id);
        ALTER TABLE shop.lines REPLICA IDENTITY FULL;
        """
    )
    view = load_view(specification)
    assert {name: table.primary_key for name, table in view.tables.items()} == {
        "shop.orders": ("id",),
        "shop.lines": ("id",),
    }


def test_a_table_without_primary_key_is_refused(tmp_path: Path) -> None:
    specification = load_specification(write_specification(tmp_path))
    schema = tmp_path / "schema.sql"
    schema.write_text(schema.read_text().replace("id bigint PRIMARY KEY, order_id", "id bigint, order_id"))
    with pytest.raises(CertifyConfigError, match=r"shop\.lines has no primary key"):
        load_view(specification)


def test_a_ledger_needs_the_name_of_the_table_in_it(tmp_path: Path) -> None:
    ledger = SPECIFICATION.replace(
        'name = "orders"', 'name = "/lake/s/orders"\nledger = "/lake/slackwater/p"', 1
    )
    with pytest.raises(CertifyConfigError, match=r"output\.table"):
        load_specification(write_specification(tmp_path, ledger))
    both = ledger.replace("ledger =", 'table = "s.orders"\nledger =', 1)
    found = load_specification(write_specification(tmp_path, both)).output
    assert (found.ledger, found.table) == ("/lake/slackwater/p", "s.orders")
