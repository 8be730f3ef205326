"""The text of `CREATE TABLE` files as statements of tokens with places."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater_sql.errors import SchemaError
from slackwater_sql.place import SourceText

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]*\Z")


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a DDL text.

    Attributes:
        text: As written; a quoted name without its quotes.
        upper: Upper-case form to compare keywords with; empty for quoted names and strings.
        start: Offset of the first character.
        end: Offset behind the last character.
    """

    text: str
    upper: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The name this word stands for: PostgreSQL folds unquoted names to lower case."""
        return self.text.lower() if self.upper else self.text


def statements(source: SourceText) -> Iterator[tuple[Word, ...]]:
    """The statements of the text, in order, without their semicolons.

    Raises:
        SchemaError: A string or quoted name does not end.
    """
    statement: list[Word] = []
    for word in _words(source):
        if word.upper == ";":
            if statement:
                yield tuple(statement)
            statement = []
        else:
            statement.append(word)
    if statement:
        yield tuple(statement)


def split_at_commas(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The parts between the commas that stand outside of parentheses and brackets."""
    depth = 0
    part: list[Word] = []
    for word in words:
        depth += (word.upper in {"(", "["}) - (word.upper in {")", "]"})
        if word.upper == "," and depth == 0:
            yield tuple(part)
            part = []
        else:
            part.append(word)
    if part:
        yield tuple(part)


def quoted(name: str) -> str:
    """The name as it must be written in SQL to mean exactly this."""
    return name if _PLAIN_NAME.match(name) else '"' + name.replace('"', '""') + '"'


def _words(source: SourceText) -> Iterator[Word]:
    # sqlglot takes a third of this package's import time, and Spark's workers never parse DDL.
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import TokenError

    try:
        tokens = Postgres.Tokenizer().tokenize(source.text)
    except TokenError as error:
        place = source.place(len(source.text), len(source.text))
        problem = "a string, quoted name or comment does not end"
        raise SchemaError(place, problem, "Close it.") from error
    for token in tokens:
        yield from _split(token)


def _split(token: "Token") -> Iterator[Word]:
    """One word per token; keywords that the tokenizer joined (DOUBLE PRECISION) are taken apart."""
    from sqlglot.tokenizer_core import TokenType

    end = token.end + 1
    if token.token_type is TokenType.IDENTIFIER or "STRING" in token.token_type.name:
        yield Word(token.text, "", token.start, end)
        return
    offset = token.start
    for part in token.text.split():
        yield Word(part, part.upper(), offset, end)
        offset += len(part) + 1
