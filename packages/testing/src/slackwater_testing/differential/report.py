"""A case as text: enough to understand it and to run it again."""

from collections import Counter
from collections.abc import Iterator

from slackwater_testing.differential.case import Batch, Case
from slackwater_testing.differential.check import Checked, batches_of
from slackwater_testing.differential.history import Commit, Row, RowChange, Table, play, quoted, schema_ddl

_SHOWN_ROWS = 12
_SHOWN_CHARACTERS = 300


def report(checked: Checked) -> str:
    """Everything about a failure."""
    case = checked.case
    lines = [
        f"seed {case.seed}: {checked.verdict}: {_shortened(checked.problem, 1500)}",
        "",
        schema_ddl(case.tables),
        "",
        *(f"-- {view.name}.sql\n{view.sql()}\n" for view in case.views),
        f"-- emit={'transactions' if case.every_commit else 'latest'}, {case.buckets} buckets",
        *_history(case),
        "",
        *_rows(checked),
        f"repeat: {case.command()}",
        "",
    ]
    return "\n".join(lines)


def _history(case: Case) -> Iterator[str]:
    for number, (batch, commits) in enumerate(batches_of(case, play(case.tables, case.transactions)), 1):
        yield f"-- batch {number}{_circumstances(batch)}"
        for commit in commits:
            yield from _transaction(commit)


def _circumstances(batch: Batch) -> str:
    words = [f"{batch.tasks} tasks"] * (batch.tasks > 1)
    words += ["after indexes were lost"] * batch.loses_index + ["run twice"] * batch.is_repeated
    return ": " + ", ".join(words) if words else ""


def _transaction(commit: Commit) -> Iterator[str]:
    yield "BEGIN;"
    for change in commit.changes:
        yield f"  {_statement(change)};"
    yield f"COMMIT; -- LSN {commit.lsn}"


def _statement(change: RowChange) -> str:
    table = change.table
    if change.op == "t":
        return f"TRUNCATE {table.name}"
    if change.op == "d":
        return f"DELETE FROM {table.name} WHERE {_key(table, change.before or ())}"
    row = change.after or ()
    values = ", ".join(_sql(row, column.position) for column in table.columns)
    if change.op != "u":
        note = " -- snapshot" if change.op == "r" else ""
        return f"INSERT INTO {table.name} VALUES ({values}){note}"
    left_out = [c.name for c in table.columns if c.position in change.left_out]
    note = f" -- left out: {', '.join(left_out)}" if left_out else ""
    return f"UPDATE {table.name} TO ({values}) WHERE {_key(table, row)}{note}"


def _key(table: Table, row: Row) -> str:
    pairs = zip(table.primary_key, table.key_positions, strict=True)
    return " AND ".join(f"{quoted(name)} = {_sql(row, position)}" for name, position in pairs)


def _sql(row: Row, position: int) -> str:
    value = row[position]
    return "NULL" if value is None else _shortened(value.sql)


def _rows(checked: Checked) -> Iterator[str]:
    if checked.view < 0:
        yield f"at LSN {checked.lsn}"
        return
    yield f"{checked.case.views[checked.view].name} at LSN {checked.lsn}"
    expected, got = Counter(checked.expected), Counter(checked.got)
    for title, rows in (
        ("missing (expected, not got)", expected - got),
        ("too many (got, not expected)", got - expected),
        ("right", expected & got),
    ):
        if rows:
            yield f"  {title}:"
            elements = sorted(rows.elements())
            yield from (f"    {_shortened(row)}" for row in elements[:_SHOWN_ROWS])
            if len(elements) > _SHOWN_ROWS:
                yield f"    and {len(elements) - _SHOWN_ROWS} more"


def _shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else text[:most] + "…"
