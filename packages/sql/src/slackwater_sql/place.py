"""Places in texts that users write."""

from dataclasses import dataclass

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, as an editor counts: lines and columns start at 1.

    Attributes:
        path: The file as the user named it.
        line: Line number.
        column: Column number, in characters.
        text: The offending text, shortened; may be empty.
    """

    path: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text with its file name, which turns offsets into places.

    Attributes:
        path: The file as the user named it.
        text: The whole text.
    """

    path: str
    text: str

    def place(self, start: int, end: int) -> Place:
        """The place of the characters `[start, end)`; an offset behind the text means its end."""
        start = max(0, min(start, len(self.text)))
        before = self.text[:start]
        line_start = before.rfind("\n") + 1
        shown = " ".join(self.text[start:end].split())
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
        return Place(self.path, before.count("\n") + 1, start - line_start + 1, shown)
