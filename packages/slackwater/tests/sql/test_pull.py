"""DDL pulled from a real catalogue, and dumped."""

# ruff: noqa: E501 - SQL on few lines

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slackwater.sql.catalog import Column
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


DUMPED = """
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE SCHEMA "Odd";
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE "Odd".mood AS ENUM ('x');
CREATE TYPE address AS (street text, number int); CREATE TYPE floats AS RANGE (subtype = float8);
CREATE DOMAIN year AS int CHECK (VALUE > 1900); CREATE DOMAIN tags AS text[]; CREATE DOMAIN "Odd".fun AS mood;
CREATE FUNCTION doubled(a int) RETURNS int LANGUAGE sql IMMUTABLE
    BEGIN ATOMIC SELECT CASE WHEN a > 0 THEN a * 2 END; END;
CREATE PROCEDURE p() LANGUAGE plpgsql AS $x$ BEGIN CREATE TABLE y (a int); END $x$;
CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE FUNCTION e() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN NULL; END $$;
CREATE TABLE person (id int GENERATED ALWAYS AS IDENTITY, name citext COLLATE "C" NOT NULL DEFAULT 'it''s;',
    home address, born year, tags tags, years year[], span floats, m "Odd".mood, f "Odd".fun, h hstore[], l ltree,
    b bit varying(3), c "char", i interval day to second(3), money money, n numeric(50,2)[] NOT NULL, o int4range,
    serial bigserial, twice int GENERATED ALWAYS AS (doubled(1)) STORED, t time(3) with time zone, u name, v xml,
    CONSTRAINT person_key PRIMARY KEY (id), EXCLUDE USING gist (o WITH &&), CHECK (born > 0), UNIQUE (name, id));
COMMENT ON TABLE person IS 'CREATE TABLE no (a int);'; COMMENT ON COLUMN person.name IS E'\\restrict\n';
CREATE TABLE author (books int DEFAULT 1, born year NOT NULL) INHERITS (person);
CREATE TABLE payment (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE payment_1 PARTITION OF payment FOR VALUES FROM ('2022-01-01') TO (MAXVALUE);
ALTER TABLE payment_1 REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX "both" ON person (name, id); ALTER TABLE person REPLICA IDENTITY USING INDEX "both";
CREATE INDEX ON person ((name || 'x')) WHERE born > 1950; CREATE STATISTICS st ON id, name FROM person;
CREATE VIEW v AS SELECT id, CASE WHEN born > 0 THEN 1 END AS one FROM person;
CREATE MATERIALIZED VIEW mv AS SELECT 1 AS one; CREATE RECURSIVE VIEW r (n) AS SELECT 1;
CREATE RULE ru AS ON INSERT TO payment DO ALSO (SELECT 1; SELECT 2);
CREATE TRIGGER t BEFORE UPDATE ON person FOR EACH ROW EXECUTE FUNCTION g();
CREATE EVENT TRIGGER et ON ddl_command_end EXECUTE FUNCTION e();
CREATE AGGREGATE total (int) (SFUNC = int4pl, STYPE = int); CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int,
    FUNCTION = int4eq); CREATE CAST (address AS text) WITH INOUT; CREATE COLLATION co FROM "C";
CREATE TEXT SEARCH CONFIGURATION ts (COPY = english); CREATE PUBLICATION pub FOR TABLE person;
ALTER TABLE person ENABLE ROW LEVEL SECURITY; CREATE POLICY po ON person USING (true);
ALTER TABLE person CLUSTER ON person_key; ALTER TABLE person ALTER name SET STATISTICS 10;
GRANT SELECT ON person TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE ft (a int) SERVER s;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
"""


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


@pytest.mark.integration
def test_what_pg_dump_writes_declares_what_the_catalogue_has(connection: "psycopg.Connection") -> None:
    import psycopg

    from slackwater.dev.postgres import find_postgres

    connection.execute("CREATE DATABASE dumped")
    at = connection.info
    dsn = f"postgresql://{at.user}@{at.host}:{at.port}/dumped"
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute(DUMPED)
        program = next(find_postgres(None)).path.with_name("pg_dump")
        names = find_tables(database)
        catalogue = parse_catalog({"": pull_schema(database, names, keeps_generated=True)})
    for options in ((), ("--clean", "--if-exists", "--create")):
        argv = [str(program), "--schema-only", *options, dsn]
        dump = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        written = {table.full_name: table for table in parse_catalog({"dump.sql": dump}).tables}
        assert set(written) == {*names, "public.payment_1", "public.unlogged"}
        for table in catalogue.tables:
            own = written[table.full_name]
            assert (own.primary_key, own.identity_index) == (table.primary_key, table.identity_index)
            assert [_without_default(column) for column in own.columns] == list(
                map(_without_default, table.columns)
            )
        assert written["public.payment_1"].replica_identity_full
        assert written["public.person"].children == ("public.author",)


def _without_default(column: Column) -> tuple[object, ...]:
    """What a column is, but the DEFAULTs that only a dump has, and the words of a refusal."""
    of = column.type
    return (column.name, str(of).removeprefix("public."), of.kind, of.is_supported, column.nullable)
