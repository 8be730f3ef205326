"""Tests of views as files: transactions and what the views show after them.

::

    a customer's revenue is the sum of the invoices:      # the test's name; a file may have several
      - insert:                                           # a transaction, its parts in this order
          public.invoice:
            - {id: 1, customer: ada, amount: 10.50}
        expect:                                           # all documents of a view after it
          revenue:
            - {customer: ada, amount: 10.50}
      - update: {public.invoice: [{id: 1, amount: 12}]}   # the primary key names the row
        delete: {public.invoice: [{id: 2}]}
        truncate: [public.line]
        sql: "DELETE FROM public.line WHERE amount < 1"   # statements, or the name of a .sql file
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slackwater.pipeline.testing.placed import Placed, read_placed
from slackwater.pipeline.testing.view_test import ViewTest
from slackwater.protocol import InputError
from slackwater.sql.catalog import similar
from slackwater.sql.errors import SqlError

Apply = Callable[[ViewTest, Placed], None]


@dataclass(frozen=True, slots=True)
class ViewCase:
    """One test of a file.

    Attributes:
        name: The name of the test, which describes the views.
        transactions: The transactions in their order.
    """

    name: str
    transactions: Placed

    @property
    def place(self) -> str:
        """The file and the line."""
        return self.transactions.place

    def run(self, test: ViewTest) -> None:
        """Runs the transactions on empty tables, and checks the expectations.

        Raises:
            AssertionError: Documents differ; the error contains file, line and difference.
            InputError: A transaction is impossible; the error contains file and line.
        """
        test.reset()
        for transaction in self.transactions.list("transactions"):
            self._run(test, transaction)

    def _run(self, test: ViewTest, transaction: Placed) -> None:
        parts = transaction.mapping("a transaction")
        for name, part in parts.items():
            if name == "expect":
                continue
            if name not in _PARTS:
                meant = similar(name, (*_PARTS, "expect")) or (*_PARTS, "expect")
                raise part.error(f"a transaction has no part {name}", f"did you mean {' or '.join(meant)}?")
            _PARTS[name](test, part)
        _at(transaction, test.commit)
        if "expect" in parts:
            for view, documents in parts["expect"].mapping("documents by view").items():
                rows = [each.plain() for each in documents.list("documents")]
                _at(documents, test.expect, view, rows)


def read_cases(path: Path) -> list[ViewCase]:
    """Reads the tests of a file.

    Raises:
        InputError: It is not a file of tests; the error contains the line.
    """
    found = read_placed(path).mapping("a test with its name")
    return [ViewCase(name, transactions) for name, transactions in found.items()]


def _at(placed: Placed, work: Callable[..., object], *arguments: object) -> None:
    """Runs a function, and adds the place to its errors."""
    try:
        work(*arguments)
    except InputError as error:
        raise placed.error(error.problem, error.hint) from error
    except AssertionError as error:
        raise AssertionError(f"{placed.place}: {error}") from None
    except SqlError as error:
        raise placed.error(str(error)) from error


def _rows(change: Callable[[ViewTest, str, Mapping[str, object]], object]) -> Apply:
    """Returns the part of a transaction that changes rows, by table."""

    def apply(test: ViewTest, part: Placed) -> None:
        for table, rows in part.mapping("rows by table").items():
            for row in rows.list("rows"):
                _at(row, change, test, table, row.plain())

    return apply


def _truncate(test: ViewTest, part: Placed) -> None:
    for table in part.list("tables"):
        _at(table, test.truncate, str(table.value))


def _sql(test: ViewTest, part: Placed) -> None:
    text = part.value
    if not isinstance(text, str):
        raise part.error("expected SQL as text")
    if text.endswith(".sql") and "\n" not in text:
        path = part.file.parent / text
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise part.error(f"{path} cannot be read: {error}") from None
    _at(part, test.sql, text)


_PARTS: Final[Mapping[str, Apply]] = {
    "insert": _rows(lambda test, table, row: test.insert(table, row)),
    "update": _rows(lambda test, table, row: test.update(table, row)),
    "delete": _rows(lambda test, table, row: test.delete(table, row)),
    "truncate": _truncate,
    "sql": _sql,
}
