"""Errors say what to do, also after they went from one process to another."""

import pickle

import pytest

from slackwater.protocol import SlackwaterError
from slackwater.sql.errors import (
    EvaluationError,
    MissingTablesError,
    RowContradictsSchemaError,
    SourceText,
    SqlError,
)

ERRORS = [
    SourceText("views/v.sql", "SELECT 1").error(
        7, 8, "a SELECT without FROM is not supported", "Read a table"
    ),
    MissingTablesError(("public.orders",)),
    RowContradictsSchemaError("public.orders", "id", "bigint as an integer of 64 bits", '"x"'),
    EvaluationError("v", '{"id":1}', "Conversion Error", ("orders {}",), 0x10),
    EvaluationError("v", "", "it took more than 1 s of CPU time", is_limit=True),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process_and_ends_with_its_hint(error: SqlError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert isinstance(copy, SqlError)
    assert isinstance(copy, SlackwaterError)
    assert str(copy) == str(error)
    assert copy.hint
    assert str(copy).endswith(copy.hint)
