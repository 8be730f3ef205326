"""What looks at a catalogue find, with a database that answers the questions of the product only."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from slackwater.cdc.captured import DeclaredTable, SeenColumn, SeenPartition, SeenTable
from slackwater.cdc.catalogue import (
    examine_tables,
    find_publication,
    shared_topic_findings,
    source_findings,
)
from slackwater.protocol import SourceTopics

ID = SeenColumn(name="id", number=1, type="integer", type_oid=23, changed="5", is_sent=True)
A = replace(ID, name="a", number=2)
PART = SeenPartition(
    name="s.p",
    oid=11,
    file=111,
    kind="r",
    persistence="p",
    identity="d",
    changed="5",
    is_uncounted=False,
    attached="6",
    attached_command=2,
)
T = SeenTable(
    name="s.t",
    quoted="s.t",
    oid=1,
    file=101,
    key=(1,),
    unique=(("id",), ("a",)),
    told={"s.t": ("id",)},
    columns=(ID, A),
    has_publication=True,
    is_published=True,
)
R = replace(T, name="s.r", quoted="s.r", oid=2, kind="p", told={}, partitions=(PART,))
TOPICS = SourceTopics("inv")


class Database:
    """A connection to a database with these tables, as :class:`slackwater.cdc.catalogue.CatalogueReader`.

    Attributes:
        may_read: Whether rows may be read.
        has_rows: Whether there are rows that a finding is about.
        others: The names of further tables, by their oids.
        asked: The questions about rows.
        publication: The one that was asked for.
    """

    def __init__(self, *tables: SeenTable, may_read: bool = True, has_rows: bool = True) -> None:
        self.tables = tables
        self.may_read, self.has_rows = may_read, has_rows
        self.others: dict[int, str] = {}
        self.asked: list[str] = []
        self.publication = ""
        self._rows: Sequence[Sequence[Any]] = ()

    def execute(self, query: str, params: Sequence[Any], /) -> "Database":
        """Notes the answer to one of the product's questions."""
        for words, answer in {
            "sees_all": self._of_tables,
            "c.relreplident": self._of_told,
            "NOT c.relispartition": self._of_candidates,
            "has_table_privilege": lambda _: [(self.may_read,)],
            "SELECT EXISTS": lambda _: [(self.has_rows,)],
            "pg_publication WHERE": lambda _: [("dbz_inv",), ("another",)],
            "SELECT c.oid::bigint, quote_ident": self._of_names,
        }.items():
            if words in query:
                self._rows = answer(params)
                break
        else:
            raise AssertionError(query)
        if "SELECT EXISTS" in query:
            self.asked.append(query)
        return self

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Returns the answer."""
        return self._rows

    def _of_tables(self, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [
            (msgspec.to_builtins(replace(t, told={})), t.name) for t in self.tables if t.name in params[-1]
        ]

    def _of_told(self, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        oids = {t.quoted: t.oid for t in self.tables} | {
            p.name: p.oid for t in self.tables for p in t.partitions
        }
        told = [(oids[part], list(names)) for t in self.tables for part, names in t.told.items()]
        return [each for each in told if each[0] in params[0]]

    def _of_candidates(self, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        is_published_only, self.publication = params
        return [(t.name,) for t in self.tables if t.is_published or not is_published_only]

    def _of_names(self, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        named = {t.oid: t.quoted for t in self.tables} | self.others
        return [(oid, named[oid]) for oid in params[0] if oid in named]


def look(
    database: Database,
    before: Mapping[str, SeenTable] = {},
    used: Mapping[str, Collection[str]] = {"s.t": {"id", "a"}},
    keys: Mapping[str, Collection[str]] = {},
) -> tuple[dict[str, SeenTable], list[str]]:
    declared = {name: DeclaredTable(key) for name, key in keys.items()}
    compared, found = examine_tables(database, used, before, topics=TOPICS, publication="", declared=declared)
    return compared, [each.text.partition(",")[0].partition(";")[0] for each in found]


def test_a_look_without_a_fault_is_what_the_next_one_is_compared_with() -> None:
    assert look(Database(T, R), used={"s.t": {"id"}, "s.r": {"id"}}) == ({"s.t": T, "s.r": R}, [])


def test_a_table_is_compared_with_what_it_was_before_a_fault_until_the_fault_is_gone() -> None:
    before, found = look(Database(T))
    assert not found

    for _ in range(2):
        compared, found = look(Database(replace(T, oid=3)), before)
        assert found == ["it was dropped"]
        assert compared == before

    again = replace(T, owner=9)
    assert look(Database(again), before) == ({"s.t": again}, [])


@pytest.mark.parametrize("used", [{"id"}, {"id", "a"}])
def test_only_columns_that_views_use_are_compared(used: set[str]) -> None:
    now = replace(T, columns=(ID, replace(A, type="text", type_oid=25)))
    found = look(Database(now), {"s.t": T}, {"s.t": used})[1]
    assert [text[:9] for text in found] == (["column a:"] if "a" in used else [])


def test_a_column_that_there_is_not_is_named_at_the_first_look() -> None:
    assert look(Database(T), used={"s.t": {"x"}})[1] == ["column x: the database has no such column"]


def test_faults_of_a_table_are_named_at_the_first_look() -> None:
    assert look(Database(replace(T, persistence="u")))[1] == ["it is unlogged"]
    (found,) = look(Database(T), keys={"s.t": ("x",)})[1][:1]
    assert found.startswith("its declared primary key (x)")
    assert not look(Database(replace(T, told={})), keys={"s.t": ("a",)})[1], (
        "a unique index without NULL is one"
    )


def test_a_partition_that_does_not_tell_the_key_is_named() -> None:
    found = look(Database(replace(R, told={"s.p": ("a",)})), used={"s.r": {"id"}})[1]
    assert found == ["deletes and updates of s.p do not contain the primary key (id)"]


@pytest.mark.parametrize(("may_read", "has_rows"), [(True, True), (True, False), (False, False)])
def test_a_finding_stands_unless_rows_disprove_it(may_read: bool, has_rows: bool) -> None:
    now = replace(T, quoted='s."t%"', told={}, file=102)
    database = Database(now, may_read=may_read, has_rows=has_rows)
    found = look(database, {"s.t": T})[1]
    assert found == ([] if may_read and not has_rows else ["all its rows were rewritten"])
    assert [query.partition(" WHERE")[0] for query in database.asked] == (
        ['SELECT EXISTS (SELECT FROM s."t%%"'] if may_read else []
    )


def test_a_partition_with_another_name_is_detached_and_not_dropped() -> None:
    database = Database(replace(R, partitions=()))
    used = {"s.r": {"id"}}
    assert look(database, {"s.r": R}, used)[1] == ["its partition s.p was dropped"]
    database.others = {11: "s.old"}
    assert look(database, {"s.r": R}, used)[1] == ["its partition s.p was detached"]


UNLOGGED = replace(T, persistence="u")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ["s.t"]),
        ({"publication.name": "x"}, ["s.t", "s.u"]),
        ({"publication.name": "x", "table.exclude.list": r"s\.t"}, ["s.u"]),
    ],
)
def test_the_tables_that_a_connector_captures_are_examined(
    properties: dict[str, str], expected: list[str]
) -> None:
    unpublished = replace(UNLOGGED, name="s.u", oid=4, is_published=False, has_publication=False)
    database = Database(UNLOGGED, unpublished)
    found = list(source_findings(database, "inv", properties))
    assert database.publication == ("x" if properties else "dbz_inv")
    assert sorted({each.subject for each in found}) == [f"table {name}" for name in expected]


def test_tables_that_share_a_topic_are_named_unless_transforms_route_them() -> None:
    database = Database(replace(T, name="s.t "), replace(T, name="s.t_", oid=3))
    subjects = [each.subject for each in source_findings(database, "inv", {"publication.name": "x"})]
    assert subjects == ["table s.t ", "table s.t_"]
    assert not list(source_findings(database, "inv", {"publication.name": "x", "transforms": "route"}))
    found = shared_topic_findings(database, TOPICS, ["s.t_"], "x")
    assert [each.table for each in found] == ["s.t_"]


def test_of_publications_the_one_of_the_connector_comes_first() -> None:
    assert find_publication(Database(), "inv") == "dbz_inv"
