"""Pieces of SQL that know where the user wrote them."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from slackwater.sql.errors import TextPlace
from slackwater.sql.frontend.text import ViewText

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_FUNCTION: Final = re.compile(r'(?:"?\w+"?\s*\.\s*)*"?\w+"?\s*(?=\()')


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the SQL.

    Attributes:
        origin: The offset in the user's text from which it comes, or which it replaces.
        is_copied: Whether it is the user's text itself.
    """

    text: str
    origin: int
    is_copied: bool


Code = tuple[Piece, ...]
"""SQL."""


def text_of(code: Code) -> str:
    """Returns the SQL."""
    return "".join(piece.text for piece in code)


def copied(text: str, start: int, end: int, parts: Iterable[tuple[int, int, Code]] = ()) -> Code:
    """Returns the characters `[start, end)` with other code for parts of it, of which the outermost count."""
    pieces: list[Piece] = []
    position = start
    for first, last, code in sorted(parts, key=lambda part: (part[0], -part[1])):
        if first < position or last > end:
            continue
        pieces += [Piece(text[position:first], position, True), *code]
        position = last
    return tuple(each for each in (*pieces, Piece(text[position:end], position, True)) if each.text)


def filled(template: str, values: Mapping[str, Code | str], origin: int) -> Code:
    """Returns the template with code for each ``{name}``."""
    return tuple(_filled(template, values, origin))


def _filled(template: str, values: Mapping[str, Code | str], origin: int) -> Iterator[Piece]:
    for number, part in enumerate(_PLACEHOLDER.split(template)):
        value = part if number % 2 == 0 else values.get(part, f"{{{part}}}")
        if isinstance(value, tuple):
            yield from value
        elif value:
            yield Piece(value, origin, False)


def renamed(code: Code, name: str) -> Code:
    """Returns the call of an aggregate as a call of another one."""
    first, *rest = code
    called = Piece(_FUNCTION.sub(name, first.text, count=1), first.origin, False)
    return (called, *rest)


@dataclass(frozen=True)
class TranslatedText(ViewText):
    """A view in DuckDB's SQL. Places in it are those of the text that the user wrote.

    Attributes:
        written: The user's text.
    """

    pieces: Code
    written: ViewText

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(piece.text) for piece in self.pieces)]

    def place(self, start: int, end: int) -> TextPlace:
        """Returns the place in the user's text of the characters `[start, end)` of this one."""
        first, last = self._origin(start), self._origin(max(start, end - 1)) + 1
        return self.written.place(first, max(last, first) if end > start else first)

    def _origin(self, offset: int) -> int:
        number = min(bisect_right(self._starts, max(offset, 0)), len(self.pieces)) - 1
        piece = self.pieces[number]
        return piece.origin + (offset - self._starts[number] if piece.is_copied else 0)
