"""The text of a view without comments and strings, and places in it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from slackwater.sql.errors import SourceText

_OPAQUE = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)"
    r"|'(?:[^']|'')*(?:'|\Z)"
    r'|"(?:[^"]|"")*(?:"|\Z)'
    r"|(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?:(?P=tag)|\Z)",
    re.DOTALL,
)
_START = re.compile(r"[\s(]*(\w*)")
_TABLE_FUNCTION = re.compile(
    r"\b(?P<table>TABLE\s*\()\s*(?:TUMBLE|HOP)\s*\(\s*(?P<word>TABLE\b)?[^,]*,\s*"
    r"(?:(?P<open>DESCRIPTOR\s*\()[^()]*(?P<close>\)))?",
    re.IGNORECASE,
)
_KEYWORD = re.compile(r"\s+(TRANSACTIONALLY)\b", re.IGNORECASE)
_NESTING = re.compile(r"(?P<open>[(\[{]|\bCASE\b)|[)\]}]|\bEND\b", re.IGNORECASE)
_OPENING = {")": "(", "]": "[", "}": "{"}
_CLOSING = {opening: closing for closing, opening in _OPENING.items()}


@dataclass(frozen=True)
class ViewText(SourceText):
    """A view as the user wrote it."""

    @cached_property
    def code(self) -> str:
        """The text with comments blanked, and ``TABLE(TUMBLE(TABLE t, DESCRIPTOR(c)`` without these words."""
        code = _OPAQUE.sub(
            lambda found: _blank(found.group()) if found.group("comment") else found.group(), self.text
        )
        for found in _TABLE_FUNCTION.finditer(_OPAQUE.sub(lambda found: _blank(found.group()), self.text)):
            signs = list(code)
            closing = _closing(found.string, found.end("table") - 1)
            signs[closing : closing + 1] = " "
            for group in ("table", "word", "open", "close"):
                signs[slice(*found.span(group))] = _blank(found[group] or "")
            code = "".join(signs)
        return code

    @cached_property
    def structure(self) -> str:
        """The text with comments, strings and quoted names blanked, so that only words and signs are left."""
        return _OPAQUE.sub(lambda found: _blank(found.group()), self.code)

    @cached_property
    def query(self) -> str:
        """The text as DuckDB understands it: comments, TRANSACTIONALLY and semicolons at the end are blanked.

        Raises:
            SqlTextError: TRANSACTIONALLY is misplaced.
        """
        start, end = self._keyword()
        code = self.code[:start] + " " * (end - start) + self.code[end:]
        last = len(code.rstrip().rstrip("; \t\n\r"))
        return code[:last] + _blank(code[last:])

    def deepest(self) -> int:
        """Returns the offset at which the innermost parentheses, or the innermost CASE, open."""
        depth = most = place = 0
        for found in _NESTING.finditer(self.structure):
            depth += 1 if found["open"] else -1
            if depth > most:
                most, place = depth, found.start()
        return place

    def balanced(self, start: int, end: int) -> tuple[int, int]:
        """Returns the span with as many parentheses added around it as those inside it need."""
        missing_left, missing_right = _unmatched(self.structure[start:end])
        for closing in missing_left:
            found = self.structure.rfind(_OPENING[closing], 0, start)
            if found < 0 or self.code[found + 1 : start].strip():
                break
            start = found
        for opening in missing_right:
            found = self.structure.find(_CLOSING[opening], end)
            if found < 0 or self.code[end:found].strip():
                break
            end = found + 1
        return start, end

    def closing(self, opening: int) -> int:
        """Returns the offset of the parenthesis that closes the one at `opening`."""
        return _closing(self.structure, opening)

    def top_level(self, pattern: str, start: int, end: int) -> re.Match[str] | None:
        """Returns the last match in `[start, end)` outside of parentheses."""
        depth, found, position = 0, None, start
        compiled = re.compile(pattern, re.IGNORECASE)
        while position < end:
            sign = self.structure[position]
            depth += (sign in "([{") - (sign in ")]}")
            if depth == 0 and (match := compiled.match(self.structure, position, end)):
                found, position = match, match.end()
                continue
            position += 1
        return found

    def _keyword(self) -> tuple[int, int]:
        first = _START.match(self.structure)
        start, end = first.span(1) if first else (0, 0)
        word = self.structure[start:end].upper()
        if word == "WITH":
            select = self._main_select(start)
        else:
            select = end if word == "SELECT" else -1
        found = _KEYWORD.match(self.structure, select) if select >= 0 else None
        if found is None:
            problem = "a view must start with SELECT TRANSACTIONALLY"
            hint = "It means that each published state shows the database after a commit, never in between"
            if word == "WITH" and select >= 0:
                start, end = select - len("SELECT"), select
                problem = "the SELECT after WITH must be SELECT TRANSACTIONALLY"
            raise self.error(start, end, problem, hint)
        return found.span(1)

    def _main_select(self, start: int) -> int:
        """Returns the offset after the first SELECT that is not nested deeper than `start`."""
        depth = 0
        for found in re.finditer(r"[()]|\bSELECT\b", self.structure[start:], re.IGNORECASE):
            sign = found.group()
            if sign not in "()" and depth == 0:
                return start + found.end()
            depth += (sign == "(") - (sign == ")")
        return -1


@dataclass(frozen=True, slots=True)
class Splice:
    """A replacement of the characters `[start, end)`."""

    start: int
    end: int
    text: str


def spliced(text: str, start: int, end: int, splices: Iterable[Splice]) -> str:
    """Returns the characters `[start, end)` with the replacements; for one place, the first counts."""
    parts: list[str] = []
    position = start
    for splice in _in_order(splices):
        if splice.start < position or splice.end > end:
            continue
        parts += [text[position : splice.start], splice.text]
        position = splice.end
    return "".join([*parts, text[position:end]])


def original_offset(splices: Iterable[Splice], offset: int) -> int:
    """Returns the offset in the original text of a character of the spliced text."""
    moved = 0
    for splice in _in_order(splices):
        if splice.start + moved > offset:
            break
        if offset < splice.start + moved + len(splice.text):
            return splice.start
        moved += len(splice.text) - (splice.end - splice.start)
    return offset - moved


def _in_order(splices: Iterable[Splice]) -> list[Splice]:
    return sorted(set(splices), key=lambda each: (each.start, -each.end, each.text))


def _closing(structure: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(structure)):
        depth += (structure[position] in "([{") - (structure[position] in ")]}")
        if depth == 0:
            return position
    return len(structure)


def _unmatched(structure: str) -> tuple[list[str], list[str]]:
    """Returns unmatched closing signs, then unmatched opening ones, innermost first."""
    closing: list[str] = []
    opening: list[str] = []
    for sign in structure:
        if sign in _CLOSING:
            opening.append(sign)
        elif sign in _OPENING and opening:
            opening.pop()
        elif sign in _OPENING:
            closing.append(sign)
    return closing, opening[::-1]


def _blank(text: str) -> str:
    return "".join(sign if sign in "\r\n" else " " for sign in text)
