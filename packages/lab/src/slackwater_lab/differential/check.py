"""Runs a case through an engine and compares every state with the reference.

The reference is DuckDB, asked for the view's SELECT on the tables as they are after each commit.
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any

import duckdb
from duckdb.sqltypes import DuckDBPyType

from slackwater_lab.differential.case import Batch, Case, Feature
from slackwater_lab.differential.engines import ChangedDocument, Engine, MakeEngine, RefusedViewError
from slackwater_lab.differential.history import SCHEMA, DrawnCommit, DrawnTable, play, quoted
from slackwater_lab.differential.query import View

_NUMBERS = frozenset(f"{sign}{size}int" for sign in ("", "u") for size in ("tiny", "small", "big", "huge"))
_NUMBERS |= {"integer", "uinteger"}


def of_document(document: bytes) -> str:
    """The canonical text of a document."""
    return _of_json(document.decode())


def _of_row(names: list[str], values: tuple[Any, ...], types: list[DuckDBPyType]) -> str:
    """The canonical text of the document of a row that DuckDB gave."""
    fields = zip(names, values, types, strict=True)
    return _object([(name, _of_value(value, of_type)) for name, value, of_type in fields])


def _of_json(text: str) -> str:
    return _canonical(json.loads(text, object_pairs_hook=_Pairs, parse_float=Decimal, parse_int=Decimal))


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys in their order."""


def _canonical(value: Any) -> str:
    if isinstance(value, _Pairs):
        return _object([(name, _canonical(item)) for name, item in value])
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, Decimal):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _object(fields: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in fields) + "}"


def _number(value: Decimal) -> str:
    if value == 0:
        return "0"
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(characters: str) -> str:
    return json.dumps(characters, ensure_ascii=False)


def _of_value(value: Any, of_type: DuckDBPyType) -> str:
    if value is None:
        return "null"
    if str(of_type) == "JSON":
        return _of_json(value)
    kind = of_type.id.strip('"')
    if kind in _NUMBERS:
        return str(value)
    if kind in {"list", "array"}:
        element = of_type.children[0][1]
        return "[" + ",".join(_of_value(each, element) for each in value) + "]"  # type: ignore[arg-type]
    if kind == "struct":
        return _object([(n, _of_value(value[n], t)) for n, t in of_type.children])  # type: ignore[arg-type]
    return _of_scalar(value)


def _of_scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _of_float(value)
        case Decimal():
            return _text(format(value, "f"))
        case bytes():
            return _text(base64.b64encode(value).decode())
        case datetime():
            suffix = "" if value.tzinfo is None else "Z"
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return _text(moment.isoformat(timespec="microseconds") + suffix)
        case time():
            text = value.isoformat()
            return _text(text.rstrip("0") if "." in text else text)
        case date():
            return _text(value.isoformat())
    return _text(str(value))


def _of_float(value: float) -> str:
    if math.isnan(value):
        return _text("NaN")
    if math.isinf(value):
        return _text("Infinity" if value > 0 else "-Infinity")
    return _number(Decimal(repr(value)))


Rows = Counter[str]
"""The rows of a view as a bag of canonical texts."""


class Reference:
    """Tables in a database of its own. Not for several threads.

    Raises:
        duckdb.Error: from any method, when DuckDB cannot do what the case says.
    """

    def __init__(self, tables: Sequence[DrawnTable], views: Sequence[View]) -> None:
        self._views = views
        self._columns = {table.name: [column.position for column in table.columns] for table in tables}
        self._connection = _connection()
        try:
            self._create(tables, views)
        except duckdb.Error:
            self.__exit__()
            raise

    def _create(self, tables: Sequence[DrawnTable], views: Sequence[View]) -> None:
        for table in tables:
            columns = ", ".join(f"{quoted(c.name)} {c.type.duckdb}" for c in table.columns)
            self._connection.execute(f"CREATE TABLE {table.name} ({columns})")
        for view in views:
            self._connection.execute(f"CREATE VIEW {view.name} AS\n{view.reference_sql()}")

    def __enter__(self) -> "Reference":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute(f"SET schema = 'main'; DROP SCHEMA {SCHEMA} CASCADE").fetchall()
        _idle.append(self._connection)

    def apply(self, commit: DrawnCommit) -> None:
        """Brings the tables to the state after a commit."""
        for name, rows in commit.touched:
            self._connection.execute(f"DELETE FROM {name}")
            if rows:
                positions = self._columns[name]
                values = ", ".join(
                    "(" + ", ".join("NULL" if (v := row[p]) is None else v.sql for p in positions) + ")"
                    for row in rows
                )
                self._connection.execute(f"INSERT INTO {name} VALUES {values}")

    def rows(self) -> tuple[Rows, ...]:
        """The rows of each view now."""
        return tuple(self._rows_of(view) for view in self._views)

    def _rows_of(self, view: View) -> Rows:
        result = self._connection.execute(view.reference_sql())
        names = [column[0] for column in result.description]
        types = [column[1] for column in result.description]
        return Counter(_of_row(names, values, types) for values in result.fetchall())


_idle: list[duckdb.DuckDBPyConnection] = []
"""Opening a database costs more than a small case."""


def _connection() -> duckdb.DuckDBPyConnection:
    if _idle:
        connection = _idle.pop()
    else:
        connection = duckdb.connect(":memory:", config={"threads": 1})
        for setting in ("TimeZone = 'UTC'", "enable_progress_bar = false"):
            connection.execute(f"SET {setting}")
        # The one makes `count(x) FILTER (WHERE y IS NULL)` over a FULL JOIN count NULLs; the other mixes up
        # the columns of a join that two branches of a UNION have in common.
        connection.execute("SET disabled_optimizers = 'filter_pushdown,common_subplan'")
    connection.execute(f"CREATE SCHEMA {SCHEMA}; SET schema = '{SCHEMA}'").fetchall()
    return connection


class Verdict(StrEnum):
    """The ways in which the check of a case ends."""

    RIGHT = "right"
    WRONG = "wrong"
    """Other rows than the reference's."""
    NEEDLESS = "needless"
    """Two documents of a key in one commit, a delete of a key that is not there, or a commit of no batch."""
    CRASHED = "crashed"
    REFUSED = "refused"
    """By the engine's planner."""
    IMPOSSIBLE = "impossible"
    """The reference itself cannot do it: the generator's mistake."""

    @property
    def is_failure(self) -> bool:
        """The engine is to blame."""
        return self in {Verdict.WRONG, Verdict.NEEDLESS, Verdict.CRASHED}


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the check of a case.

    Attributes:
        case: The case, with replica identities as the engine asked for them.
        verdict: What came of it.
        problem: What is wrong, in words.
        view: Number of the view that is wrong.
        lsn: Commit LSN of the first wrong state.
        expected: The reference's rows there.
        got: The engine's rows there.
        counts: States of views and rows that were compared; repeated documents, which said what was known.
            They are allowed: a row whose place in a stage changes may be written again by another bucket,
            which does not know the document.
    """

    case: Case
    verdict: Verdict
    problem: str = ""
    view: int = -1
    lsn: int = 0
    expected: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """True if the engine is to blame."""
        return self.verdict.is_failure


class _FoundError(Exception):
    def __init__(self, checked: Checked) -> None:
        super().__init__(checked)
        self.checked = checked


def check(case: Case, make_engine: MakeEngine) -> Checked:
    """Runs a case; whatever the engine raises is a result, too.

    Raises:
        RuntimeError: A signal came within a query, such as that of a time limit: nothing is known.
    """
    if Feature.PARTIAL_IDENTITY in case.features:
        checked = _check(case, make_engine)
        if checked.verdict is not Verdict.REFUSED or "REPLICA IDENTITY" not in checked.problem:
            return checked
        tables = tuple(replace(table, is_full=True) for table in case.tables)
        case = replace(case, tables=tables, features=case.features - {Feature.PARTIAL_IDENTITY})
    return _check(case, make_engine)


def _check(case: Case, make_engine: MakeEngine) -> Checked:
    try:
        reference = Reference(case.tables, case.views)
    except duckdb.Error as error:
        return Checked(case, Verdict.IMPOSSIBLE, str(error))
    with reference:
        try:
            engine = make_engine(case)
        except RefusedViewError as error:
            return Checked(case, Verdict.REFUSED, error.reason)
        except Exception as error:
            if _is_interruption(error):
                raise
            return Checked(case, Verdict.CRASHED, _in_words(error))
        try:
            return _Comparison(case, reference, engine).run()
        finally:
            engine.close()


class _Comparison:
    def __init__(self, case: Case, reference: Reference, engine: Engine) -> None:
        self._case = case
        self._reference = reference
        self._engine = engine
        self._documents: list[dict[bytes, str]] = [{} for _ in case.views]
        self._states = self._rows = self._repeats = 0

    def run(self) -> Checked:
        try:
            for batch, commits in batches_of(self._case, play(self._case.tables, self._case.transactions)):
                self._batch(batch, commits)
        except _FoundError as found:
            return found.checked
        except duckdb.Error as error:
            return Checked(self._case, Verdict.IMPOSSIBLE, str(error))
        return self._result(Verdict.RIGHT)

    def _batch(self, batch: Batch, commits: Sequence[DrawnCommit]) -> None:
        events = [change.event() for commit in commits for change in commit.changes]
        try:
            documents = list(self._engine.run(events, batch, commits[0].lsn))
        except Exception as error:
            if _is_interruption(error):
                raise
            raise _FoundError(self._result(Verdict.CRASHED, _in_words(error), lsn=commits[-1].lsn)) from error
        if not self._case.every_commit:
            for commit in commits:
                self._reference.apply(commit)
            self._publish(documents, commits[-1].lsn)
            self._compare(commits[-1].lsn)
            return
        for commit in commits:
            self._reference.apply(commit)
            self._publish([d for d in documents if d.lsn == commit.lsn], commit.lsn)
            self._compare(commit.lsn)
        known = {commit.lsn for commit in commits}
        for document in documents:
            if document.lsn not in known:
                problem = f"a document of commit {document.lsn}, which is not in the batch: {document}"
                raise _FoundError(self._result(Verdict.NEEDLESS, problem, document.view, commits[-1].lsn))

    def _publish(self, documents: Sequence[ChangedDocument], lsn: int) -> None:
        seen: set[tuple[int, bytes]] = set()
        for changed in documents:
            before = self._documents[changed.view].get(changed.key)
            after = None if changed.document is None else of_document(changed.document)
            is_twice = (changed.view, changed.key) in seen
            seen.add((changed.view, changed.key))
            self._repeats += before == after
            if is_twice or before is after is None:
                key = changed.key.decode()
                what = f"{key} is published twice" if is_twice else f"{key} was not there"
                problem = f"{what}: {after or 'deleted'}"
                raise _FoundError(self._result(Verdict.NEEDLESS, problem, changed.view, lsn))
            if after is None:
                del self._documents[changed.view][changed.key]
            else:
                self._documents[changed.view][changed.key] = after

    def _compare(self, lsn: int) -> None:
        for view, expected in enumerate(self._reference.rows()):
            got = Counter(self._documents[view].values())
            self._states += 1
            self._rows += expected.total()
            if got != expected:
                problem = _difference(expected, got)
                checked = self._result(Verdict.WRONG, problem, view, lsn)
                raise _FoundError(replace(checked, expected=_sorted(expected), got=_sorted(got)))

    def _result(self, verdict: Verdict, problem: str = "", view: int = -1, lsn: int = 0) -> Checked:
        checked = Checked(self._case, verdict, problem, view, lsn)
        counts = {"states": self._states, "rows": self._rows, "repeated documents": self._repeats}
        return replace(checked, counts=counts)


def batches_of(case: Case, commits: Sequence[DrawnCommit]) -> Iterator[tuple[Batch, Sequence[DrawnCommit]]]:
    """The commits of each batch; what no batch takes is one more."""
    start = 0
    for batch in case.batches:
        part = commits[start : start + batch.size]
        start += batch.size
        if part:
            yield batch, part
    if start < len(commits):
        yield Batch(len(commits) - start), commits[start:]


def _sorted(rows: Rows) -> tuple[str, ...]:
    return tuple(sorted(rows.elements()))


def _difference(expected: Rows, got: Rows) -> str:
    return f"{(expected - got).total()} rows missing, {(got - expected).total()} rows too many"


def _is_interruption(error: Exception) -> bool:
    """Says whether DuckDB gave up a query because of a signal; it replaces what the signal raised."""
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
