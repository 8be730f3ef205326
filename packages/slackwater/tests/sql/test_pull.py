"""DDL pulled from a real catalogue."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slackwater.sql.errors import MissingTablesError
from slackwater.sql.postgres import find_tables, parse_catalog, published_by_partition, pull_schema

if TYPE_CHECKING:
    import psycopg

DDL = """
CREATE SCHEMA inv;
CREATE TYPE inv.mood AS ENUM ('sad', 'it''s ok');
CREATE DOMAIN inv.price AS numeric(8,2);
CREATE TABLE inv.kinds (
    id bigserial PRIMARY KEY, a smallint NOT NULL, b integer, c boolean, d real, e double precision,
    f numeric(12,2), g numeric, h text, i varchar(10), j char(5), k date, l timestamp, m timestamp(3),
    n timestamptz, o time, p time(0), q uuid, r json, s jsonb, t bytea, u inv.mood, v inv.price, w integer[],
    x text[] NOT NULL, y numeric(6,2)[], z inv.mood[], aa interval, ab inet, ac varchar, ad "char",
    computed numeric(14,2) NOT NULL GENERATED ALWAYS AS (f * 2) STORED, dropped int
);
ALTER TABLE inv.kinds DROP COLUMN dropped;
ALTER TABLE inv.kinds REPLICA IDENTITY FULL;
CREATE TABLE inv."Odd Name" ("B" integer, "a-b" text, PRIMARY KEY ("a-b", "B"));
CREATE TABLE keyless (a int);
"""
COMPUTED = "computed numeric(14,2) NOT NULL GENERATED ALWAYS AS (f * 2) STORED"
WANTED = ["inv.kinds", "inv.Odd Name", "keyless"]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[psycopg.Connection]":
    import psycopg

    from slackwater.dev import PostgresServer

    folder: Path = tmp_path_factory.mktemp("postgres")
    server = PostgresServer(folder)
    try:
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as connected:
            connected.execute(DDL)
            yield connected
    finally:
        server.stop()
        server.delete_data()


@pytest.mark.integration
def test_pulled_schema_declares_what_the_ddl_declared(connection: "psycopg.Connection") -> None:
    pulled = parse_catalog({"pulled.sql": pull_schema(connection, WANTED)})

    declared = DDL.replace(f",\n    {COMPUTED}, dropped int", "").replace(
        "ALTER TABLE inv.kinds DROP COLUMN dropped;", ""
    )
    assert set(pulled.tables) == set(parse_catalog({"declared.sql": declared}).tables)


@pytest.mark.integration
def test_pulled_schema_is_ddl_that_postgres_accepts_and_gives_back(connection: "psycopg.Connection") -> None:
    pulled = pull_schema(connection, WANTED, keeps_generated=True)

    with connection.transaction(force_rollback=True):
        connection.execute("DROP SCHEMA inv CASCADE; DROP TABLE keyless; CREATE SCHEMA inv")
        connection.execute(pulled)
        assert pull_schema(connection, list(reversed(WANTED)), keeps_generated=True) == pulled


@pytest.mark.full
@pytest.mark.integration
def test_a_name_that_is_a_keyword_is_read_by_postgres_and_duckdb_as_it_is(
    connection: "psycopg.Connection",
) -> None:
    import duckdb

    with duckdb.connect() as tables:
        words = {word for (word,) in tables.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()}
        words |= {word for (word,) in connection.execute("SELECT word FROM pg_get_keywords()").fetchall()}
        # A schema of the name of a database has no name of its own in DuckDB.
        query = "SELECT database_name FROM duckdb_databases()"
        words -= {name for (name,) in tables.execute(query).fetchall()}
        with connection.transaction(force_rollback=True):
            for word in words:
                quoted = f'"{word}" int, PRIMARY KEY ("{word}")'
                connection.execute(f'CREATE TABLE inv."{word}" ({quoted}); CREATE SCHEMA "{word}"')
                connection.execute(f'CREATE TABLE "{word}".t (id int)')
            names = [*(f"inv.{word}" for word in words), *(f"{word}.t" for word in words)]
            pulled = pull_schema(connection, names)
            found = {table.full_name: table for table in parse_catalog({"pulled.sql": pulled}).tables}
            assert set(found) == set(names)
            assert all(found[f"inv.{word}"].primary_key == (word,) for word in words)
            for word in words:
                connection.execute(f'DROP SCHEMA "{word}" CASCADE; DROP TABLE inv."{word}"')
                connection.execute(f'CREATE SCHEMA "{word}"')
                tables.execute(f'CREATE SCHEMA IF NOT EXISTS "{word}"')
            tables.execute("CREATE SCHEMA inv")
            connection.execute(pulled)
            tables.execute(pulled)
            assert pull_schema(connection, names) == pulled


@pytest.mark.integration
def test_generated_columns_are_left_out_with_the_reason(connection: "psycopg.Connection") -> None:
    pulled = pull_schema(connection, ["inv.kinds"])

    assert "-- Left out: computed numeric(14,2). Connectors do not send generated columns; " in pulled
    assert "compute it in the view: (f * (2)::numeric)" in pulled
    assert f"    {COMPUTED.partition('GENERATED')[0]}GENERATED" in pull_schema(
        connection, ["inv.kinds"], keeps_generated=True
    )


@pytest.mark.integration
def test_a_partitioned_table_is_published_under_its_own_name_or_said_to_be_not(
    connection: "psycopg.Connection",
) -> None:
    ddl = "CREATE TABLE inv.parted (a int PRIMARY KEY) PARTITION BY RANGE (a);"
    tables = ["inv.kinds", "inv.parted"]
    with connection.transaction(force_rollback=True):
        connection.execute(f"{ddl} CREATE TABLE inv.parted_1 PARTITION OF inv.parted DEFAULT")
        assert published_by_partition(connection, tables) == ("inv.parted",)
        assert "-- Table inv.parted is partitioned" in pull_schema(connection, tables)
        connection.execute("CREATE PUBLICATION p FOR TABLE inv.parted")
        assert published_by_partition(connection, tables) == ("inv.parted",)
        connection.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
        assert published_by_partition(connection, tables) == ()
        assert "partitioned" not in pull_schema(connection, tables)


@pytest.mark.integration
def test_an_index_that_identifies_old_rows_without_their_key_is_declared(
    connection: "psycopg.Connection",
) -> None:
    ddl = (
        "CREATE TABLE inv.t (id int PRIMARY KEY, email text NOT NULL UNIQUE); "
        "CREATE UNIQUE INDEX pair ON inv.t (email, id); ALTER TABLE inv.t REPLICA IDENTITY USING INDEX"
    )
    for index, found in (("t_email_key", "t_email_key"), ("t_pkey", ""), ("pair", "")):
        with connection.transaction(force_rollback=True):
            connection.execute(f"{ddl} {index}")
            (table,) = parse_catalog({"pulled.sql": pull_schema(connection, ["inv.t"])}).tables
            assert (table.identity_index, table.replica_identity_full) == (found, False)


@pytest.mark.integration
def test_columns_whose_values_records_do_not_contain_are_noted(connection: "psycopg.Connection") -> None:
    connection.execute(
        "CREATE TABLE inv.lossy (id int PRIMARY KEY, ratios real[], names text[] DEFAULT '{}', "
        "level int DEFAULT 5 NOT NULL, number serial, made timestamptz DEFAULT now() NOT NULL)"
    )
    try:
        pulled = pull_schema(connection, ["inv.lossy"])
    finally:
        connection.execute("DROP TABLE inv.lossy")
    assert (
        "-- Views cannot use inv.lossy.ratios real[]: if an update leaves a large array unchanged" in pulled
    )
    assert "names text[]:" not in pulled
    assert "names text[] DEFAULT '{}'::text[]" in pulled, "a connector may write it instead of NULL"
    assert "level integer DEFAULT 5 NOT NULL" in pulled, "deletes contain it instead of the value"
    assert "nextval" not in pulled
    assert "now()" not in pulled


def test_missing_tables_are_named(connection: "psycopg.Connection") -> None:
    with pytest.raises(MissingTablesError, match=r"no table inv\.nothing, public\.orders"):
        pull_schema(connection, ["inv.nothing", "orders", "inv.kinds"])


@pytest.mark.integration
def test_the_tables_of_a_schema_or_of_all_are_found(connection: "psycopg.Connection") -> None:
    connection.execute(
        """
        CREATE SCHEMA found;
        CREATE TABLE found.b (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE found.b_1 PARTITION OF found.b FOR VALUES FROM (0) TO (10);
        CREATE TABLE found.a (id int);
        CREATE UNLOGGED TABLE found.unlogged (id int);
        CREATE VIEW found.view AS SELECT 1 AS one;
        """
    )
    assert find_tables(connection, ["found"]) == ("found.a", "found.b")
    everything = find_tables(connection)
    assert {"found.a", "found.b", "inv.kinds", "inv.Odd Name", "public.keyless"} <= set(everything)
    assert not [name for name in everything if name.startswith(("pg_", "information_schema"))]
    assert find_tables(connection, ["none"]) == ()
