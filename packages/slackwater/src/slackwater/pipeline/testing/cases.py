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
        at: 2026-11-20T10:00:00Z                          # its commit time, and that of those after it
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import yaml

from slackwater.pipeline.testing.view_test import ViewTest
from slackwater.protocol import InputError
from slackwater.settings.errors import did_you_mean
from slackwater.sql.errors import SqlError

_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_DECIMAL: Final = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")
_CONSTANTS: Final[Mapping[str, object]] = {"": None, "~": None, "null": None, "true": True, "false": False}
"""The constants of YAML 1.2, in which `no` and `on` are texts."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A value of a file, as it is written, so that no digit is lost, with its place.

    Attributes:
        value: A mapping or list of such values, or a text, int, Decimal, bool or None.
        file: The file.
        line: The line, from 1; for the value of a mapping, the line of its name.
    """

    value: Any
    file: Path
    line: int

    def plain(self) -> Any:
        """Returns the value without places."""
        match self.value:
            case dict():
                return {name: each.plain() for name, each in self.value.items()}
            case list():
                return [each.plain() for each in self.value]
        return self.value

    def mapping(self, what: str) -> "dict[str, Placed]":
        """Returns the value, which must be a mapping."""
        if not isinstance(self.value, dict):
            raise self.error(f"expected {what}, as a mapping")
        return self.value

    def list(self, what: str) -> "list[Placed]":
        """Returns the value, which must be a list."""
        if not isinstance(self.value, list):
            raise self.error(f"expected {what}, as a list")
        return self.value

    @property
    def place(self) -> str:
        """The file and the line, in the form that editors and terminals recognise."""
        return f"{self.file}:{self.line}"

    def error(self, problem: str, hint: str = "") -> InputError:
        """Returns an error at this place."""
        return InputError(f"{self.place}: {problem}", hint)


Apply = Callable[[ViewTest, Placed], None]


@dataclass(frozen=True, slots=True)
class ViewCase:
    """One test of a file."""

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
                known = (*_PARTS, "expect")
                hint = did_you_mean(name, known) or f"the parts are {', '.join(known)}"
                raise part.error(f"a transaction has no part {name}", hint)
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
    "at": lambda test, part: _at(part, test.at, str(part.value)),
}


def read_placed(path: Path) -> Placed:
    """Reads a file of YAML, of which JSON is a subset.

    Raises:
        InputError: It cannot be read; the error contains the line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(filter(None, [error.context, error.problem]))
        raise InputError(f"{path}:{line}: {problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return Placed(None, path, 1) if node is None else _placed(node, path)


def _placed(node: yaml.Node, path: Path, line: int = 0) -> Placed:
    line = line or node.start_mark.line + 1
    match node:
        case yaml.MappingNode():
            found: dict[str, Placed] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(f"{path}:{line}: expected a name before the colon")
                if key.value in found:
                    place = f"{path}:{key.start_mark.line + 1}"
                    raise InputError(f"{place}: {key.value} occurs twice")
                found[key.value] = _placed(value, path, key.start_mark.line + 1)
            return Placed(found, path, line)
        case yaml.SequenceNode():
            return Placed([_placed(each, path) for each in node.value], path, line)
    return Placed(_scalar(node), path, line)


def _scalar(node: yaml.Node) -> object:
    text: str = node.value
    if node.style is not None:  # type: ignore[attr-defined]  # quoted, or a block of text
        # JSON writes characters beyond the first plane as two escapes.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text):
        return int(text)
    return Decimal(text) if _DECIMAL.match(text) else text
