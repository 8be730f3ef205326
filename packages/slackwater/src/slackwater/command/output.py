"""Output for people: rewritten in place on a terminal, plain lines otherwise."""

import sys
from collections.abc import Callable, Iterable, Sequence

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from slackwater.command.boundary import Command
from slackwater.observe.logs import hidden
from slackwater.protocol import Finding, from_epoch_ms


class Output:
    """Prints lines, one changing line of progress, and tables. Not thread-safe."""

    def __init__(self) -> None:
        self._console = Console(highlight=False) if sys.stdout.isatty() else None
        self._status: Status | None = None
        self._progress = ""

    @property
    def is_terminal(self) -> bool:
        """True if lines can be rewritten in place."""
        return self._console is not None

    def line(self, text: str = "") -> None:
        """Prints a line that stays."""
        if self._console:
            self._console.print(text, markup=False)
        else:
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Prints a line that the next one replaces; without a terminal it stays, but is not repeated."""
        if self._status is not None:
            self._status.update(escape(text))
        elif self._console is not None:
            self._status = self._console.status(escape(text))
            self._status.start()
        elif text != self._progress:
            print(text, flush=True)
        self._progress = text

    def end_progress(self) -> None:
        """Removes the changing line. Idempotent."""
        if self._status:
            self._status.stop()
            self._status = None

    def lines(self, texts: Iterable[str]) -> None:
        """Prints lines that stay."""
        for text in texts:
            self.line(text)

    def table(self, rows: Iterable[Sequence[str]]) -> None:
        """Prints rows of texts with their columns aligned."""
        self.lines(aligned(rows))

    def report(self, found: object, lines: Iterable[str], *, as_json: bool) -> None:
        """Prints what a command has found: for tools one line of JSON, or a text that is JSON.

        The lines are the same for people, and not asked for otherwise.
        """
        if as_json:
            print(found if isinstance(found, str) else msgspec.json.encode(found).decode(), flush=True)
        else:
            self.lines(lines)


def json_option(what: str) -> Callable[[Command], Command]:
    """Makes the click option of commands that can print for tools, and says what they print then."""
    return click.option("--json", "as_json", is_flag=True, help=f"For tools: {what}.")


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a line per row; columns are as wide as their longest text, the last one is left as it is."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(max(map(len, cells)))]
    return [
        "  ".join(
            [text.ljust(width) for text, width in zip(row[:-1], widths, strict=False)] + row[-1:]
        ).rstrip()
        for row in cells
    ]


def ago(milliseconds: int, now_ms: int) -> str:
    """Says how long ago a moment was, both in milliseconds since the epoch."""
    seconds = max(0, now_ms - milliseconds) / 1000
    if seconds < 120:
        return f"{seconds:.1f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"


def utc(milliseconds: int) -> str:
    """Returns a moment, in milliseconds since the epoch, to the second."""
    return f"{from_epoch_ms(milliseconds):%Y-%m-%d %H:%M:%S} UTC"


def show_findings(findings: Iterable[Finding], output: Output, when_right: str) -> int:
    """Prints each finding as it comes, with what to do below it, and how many problems there are.

    Returns the exit code: 1 if there is a problem. Without one, the last line is the given one.
    """
    problems = 0
    for found in findings:
        problems += found.verdict.is_problem
        output.line(hidden(f"{found.verdict:<8} {found.subject}: {found.text}"))
        if found.hint:
            output.line(hidden(f"{'':<8}   {found.hint}"))
    count = "1 problem" if problems == 1 else f"{problems} problems"
    output.line(count if problems else when_right)
    return 1 if problems else 0
