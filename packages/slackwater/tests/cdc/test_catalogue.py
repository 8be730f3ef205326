"""What a real catalogue shows of tables whose rows are not all in their topics."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pytest

from slackwater.cdc.captured import CapturedFinding, DeclaredTable, SeenTable
from slackwater.cdc.catalogue import examine_tables, source_findings
from slackwater.protocol import SourceTopics

if TYPE_CHECKING:
    import psycopg

    from slackwater.dev import PostgresServer

pytestmark = pytest.mark.integration

SCHEMA = """
DROP PUBLICATION IF EXISTS captured;
DROP SCHEMA IF EXISTS captured CASCADE;
DROP SCHEMA IF EXISTS elsewhere CASCADE;
CREATE SCHEMA captured;
CREATE SCHEMA elsewhere;
SET search_path = captured;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN moods AS mood;
CREATE TABLE t (id int PRIMARY KEY, a int, b text, m moods, ms mood[], unused int);
INSERT INTO t VALUES (1, 1, 'x', 'sad', '{sad}', 1), (2, 2, 'y', 'glad', '{}', 2);
CREATE TABLE r (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);
CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);
CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20);
INSERT INTO r VALUES (1, 1), (11, 1);
CREATE PUBLICATION captured FOR TABLE t, r WITH (publish_via_partition_root = true);
"""
USED = {"captured.t": {"id", "a", "b", "m", "ms"}, "captured.r": {"id", "a"}}


@pytest.fixture
def database(postgres_server: "PostgresServer") -> "Iterator[psycopg.Connection]":
    import psycopg

    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(SCHEMA)
        for role in ("plain_reader", "another"):
            statement = f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN END $$"
            connection.execute(statement.encode())
        yield connection


def look(
    connection: "psycopg.Connection",
    before: dict[str, SeenTable],
    *,
    user: str = "",
    publication: str = "captured",
    added: Collection[str] = (),
    keys: Mapping[str, Collection[str]] = {},
    declared: Mapping[str, object] = {},
) -> tuple[dict[str, SeenTable], list[CapturedFinding]]:
    used, topics = USED | {"captured.t": USED["captured.t"] | set(added)}, SourceTopics("inv")
    compared, found = examine_tables(
        connection,
        used,
        before,
        topics=topics,
        publication=publication,
        user=user,
        declared={
            "captured.t": DeclaredTable(keys.get("captured.t", ()), declared),
            "captured.r": DeclaredTable(keys.get("captured.r", ())),
        },
    )
    # As it is kept between two looks.
    return msgspec.json.decode(msgspec.json.encode(compared), type=dict[str, SeenTable]), found


def test_a_table_whose_rows_are_all_in_its_topic_has_no_fault(database: "psycopg.Connection") -> None:
    assert look(database, {})[1] == []
    database.execute(
        "ALTER TABLE t ALTER a SET NOT NULL; CREATE UNIQUE INDEX pair ON t (a, id) INCLUDE (b);"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX pair; ALTER TABLE r1 REPLICA IDENTITY USING INDEX r1_pkey"
    )
    assert look(database, {})[1] == [], "these indexes contain the primary key"
    assert look(database, {}, publication="another")[1] == []


_UNIQUE = "ALTER TABLE {0} ALTER a SET NOT NULL, ADD UNIQUE (a);"
_IDENTITY = _UNIQUE + "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_a_key"
FAULTS = {
    "ALTER PUBLICATION captured SET TABLE t WHERE (id > 1), r": "publishes only its rows with (id > 1)",
    "ALTER PUBLICATION captured SET TABLE t (id, b, m, ms), r": "does not contain column a",
    "ALTER PUBLICATION captured SET TABLE r": "the publication does not contain it",
    "ALTER PUBLICATION captured SET (publish = 'insert, update')": "does not publish delete, truncate",
    "ALTER PUBLICATION captured SET (publish_via_partition_root = false)": "the names of its partitions",
    "ALTER PUBLICATION captured SET TABLE t, r1": "the publication does not contain it",
    "ALTER PUBLICATION captured DROP TABLE t; ALTER TABLE t SET UNLOGGED": "it is unlogged",
    "CREATE UNLOGGED TABLE r3 PARTITION OF r FOR VALUES FROM (20) TO (30)": "captured.r3 is unlogged",
    "CREATE TABLE child () INHERITS (t)": "child inherit from it",
    "ALTER TABLE r REPLICA IDENTITY FULL": "captured.r1 does not have the table's REPLICA IDENTITY FULL",
    _IDENTITY.format("t"): "deletes and updates of captured.t do not contain the primary key",
    _IDENTITY.format("r1"): "deletes and updates of captured.r1 do not contain the primary key",
    "ALTER TABLE t ENABLE ROW LEVEL SECURITY": "row-level security hides rows",
    "DROP TABLE t; CREATE VIEW t AS SELECT 1 AS id": "it is a view",
    "DROP TABLE t; CREATE MATERIALIZED VIEW t AS SELECT 1 AS id": "it is a materialised view",
    "DROP TABLE t": "the database has no such table",
}


@pytest.mark.parametrize("statement", FAULTS)
def test_what_keeps_rows_from_a_topic_is_named(database: "psycopg.Connection", statement: str) -> None:
    database.execute(statement.encode())

    found = look(database, {}, user="plain_reader")[1]

    assert any(FAULTS[statement] in each.text for each in found), found
    assert all(each.hint for each in found)


def test_a_column_that_a_view_uses_and_the_database_has_not_is_named_at_the_first_look(
    database: "psycopg.Connection",
) -> None:
    database.execute("ALTER TABLE t DROP a")

    (found,) = look(database, {})[1]

    assert (found.column, found.text) == ("a", "column a: the database has no such column")
    assert "schema pull" in found.hint


@pytest.mark.parametrize(
    ("statement", "value", "is_so"),
    [
        ("ALTER TABLE t ADD COLUMN n text", None, True),
        ("ALTER TABLE t ADD COLUMN n text DEFAULT 'x'", "x", True),
        ("ALTER TABLE t ADD COLUMN n text DEFAULT 'x'; ALTER TABLE t ALTER n SET DEFAULT 'y'", "x", True),
        ("ALTER TABLE t ADD COLUMN n boolean NOT NULL DEFAULT true", True, True),
        ("ALTER TABLE t ADD COLUMN n numeric(8,2) DEFAULT 1.5", "1.50", True),
        ("ALTER TABLE t ADD COLUMN n int; INSERT INTO t VALUES (3, 3, 'z', 'sad', '{}', 3, 3)", None, True),
        ("ALTER TABLE t ADD COLUMN n text DEFAULT 'x'", None, False),
        ("ALTER TABLE t ADD COLUMN n text", "x", False),
        ("ALTER TABLE t ADD COLUMN n text DEFAULT 'y'", "x", False),
        ("ALTER TABLE t RENAME COLUMN unused TO n", None, False),
    ],
)
def test_a_column_that_is_declared_as_added_has_the_declared_value_in_rows_from_before(
    database: "psycopg.Connection", statement: str, value: object, is_so: bool
) -> None:
    before = look(database, {})[0]
    for each in statement.split(";"):  # each in a transaction of its own
        database.execute(each.encode())
    for known in ({}, before):
        found = look(database, known, added=["n"], declared={"n": value})[1]
        assert [each.column for each in found] == ([] if is_so else ["n"])
    database.execute("UPDATE t SET n = n")
    assert look(database, {}, added=["n"], declared={"n": value})[1] == [], "events tell its values"


KEYS = {
    # what the database has instead of the primary key: whether a declared key (a, b) is one
    "ADD PRIMARY KEY (a, b)": True,
    "ALTER a SET NOT NULL, ALTER b SET NOT NULL, ADD UNIQUE (b, a)": True,
    "ALTER a SET NOT NULL, ADD UNIQUE (a)": True,
    "ADD UNIQUE (a, b)": False,
    "ALTER a SET NOT NULL, ALTER b SET NOT NULL": False,
    "ADD PRIMARY KEY (a, id)": False,
    "ALTER id SET NOT NULL": False,
}


@pytest.mark.parametrize("has", KEYS)
def test_a_declared_key_that_is_none_in_the_database_is_named(
    database: "psycopg.Connection", has: str
) -> None:
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute(f"ALTER TABLE t {has}".encode())

    found = look(database, {}, keys={"captured.t": ("a", "b")})[1]

    assert [each.text.partition(" in the")[0] for each in found] == (
        [] if KEYS[has] else ["its declared primary key (a, b) is neither one"]
    )


@pytest.mark.parametrize(
    "statement",
    ["CREATE UNIQUE INDEX u ON t (a, b) WHERE id > 0", "CREATE UNIQUE INDEX u ON t (a, (b || ''))"],
)
def test_an_index_over_some_rows_or_over_what_is_computed_is_no_key(
    database: "psycopg.Connection", statement: str
) -> None:
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL, ALTER a SET NOT NULL, ALTER b SET NOT NULL")
    database.execute(statement.encode())

    (found,) = look(database, {}, keys={"captured.t": ("a", "b")})[1]

    assert "is neither" in found.text


def test_a_declared_key_with_columns_that_old_rows_do_not_tell_is_named(
    database: "psycopg.Connection",
) -> None:
    keys = {"captured.t": ("id", "a"), "captured.r": ("id",)}
    (found,) = look(database, {}, keys=keys)[1]
    assert (
        "deletes and updates of captured.t do not contain the primary key (id, a), but only id" in found.text
    )

    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert look(database, {}, keys=keys)[1] == []


def test_a_user_whom_row_level_security_does_not_concern_reads_all_rows(
    database: "psycopg.Connection",
) -> None:
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")

    assert look(database, {}, user="postgres")[1] == []
    assert look(database, {}, user="nobody of this name")[1] == []


ESCAPE, HEX = "bytea_output = 'escape'", "bytea_output = 'hex'"
SETTINGS = {
    # from those that count most to those that count least, and the columns whose values are written otherwise
    (f"ROLE plain_reader IN DATABASE {{0}} SET {ESCAPE}", f"ROLE plain_reader SET {HEX}"): ["f", "g"],
    (f"ROLE plain_reader IN DATABASE {{0}} SET {HEX}", f"ROLE plain_reader SET {ESCAPE}"): [],
    (f"ROLE plain_reader SET {ESCAPE}", f"DATABASE {{0}} SET {HEX}"): ["f", "g"],
    (f"ROLE plain_reader SET {HEX}", f"DATABASE {{0}} SET {ESCAPE}"): [],
    (f"DATABASE {{0}} SET {ESCAPE}", f"ROLE ALL SET {HEX}"): ["f", "g"],
    (f"ROLE ALL SET {ESCAPE}", f"SYSTEM SET {HEX}"): ["f", "g"],
    (f"SYSTEM SET {ESCAPE}",): ["f", "g"],
    (f"ROLE another SET {ESCAPE}", "ROLE plain_reader SET work_mem = '1MB'"): [],
    ("DATABASE {0} SET extra_float_digits = 0",): ["i", "j", "k", "l"],
    ("ROLE plain_reader SET extra_float_digits = 3", "SYSTEM SET extra_float_digits = -1"): [],
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_values_that_settings_of_the_connector_s_user_change_are_named(
    database: "psycopg.Connection", postgres_server: "PostgresServer", settings: tuple[str, ...]
) -> None:
    import psycopg

    name = database.info.dbname
    database.execute(
        "CREATE DOMAIN bytes AS bytea; CREATE DOMAIN numbers AS real[];"
        "ALTER TABLE t ADD f bytea, ADD g bytes, ADD h bytea;"
        "ALTER TABLE t ADD i real, ADD j float8, ADD k real[], ADD l numbers"
    )
    try:
        for setting in settings:
            database.execute(f"ALTER {setting.format(name)}".encode())
        database.execute("SELECT pg_reload_conf()")
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as later:
            found = look(later, {}, user="plain_reader", added="fgijkl")[1]
    finally:
        for setting in settings:
            whose, _, option = setting.format(name).partition(" SET ")
            database.execute(f"ALTER {whose} RESET {option.partition(' ')[0]}".encode())
        database.execute("SELECT pg_reload_conf()")

    assert [each.column for each in found] == SETTINGS[settings]


CHANGES = {
    "DROP TABLE t; CREATE TABLE t (LIKE r); ALTER PUBLICATION captured ADD TABLE t": "was dropped, and",
    "ALTER TABLE t RENAME TO u; CREATE TABLE t (LIKE u); ALTER PUBLICATION captured ADD TABLE t": "renamed",
    "ALTER TABLE t RENAME TO u": "it was renamed to captured.u",
    "ALTER TABLE t SET SCHEMA elsewhere": "it was renamed to elsewhere.t",
    "ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME TO t": "it had another name or schema for some time",
    "ALTER TABLE t SET SCHEMA elsewhere; ALTER TABLE elsewhere.t SET SCHEMA captured": "it had another name",
    "ALTER PUBLICATION captured DROP TABLE t; ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED; "
    "ALTER PUBLICATION captured ADD TABLE t": "all its rows were rewritten",
    "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)": "its primary key was changed",
    "ALTER TABLE t DROP CONSTRAINT t_pkey": "its primary key was changed",
    "ALTER TABLE t ALTER a TYPE int USING a * 2": "column a: ALTER COLUMN … TYPE rewrote its values",
    "ALTER TABLE t ALTER a TYPE text USING 'x'": "column a: its type was changed from integer to text",
    "TRUNCATE t; ALTER TABLE t ALTER b TYPE int USING 1": "column b: its type was changed",
    "ALTER TABLE t ALTER b TYPE varchar(9) USING 'x'": "column b: ALTER COLUMN … TYPE rewrote its values",
    "ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 5": "column a: it was dropped and added again",
    "ALTER TABLE t DROP a": "column a: it was dropped",
    "DELETE FROM t; ALTER TABLE t DROP a": "column a: it was dropped",
    "ALTER TABLE t RENAME a TO c": "column a: it was renamed to c",
    "ALTER TABLE t RENAME a TO c; ALTER TABLE t ADD a int": "a: it was renamed to c, and another column",
    "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME unused TO a": "a: it was renamed to c, and another",
    "ALTER TABLE r DROP a": "column a: it was dropped",
    "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); "
    "ALTER PUBLICATION captured ADD TABLE t": "column a: the database has no such column",
    "ALTER TABLE t ADD n int DEFAULT 5": "column n: rows that existed before have its DEFAULT",
    "ALTER TABLE t ADD n float DEFAULT random()": "column n: rows that existed before have its DEFAULT",
    "ALTER TABLE t ADD n int DEFAULT 5; VACUUM FULL t": "column n: rows that existed before have its DEFAULT",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'": "label 'sad' of type moods was renamed to 'blue'",
    "ALTER PUBLICATION captured DROP TABLE t; ALTER PUBLICATION captured ADD TABLE t": "for some time",
    "ALTER PUBLICATION captured SET (publish = 'insert'); ALTER PUBLICATION captured "
    "SET (publish = 'insert, update, delete, truncate')": "the options of the publication were changed",
    "TRUNCATE r1": "its partition captured.r1 was truncated by itself",
    "ALTER TABLE r DETACH PARTITION r1": "its partition captured.r1 was detached",
    "ALTER TABLE r DETACH PARTITION r1; DELETE FROM r1; ALTER TABLE r ATTACH PARTITION r1 "
    "FOR VALUES FROM (0) TO (10)": "its partition captured.r1 was detached for some time",
    "ALTER TABLE r DETACH PARTITION r1; DROP TABLE r1": "its partition captured.r1 was dropped",
    "DROP TABLE r1": "its partition captured.r1 was dropped",
    "CREATE TABLE r3 (LIKE r); INSERT INTO r3 VALUES (21); ALTER TABLE r ATTACH PARTITION r3 "
    "FOR VALUES FROM (20) TO (30); INSERT INTO r VALUES (22)": "captured.r3 was attached with rows",
    "BEGIN; CREATE TABLE r3 (LIKE r); INSERT INTO r3 VALUES (21); ALTER TABLE r ATTACH PARTITION r3 "
    "FOR VALUES FROM (20) TO (30); COMMIT": "captured.r3 was attached with rows",
}


@pytest.mark.parametrize("statements", CHANGES)
def test_what_leaves_no_event_is_named_at_the_next_look(
    database: "psycopg.Connection", statements: str
) -> None:
    before, _ = look(database, {})
    execute(database, statements)

    added = {"n"} if " ADD n " in statements else ()
    compared, found = look(database, before, added=added)

    assert any(CHANGES[statements] in each.text for each in found), found
    assert all(each.hint for each in found)
    assert [each.text for each in look(database, compared, added=added)[1]] == [each.text for each in found]


HARMLESS = (
    "INSERT INTO t VALUES (3, 3, 'z', 'sad', '{glad}', 1); UPDATE t SET a = 5; DELETE FROM t WHERE id = 1",
    "UPDATE t SET id = id + 10",
    "TRUNCATE t",
    "TRUNCATE r",
    "VACUUM FULL t; ANALYZE t; VACUUM FULL r1; ANALYZE r1",
    "CLUSTER t USING t_pkey; ANALYZE t",
    "REINDEX TABLE t",
    "ALTER TABLE t OWNER TO pg_monitor",
    "ALTER TABLE t ADD other float DEFAULT random()",
    "ALTER TABLE t ADD n int",
    "ALTER TABLE t ADD n int; VACUUM FULL t",
    "ALTER TABLE t ALTER b SET STORAGE EXTERNAL; VACUUM FULL t",
    "ALTER TABLE t ALTER a SET NOT NULL; VACUUM FULL t",
    "ALTER TABLE t ALTER a SET DEFAULT 5",
    "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME c TO a",
    "ALTER TABLE t ALTER b TYPE varchar(100); ALTER TABLE t ALTER b TYPE varchar(200)",
    "ALTER TABLE t ALTER unused TYPE text USING 'x'; ALTER TABLE t DROP unused",
    "ALTER TYPE mood ADD VALUE 'so so'",
    "ALTER TYPE mood RENAME TO feeling",
    "ALTER TABLE t RENAME CONSTRAINT t_pkey TO t_key; CREATE INDEX ON t (a)",
    "ALTER TABLE t OWNER TO postgres; GRANT SELECT ON t TO public; COMMENT ON TABLE t IS 'x'",
    "ALTER TABLE t SET TABLESPACE pg_default",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (20) TO (30); INSERT INTO r VALUES (21); ANALYZE r3",
    "BEGIN; CREATE TABLE r3 PARTITION OF r DEFAULT; INSERT INTO r VALUES (21); COMMIT",
    "CREATE TABLE r3 (LIKE r); ALTER TABLE r ATTACH PARTITION r3 DEFAULT; INSERT INTO r VALUES (21)",
    "BEGIN; CREATE TABLE r3 (LIKE r); ALTER TABLE r ATTACH PARTITION r3 DEFAULT; INSERT INTO r VALUES (21); "
    "COMMIT",
    "DELETE FROM r WHERE id < 10; ALTER TABLE r DETACH PARTITION r1",
    "ALTER PUBLICATION captured ADD TABLE elsewhere.other",
)


@pytest.mark.parametrize("statements", HARMLESS)
def test_what_changes_no_row_or_leaves_events_is_not_reported(
    database: "psycopg.Connection", statements: str
) -> None:
    database.execute("CREATE TABLE elsewhere.other (id int PRIMARY KEY)")
    before, _ = look(database, {})
    execute(database, statements)

    assert look(database, before, added={"n"} if " ADD n " in statements else ())[1] == []


def test_the_captured_tables_of_a_source_are_examined(database: "psycopg.Connection") -> None:
    database.execute("CREATE TABLE elsewhere.other (id int PRIMARY KEY)")
    database.execute("ALTER PUBLICATION captured SET TABLE t WHERE (id > 1), r")
    wanted = {"publication.name": "captured", "table.include.list": r"captured\..*,elsewhere\.o.*"}

    known = {each.subject: each.text for each in source_findings(database, "captured", wanted)}
    unknown = [each.subject for each in source_findings(database, "captured", {})]

    assert known == {
        "table captured.t": "the publication publishes only its rows with (id > 1)",
        "table elsewhere.other": "the publication does not contain it, so the connector gets none of its "
        "changes",
    }
    assert not unknown or unknown == ["table captured.t"], "another test may have left a publication"


def test_what_may_not_be_read_is_not_disproved(database: "psycopg.Connection") -> None:
    before, _ = look(database, {})
    database.execute("ALTER TABLE t ALTER a TYPE int USING a * 2")
    database.execute("UPDATE t SET a = a")
    database.execute("SET ROLE plain_reader")
    assert [each.column for each in look(database, before)[1]] == ["a"]
    database.execute("RESET ROLE")
    assert look(database, before)[1] == []


def test_rows_of_tables_and_columns_of_any_name_are_asked_for(database: "psycopg.Connection") -> None:
    database.execute('ALTER TABLE t RENAME TO "t%s"')
    used, topics = {"captured.t%s": {"100%"}}, SourceTopics("inv")
    before, _ = examine_tables(database, used, {}, topics=topics, publication="captured")
    database.execute('ALTER TABLE "t%s" ADD "100%" int DEFAULT 5')
    found = examine_tables(database, used, before, topics=topics, publication="captured")[1]
    assert [each.column for each in found] == ["100%"]


def test_tables_of_a_publication_that_share_a_topic_are_named(database: "psycopg.Connection") -> None:
    database.execute('CREATE TABLE "R" (id int); CREATE TABLE "t " (id int); CREATE TABLE t_ (id int)')
    database.execute('ALTER PUBLICATION captured ADD TABLE "R", "t "')
    assert look(database, {})[1] == []
    database.execute("ALTER PUBLICATION captured ADD TABLE t_")
    properties = {"publication.name": "captured", "schema.include.list": "captured"}
    found = list(source_findings(database, "inv", properties))
    text = "its topic inv.captured.t_ is also that of table captured."
    assert [(each.subject, each.text) for each in found] == [
        ("table captured.t ", f"{text}t_"),
        ("table captured.t_", f"{text}t "),
    ]
    used = dict.fromkeys(["captured.t_"], ())
    topics = SourceTopics("inv")
    found_of_used = examine_tables(database, used, {}, topics=topics, publication="captured")[1]
    assert [(each.table, each.text) for each in found_of_used] == [("captured.t_", f"{text}t ")]


REMEDIES = {
    "ALTER TABLE t ALTER a TYPE int USING a * 2": "UPDATE t SET a = a",
    "ALTER TABLE t ADD n int DEFAULT 5": "UPDATE t SET n = n",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'": "UPDATE t SET m = m",
    "CREATE TABLE r3 (LIKE r); INSERT INTO r3 VALUES (21); ALTER TABLE r ATTACH PARTITION r3 "
    "FOR VALUES FROM (20) TO (30)": "UPDATE r3 SET a = a",
}


@pytest.mark.parametrize("statements", REMEDIES)
def test_rows_that_are_written_again_leave_nothing_to_report(
    database: "psycopg.Connection", statements: str
) -> None:
    before, _ = look(database, {})
    execute(database, statements)
    added = {"n"} if " ADD n " in statements else ()
    compared, found = look(database, before, added=added)
    assert found

    execute(database, REMEDIES[statements])

    assert look(database, compared, added=added)[1] == []


def execute(database: "psycopg.Connection", statements: str) -> None:
    for statement in statements.split("; "):
        database.execute(statement.encode())
