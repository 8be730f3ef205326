"""What the forms of documents have in common."""

from dataclasses import dataclass


class UnfitValueError(ValueError):
    """A name or a value that a form of documents cannot represent; the message names it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of documents or of keys."""

    name: str
    type: str
    """The type as DuckDB writes it."""
