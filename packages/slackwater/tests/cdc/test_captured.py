"""What two looks at a catalogue say of a table whose rows are not all in its topic, without a database."""

from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from slackwater.cdc.captured import (
    CapturedFinding,
    Proof,
    SeenColumn,
    SeenPartition,
    SeenTable,
    absent_columns,
    changes_between,
    faults_of_added,
    faults_of_table,
    key_faults,
    omitted_by,
)

ID = SeenColumn(name="id", number=1, type="integer", type_oid=23, changed="5", is_sent=True)
A = SeenColumn(name="a", number=2, type="integer", type_oid=23, changed="5", is_sent=True)
MOOD = replace(A, name="m", number=3, type="mood", type_oid=99, labels={"7": ("sad", "5")})
PARTITIONS = tuple(
    SeenPartition(
        name=f"s.r{number}",
        oid=10 + number,
        file=110 + number,
        kind="r",
        persistence="p",
        identity="d",
        changed="5",
        is_uncounted=False,
        attached="6",
        attached_command=2,
    )
    for number in (1, 2)
)
T = SeenTable(
    name="s.t",
    quoted="s.t",
    oid=1,
    file=101,
    changed="5",
    owner=7,
    named="5",
    key=(1,),
    unique=(("id",),),
    columns=(ID, A, MOOD),
    has_publication=True,
    is_published=True,
    options="4",
    member=8,
)
R = replace(T, name="s.r", quoted="s.r", oid=2, kind="p", partitions=PARTITIONS)


def parts(**changes: Any) -> tuple[SeenPartition, ...]:
    """The partitions, the first of them changed."""
    return replace(PARTITIONS[0], **changes), PARTITIONS[1]


def columns(which: int, **changes: Any) -> tuple[SeenColumn, ...]:
    return tuple(replace(each, **changes) if each.number == which else each for each in T.columns)


def emptied(*changed: str) -> tuple[SeenPartition, ...]:
    return tuple(
        replace(each, file=each.file + 100, changed=by, is_uncounted=True)
        for each, by in zip(PARTITIONS, changed, strict=True)
    )


def texts(found: Sequence[CapturedFinding]) -> list[str]:
    assert all(each.hint for each in found)
    assert all(f"column {each.column}" in each.text for each in found if each.column)
    return [each.text.partition(",")[0].partition(";")[0] for each in found]


FAULTS: dict[str, tuple[SeenTable, list[str]]] = {
    "none": (T, []),
    "none of a partitioned table": (R, []),
    "no such table": (SeenTable(name="s.t"), ["the database has no such table"]),
    "a view": (replace(T, kind="v"), ["it is a view"]),
    "unlogged": (
        replace(T, persistence="u"),
        ["it is unlogged"],
    ),
    "an unlogged partition": (
        replace(R, partitions=parts(persistence="u")),
        ["its partition s.r1 is unlogged"],
    ),
    "a foreign partition": (
        replace(R, partitions=parts(kind="f")),
        ["its partition s.r1 is a foreign table"],
    ),
    "children": (
        replace(T, children=("s.c", "s.d")),
        ["s.c"],
    ),
    "a partition that is not FULL": (
        replace(R, identity="f", partitions=parts(identity="f")),
        ["its partition s.r2 does not have the table's REPLICA IDENTITY FULL"],
    ),
    "not published": (
        replace(T, is_published=False, lacks=("delete",)),
        ["the publication does not contain it"],
    ),
    "a partitioned table that is not published": (
        replace(R, is_published=False),
        ["the publication does not contain it"],
    ),
    "partitions published": (
        replace(R, is_published=False, via_root=False),
        ["its changes are published under the names of its partitions"],
    ),
    "no publication": (replace(T, has_publication=False, is_published=False), []),
    "filtered": (
        replace(T, filter="(id > 1)"),
        ["the publication publishes only its rows with (id > 1)"],
    ),
    "no deletes": (replace(T, lacks=("delete",)), ["the publication does not publish delete"]),
    "a column not sent": (
        replace(T, columns=columns(2, is_sent=False)),
        ["the publication's column list does not contain column a"],
    ),
    "row-level security": (
        replace(T, hides_rows=True),
        ["row-level security hides rows from the connector's user in snapshots"],
    ),
    "bytes as text": (
        replace(T, settings={"bytea_output": "escape"}, columns=columns(2, output="byteaout")),
        ["the bytes of column a are written as text"],
    ),
    "rounded": (
        replace(T, settings={"extra_float_digits": "0"}, columns=columns(2, output="float8out")),
        ["the numbers of column a are rounded when they are written (extra_float_digits)"],
    ),
    "rounded, single": (
        replace(T, settings={"extra_float_digits": "-15"}, columns=columns(2, output="float4out")),
        ["the numbers of column a are rounded when they are written (extra_float_digits)"],
    ),
    "exact": (
        replace(
            T,
            settings={"extra_float_digits": "1", "bytea_output": "hex"},
            columns=columns(2, output="float8out"),
        ),
        [],
    ),
    "not concerned": (
        replace(
            T,
            settings={"extra_float_digits": "0", "bytea_output": "escape"},
            columns=columns(2, output="int4out"),
        ),
        [],
    ),
    "default": (replace(T, columns=columns(2, output="byteaout")), []),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_keeps_rows_from_a_topic_is_named(case: str) -> None:
    table, expected = FAULTS[case]
    assert texts(list(faults_of_table(table))) == expected


UNTOLD = "deletes and updates of s.t do not contain the primary key"


@pytest.mark.parametrize(
    ("declared", "unique", "told", "expected"),
    [
        (("id",), [("id",)], ("id",), ""),
        (("id", "a"), [("id",)], ("id", "a"), ""),
        (("id",), [("id", "a")], ("id", "a"), "its declared primary key (id) is neither one in the database"),
        (("a",), [("id",), ("a",)], ("id",), f"{UNTOLD} (a)"),
        ((), [("id",)], ("a",), f"{UNTOLD} (id)"),
        ((), [("id",)], ("id", "a"), ""),
    ],
)
def test_a_key_has_to_be_one_and_to_be_told(
    declared: tuple[str, ...], unique: list[tuple[str, ...]], told: tuple[str, ...], expected: str
) -> None:
    table = replace(T, unique=tuple(unique), told={"s.t": told})
    found = texts(list(key_faults(table, declared)))
    assert [text.partition(" nor ")[0] for text in found] == ([expected] if expected else [])


CHANGES: dict[str, tuple[SeenTable, SeenTable, list[str]]] = {
    "nothing": (T, T, []),
    "not there before": (SeenTable(name="s.t"), T, []),
    "made again": (T, replace(T, oid=3), ["it was dropped"]),
    "gone": (T, SeenTable(name="s.t"), ["it was dropped"]),
    "renamed": (replace(T, oid=4), SeenTable(name="s.t"), ["it was renamed to s.u"]),
    "another name for some time": (
        T,
        replace(T, named="9"),
        ["it had another name or schema for some time"],
    ),
    "another owner": (T, replace(T, named="9", owner=8), []),
    "out of the publication": (
        T,
        replace(T, member=9),
        ["it was removed from the publication for some time"],
    ),
    "in a publication of all tables": (T, replace(T, member=0), []),
    "into the publication": (replace(T, member=0), T, []),
    "options": (T, replace(T, options="9"), ["the options of the publication were changed"]),
    "no publication any more": (T, replace(T, options=""), []),
    "a publication": (replace(T, options=""), T, []),
    "another key": (T, replace(T, key=(2,)), ["its primary key was changed"]),
    "no longer FULL": (
        replace(T, identity="f"),
        T,
        ["its REPLICA IDENTITY is no longer FULL"],
    ),
    "now FULL": (T, replace(T, identity="f"), []),
    "rewritten": (T, replace(T, file=102, changed="9"), ["all its rows were rewritten"]),
    "a new partition": (
        replace(R, partitions=PARTITIONS[:1]),
        R,
        ["s.r2 was attached with rows"],
    ),
    "attached again": (
        R,
        replace(R, partitions=parts(attached="9")),
        ["its partition s.r1 was detached for some time"],
    ),
    "attached again by the same transaction": (
        R,
        replace(R, partitions=parts(attached_command=3)),
        ["its partition s.r1 was detached for some time"],
    ),
    "a partition dropped": (
        R,
        replace(R, partitions=PARTITIONS[1:]),
        ["its partition s.r1 was dropped"],
    ),
    "one partition emptied": (
        R,
        replace(R, partitions=parts(file=211, changed="9", is_uncounted=True)),
        ["its partition s.r1 was truncated by itself"],
    ),
    "one partition rewritten": (R, replace(R, partitions=parts(file=211, changed="9")), []),
    "a partition that was empty before": (
        replace(R, partitions=parts(is_uncounted=True)),
        replace(R, partitions=parts(is_uncounted=True)),
        [],
    ),
    "all partitions emptied": (
        R,
        replace(
            R,
            partitions=emptied("9", "9"),
        ),
        [],
    ),
    "all partitions emptied one by one": (
        R,
        replace(
            R,
            partitions=emptied("8", "9"),
        ),
        [f"its partition s.r{number} was truncated by itself" for number in (1, 2)],
    ),
    "the only partition emptied": (
        replace(R, partitions=PARTITIONS[:1]),
        replace(R, partitions=parts(file=211, changed="9", is_uncounted=True)[:1]),
        ["its partition s.r1 was truncated by itself"],
    ),
    "a new column": (
        replace(T, columns=T.columns[:2]),
        T,
        ["column m: rows that existed before have its DEFAULT"],
    ),
    "a column dropped and added": (
        T,
        replace(T, columns=columns(2, number=4)),
        ["column a: it was dropped and added again"],
    ),
    "a column renamed": (
        T,
        replace(T, columns=(*columns(2, name="c"), replace(A, number=4))),
        ["column c: rows that existed before have its DEFAULT", "column a: it was renamed to c"],
    ),
    "another type": (
        T,
        replace(T, columns=columns(2, type="text", type_oid=25)),
        ["column a: its type was changed from integer to text"],
    ),
    "a wider type": (
        T,
        replace(T, file=102, columns=columns(2, type="bigint", type_oid=20, changed="9")),
        ["column a: ALTER COLUMN … TYPE bigint rewrote its values"],
    ),
    "text as varchar": (
        replace(T, columns=columns(2, type="text", type_oid=25)),
        replace(T, columns=columns(2, type="character varying(9)", type_oid=1043)),
        [],
    ),
    "times with fewer digits": (
        replace(T, columns=columns(2, type="time without time zone", type_oid=1083)),
        replace(T, columns=columns(2, type="time(3) without time zone", type_oid=1083)),
        ["column a: its type was changed from time without time zone to time(3) without time zone"],
    ),
    "values rewritten": (
        T,
        replace(T, file=102, columns=columns(2, changed="9")),
        ["column a: ALTER COLUMN … TYPE rewrote its values"],
    ),
    "values of partitions rewritten": (
        R,
        replace(R, columns=columns(2, changed="9"), partitions=parts(file=211)),
        ["column a: ALTER COLUMN … TYPE rewrote its values"],
    ),
    "a default set": (T, replace(T, columns=columns(2, changed="9")), []),
    "a label renamed": (
        T,
        replace(T, columns=columns(3, labels={"7": ("blue", "9")})),
        ["column m: label 'sad' of type mood was renamed to 'blue'"],
    ),
    "a label added": (
        T,
        replace(T, columns=columns(3, labels={"7": ("sad", "5"), "8": ("glad", "9")})),
        [],
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_leaves_no_event_is_named(case: str) -> None:
    before, now, expected = CHANGES[case]
    assert texts(list(changes_between(before, now, {4: "s.u"}))) == expected


def test_a_column_of_a_view_that_the_table_has_not_is_named_with_its_fate() -> None:
    now = replace(T, columns=columns(2, name="c"))
    assert texts(list(absent_columns(T, now, {"id", "a", "x"}))) == [
        "column a: it was renamed to c",
        "column x: the database has no such column",
    ]
    assert texts(list(absent_columns(T, replace(T, columns=(ID,)), {"a"}))) == ["column a: it was dropped"]
    another = replace(now, oid=3)
    assert texts(list(absent_columns(T, another, {"a"}))) == ["column a: the database has no such column"]
    assert not list(absent_columns(T, SeenTable(name="s.t"), {"a"}))


FILTERS: dict[tuple[str, str], set[str]] = {
    ("table.include.list", r"s\.o.*,S\.T"): set(),
    ("table.include.list", r"s\.other"): {"table.include.list leaves it out"},
    ("table.include.list", "t"): {"table.include.list leaves it out"},
    ("table.exclude.list", r"s\.t"): {"table.exclude.list leaves it out"},
    ("table.exclude.list", r"s\.t.+"): set(),
    ("table.exclude.list", r"s\."): set(),
    ("table.include.list", r"s\.t\,u"): {"table.include.list leaves it out"},
    ("schema.include.list", "public"): {"schema.include.list leaves it out"},
    ("schema.exclude.list", "S"): {"schema.exclude.list leaves it out"},
    ("column.exclude.list", r".*\.a"): {"column.exclude.list leaves out column a"},
    ("column.exclude.list", r".*\.unused"): set(),
    ("column.include.list", r"s\.t\.id"): {"column.include.list leaves out column a"},
    ("table.include.list", "(?<name"): set(),
}


@pytest.mark.parametrize("has", FILTERS)
def test_what_a_connector_leaves_out_is_named(has: tuple[str, str]) -> None:
    found = omitted_by(dict([has]), {"s.t": ("id", "a")})
    assert {each.text.removeprefix("the connector's ") for each in found} == FILTERS[has]


def test_of_a_table_that_is_left_out_no_column_is_named() -> None:
    lists = {"table.include.list": r"s\.other", "column.exclude.list": r".*\.a"}
    (found,) = omitted_by(lists, {"s.t": ("id", "a")})
    assert not found.column


def rows_of(proof: Proof) -> list[tuple[int, int]]:
    """Which rows a proof finds, given as the transaction and the command that wrote them; the newest is 9."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TYPE xid AS BIGINT; CREATE MACRO age(x) AS 9 - x")
        connection.execute(
            "CREATE TABLE r AS SELECT x AS xmin, c AS cmin, nullif(c, 0) AS a, "
            "if(c < 2, 'blue', 'sad') AS m FROM range(4, 9) a(x), range(4) b(c) ORDER BY ALL"
        )
        query = f"SELECT xmin, cmin FROM r WHERE {proof.condition}".replace("%s", "?")  # noqa: S608
        return connection.execute(query, proof.parameters).fetchall()


def test_rows_of_before_a_partition_was_attached_prove_that_they_left_no_event() -> None:
    (found,) = changes_between(replace(R, partitions=PARTITIONS[:1]), R)

    assert found.proof is not None
    assert found.proof.relation == "s.r2"
    earlier = [(xmin, cmin) for xmin in (4, 5) for cmin in range(4)]
    assert rows_of(found.proof) == [*earlier, (6, 0), (6, 1)]


def test_rows_of_a_detached_partition_prove_that_they_have_no_delete() -> None:
    now = replace(R, partitions=PARTITIONS[1:])
    (dropped,) = changes_between(R, now)
    assert dropped.proof is None
    (detached,) = changes_between(R, now, {11: "s.old"})
    assert "was detached" in detached.text
    assert detached.proof == Proof("s.old", "true", ())


PROOFS: dict[str, tuple[SeenTable, SeenTable, range, range]] = {
    # the transactions and the commands that wrote the rows: 6 changed the table
    "rewritten": (T, replace(T, file=102, changed="6"), range(6, 7), range(4)),
    "values rewritten": (T, replace(T, file=102, columns=columns(2, changed="6")), range(6, 7), range(4)),
    "a new column": (
        replace(T, columns=(ID, MOOD)),
        replace(T, columns=columns(2, changed="6")),
        range(4, 7),
        range(1, 4),
    ),
    "dropped and added": (T, replace(T, columns=columns(2, number=4, changed="6")), range(4, 7), range(4)),
    "a label renamed": (
        T,
        replace(T, columns=columns(3, labels={"7": ("blue", "6")})),
        range(4, 7),
        range(2),
    ),
}


@pytest.mark.parametrize("case", PROOFS)
def test_rows_prove_that_they_were_changed_without_an_event(case: str) -> None:
    before, now, transactions, commands = PROOFS[case]
    (found,) = changes_between(before, now)
    assert found.proof is not None
    assert rows_of(found.proof) == [(xmin, cmin) for xmin in transactions for cmin in commands]


def test_any_name_of_a_column_stands_in_the_question_about_its_rows() -> None:
    (found,) = changes_between(replace(T, columns=(ID, MOOD)), replace(T, columns=columns(2, name='a"%')))
    assert found.proof is not None
    assert found.proof.condition.startswith('"a""%%" IS NOT NULL AND')


def test_a_column_that_is_declared_as_added_is_judged_by_rows_from_before() -> None:
    before, now = replace(T, columns=(ID, MOOD)), replace(T, columns=(ID, replace(A, changed="9"), MOOD))
    assert [each.column for each in changes_between(before, now)] == ["a"]
    assert not list(changes_between(before, now, added=["a"]))
    for value, condition, parameters in (
        (None, '"a" IS NOT NULL AND age(xmin) >= age(%s::text::xid)', ("9",)),
        (True, '"a"::text IS DISTINCT FROM %s AND age(xmin) >= age(%s::text::xid)', ("true", "9")),
    ):
        (found,) = faults_of_added(now, {"a": value, "gone": None})
        assert found.proof == Proof("s.t", condition, parameters)
        assert "UPDATE s.t SET" in found.hint
