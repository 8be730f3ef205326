"""What the forms of documents have in common."""

from dataclasses import dataclass


class UnfitValueError(ValueError):
    """A name or a value that a form of documents does not have; its text says which."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of documents or of keys."""

    name: str
    type: str
    """As DuckDB writes it."""
