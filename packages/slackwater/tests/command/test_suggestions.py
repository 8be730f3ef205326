"""Names that nothing has are errors with suggestions."""

import pytest

from slackwater.command.invocation import lsn_of
from slackwater.protocol import InputError
from slackwater.settings.errors import unknown


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("ordres", ["orders", "stock"], "did you mean orders?"),
        ("ORDERS", ["orders", "stock"], "did you mean orders?"),
        ("xyz", ["stock", "orders"], "known: orders, stock"),
        ("xyz", [], "known: none"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_what_may_be_meant(
    name: str, known: list[str], hint: str
) -> None:
    error = unknown("pipeline", name, known)
    assert str(error).startswith(f"unknown pipeline {name!r}")
    assert error.hint == hint


def test_an_lsn_is_what_postgresql_writes_or_a_number() -> None:
    assert lsn_of("0/10", "--lsn") == lsn_of("16", "--lsn") == 16
    with pytest.raises(InputError, match="--lsn 'xyz' is no LSN"):
        lsn_of("xyz", "--lsn")
