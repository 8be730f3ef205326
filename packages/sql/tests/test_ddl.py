import pickle

import pytest

from slackwater_sql.catalog import Catalog
from slackwater_sql.compiler import compile_pipeline
from slackwater_sql.errors import SqlTextError
from slackwater_sql.postgres import parse_catalog


def _types(ddl: str) -> dict[str, str]:
    (table,) = parse_catalog({"t.sql": ddl}).tables
    return {column.name: column.type.name for column in table.columns}


def test_type_names_are_made_canonical() -> None:
    ddl = """CREATE TABLE IF NOT EXISTS t (
        a int2, b INT4 NOT NULL, c int8, d serial, e BOOL DEFAULT true, f float4, g float8, g2 float(10),
        h decimal(5), i NUMERIC ( 12 , 2 ), j varchar(10), k char, l "char", m timestamptz(3), n timestamp,
        o time(3) without time zone, p double  precision CHECK (p > 0), q character varying, r integer ARRAY,
        s numeric(10,2)[], t int[3], u text COLLATE "C" DEFAULT 'a, b)' NOT NULL,
        v timestamp(3) with time zone
    );"""

    assert _types(ddl) == {
        "a": "smallint", "b": "integer", "c": "bigint", "d": "integer", "e": "boolean", "f": "real",
        "g": "double precision", "g2": "real", "h": "numeric(5,0)", "i": "numeric(12,2)",
        "j": "character varying(10)", "k": "character(1)", "l": "character(1)",
        "m": "timestamp(3) with time zone", "n": "timestamp without time zone",
        "o": "time(3) without time zone", "p": "double precision", "q": "character varying",
        "r": "integer[]", "s": "numeric(10,2)[]", "t": "integer[]", "u": "text",
        "v": "timestamp(3) with time zone",
    }  # fmt: skip


def test_keys_nullability_and_replica_identity_are_read() -> None:
    (table,) = parse_catalog(
        {
            "dump.sql": """
            SET search_path = '';
            CREATE TABLE inventory."Lines" (
                a bigint, b integer NOT NULL, "C" text, d bigint GENERATED ALWAYS AS IDENTITY, e bigserial,
                CONSTRAINT ck CHECK (b > 0), UNIQUE (b), FOREIGN KEY (a) REFERENCES x (y)
            ) PARTITION BY RANGE (b);
            ALTER TABLE ONLY inventory."Lines" ADD CONSTRAINT pk PRIMARY KEY (a, "C");
            ALTER TABLE inventory."Lines" REPLICA IDENTITY FULL;
            COMMENT ON TABLE inventory."Lines" IS 'x;y';
            CREATE INDEX i ON inventory."Lines" (b);"""
        }
    ).tables

    assert (table.full_name, table.primary_key, table.replica_identity_full) == (
        "inventory.Lines",
        ("a", "C"),
        True,
    )
    nullable = {column.name: column.nullable for column in table.columns}
    assert nullable == {"a": False, "b": False, "C": False, "d": False, "e": False}


def test_enums_and_domains_of_any_file_are_types() -> None:
    (table,) = parse_catalog(
        {
            "1.sql": """CREATE TABLE t (a s.mood, b mood[] NOT NULL, c "Price", d "Price"[] NOT NULL);
                ALTER TABLE t REPLICA IDENTITY FULL;""",
            "2.sql": """CREATE TYPE s.mood AS ENUM ('a', 'b');
                CREATE DOMAIN "Price" AS numeric(8,2) CHECK (true);""",
        }
    ).tables

    assert [column.type.duckdb for column in table.columns] == [
        "VARCHAR",
        "VARCHAR[]",
        "DECIMAL(8,2)",
        "DECIMAL(8,2)[]",
    ]


@pytest.mark.parametrize(
    ("column", "identity", "reason"),
    [
        *((f"{of}[] NOT NULL", "", "REPLICA IDENTITY FULL") for of in
          ("smallint", "boolean", "real", "double precision", "oid", "numeric(8,2)", "citext", "inet", "cidr",
           "macaddr", "timestamp", "timestamp(3)", "timestamptz", "mood")),
        ("numeric[]", "FULL", "contains NaN or an infinity"),
        ("mood[]", "FULL", "contains NULL"),
        *((f"{of}[] NOT NULL", "FULL", "24:00 as 00:00") for of in ("time", "time(0)", "time(3)")),
        ("xml[]", "FULL", "does not send it"),
    ],
)  # fmt: skip
def test_an_array_of_which_records_may_contain_null_instead_is_unsupported(
    column: str, identity: str, reason: str
) -> None:
    full = "ALTER TABLE t REPLICA IDENTITY FULL;" if identity else ""
    ddl = f"CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (id bigint PRIMARY KEY, v {column}); {full}"
    (table,) = parse_catalog({"schema.sql": ddl}).tables
    assert not table.columns[1].type.is_supported
    assert table.columns[1].type.is_lost, "not even its text is shown"
    assert reason in table.columns[1].type.reason


@pytest.mark.parametrize(
    ("column", "identity"),
    [
        *((f"{of}[]", "") for of in
          ("integer", "bigint", "date", "text", "varchar(9)", "char(2)", "uuid", "json", "jsonb")),
        *((f"{of}[]", "FULL") for of in ("smallint", "real", "timestamptz", "citext", "inet")),
        ("numeric[] NOT NULL", "FULL"),
        ("mood[] NOT NULL", "FULL"),
    ],
)  # fmt: skip
def test_an_array_of_which_records_contain_every_value_is_supported(column: str, identity: str) -> None:
    full = "ALTER TABLE t REPLICA IDENTITY FULL;" if identity else ""
    ddl = f"CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (id bigint PRIMARY KEY, v {column}); {full}"
    (table,) = parse_catalog({"schema.sql": ddl}).tables
    assert table.columns[1].type.is_supported


@pytest.mark.parametrize(
    "column_type",
    ["interval", "timetz", "geometry(Point,4326)", "mood", "numeric(39,2)", "numeric(5,-2)", "numeric(3,5)",
     "bit(3)", "money", "int4range", "bytea[]", "vector(3)", "hstore", "name"],
)  # fmt: skip
def test_type_that_cannot_be_carried_exactly_is_declared_but_unsupported(column_type: str) -> None:
    (table,) = parse_catalog({"t.sql": f"CREATE TABLE t (id bigint PRIMARY KEY, x {column_type});"}).tables

    assert not table.columns[1].type.is_supported
    assert table.columns[1].type.reason


@pytest.mark.parametrize(
    ("ddl", "line", "column", "message"),
    [
        ("CREATE TABLE t (a int", 1, 19, "expected ), but the statement ends"),
        ("CREATE TABLE t", 1, 14, "no list of columns"),
        ("CREATE TABLE t (a int,\n  a text)", 2, 3, "column a is declared twice"),
        ("CREATE TABLE t (a)", 1, 17, "column a has no type"),
        ("CREATE TABLE t (LIKE x)", 1, 17, "LIKE is not supported"),
        ("CREATE TABLE t (a int);\nCREATE TABLE public.t (a int)", 2, 14, "public.t is declared twice"),
        ("\nCREATE VIEW v AS SELECT 1", 2, 1, "this statement is not supported"),
        ("ALTER TABLE t REPLICA IDENTITY FULL", 1, 13, "table public.t is not declared above"),
        (
            "CREATE TABLE t (a int); ALTER TABLE t ADD COLUMN b int",
            1,
            39,
            "this ALTER TABLE is not supported",
        ),
        (
            "CREATE TABLE t (a int); ALTER TABLE t ALTER a TYPE text",
            1,
            47,
            "this ALTER TABLE is not supported",
        ),
        ("CREATE TABLE 't", 1, 16, "is not closed"),
    ],
)
def test_mistake_is_reported_with_its_place(ddl: str, line: int, column: int, message: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        parse_catalog({"schema/t.sql": ddl})

    error = raised.value
    assert message in str(error)
    assert (error.place.path, error.place.line, error.place.column) == ("schema/t.sql", line, column)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_a_generated_column_is_declared_but_no_view_can_use_it() -> None:
    (table,) = parse_catalog(
        {
            "t.sql": """CREATE TABLE t (
                a int GENERATED ALWAYS AS IDENTITY, b int GENERATED BY DEFAULT AS IDENTITY,
                c numeric(3,1) NOT NULL GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (a));"""
        }
    ).tables

    assert [column.type.is_supported for column in table.columns] == [True, True, False]
    assert str(table.columns[2].type) == "numeric(3,1) GENERATED"
    with pytest.raises(SqlTextError, match="it is a generated column, which PostgreSQL does not write"):
        compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY a, c FROM t")], Catalog((table,)))


def test_no_files_declare_no_tables() -> None:
    assert parse_catalog({}) == Catalog(())
