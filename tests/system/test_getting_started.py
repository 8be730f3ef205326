"""The walk of docs/getting-started.md: every file and every command of the page, over real servers.

It is walked twice: with the servers that the page starts, and with servers of one's own, whose addresses are
exchanged for those of the test. Outputs are compared with those of the page, but for LSNs,
times, and lines for which the page has an ellipsis.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import psycopg
import pytest

from slackwater.dev import DevStack, down

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
SECONDS = 180
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^##+ (?:\d+\. )?(.+)$", re.MULTILINE)
ONLY_DEV = ["On this machine"]
ONLY_OWN = ["Your own servers", "Connect your own database"]
ANYTHING = "…"
VARIES = [
    (re.compile(r"\b[0-9A-F]+/[0-9A-F]{3,}\b"), "LSN"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: UTC|Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b[\d,]+(?:\.\d+)? (m?s)\b"), r"N \1"),
    (re.compile(r"(?:localhost|127\.0\.0\.1):\d+"), "ADDRESS"),
    (re.compile(r"\S*/state\b"), "state"),
    (re.compile(r"[\d,]+ records/s"), "N records/s"),
    (re.compile(r" \([a-z ]+ N s.*\)$"), " (PARTS)"),
    (re.compile(r" +"), " "),
]


class Walk:
    """A reader who does what the page says, in a folder of their own."""

    skipped = ONLY_OWN

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.transcript: list[str] = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "COLUMNS": "120"}
        self._environment = {k: v for k, v in os.environ.items() if k != "JAVA_TOOL_OPTIONS"} | own
        self._running: list[subprocess.Popen[str]] = []

    def follow(self, language: str, text: str) -> None:
        """Does what a block of the page says."""
        first, _, _ = text.partition("\n")
        if language == "console":
            self._type(text)
        else:
            assert first[:2] in ("# ", "--"), f"a block that names no file: {first}"
            name = first.lstrip("#- ")
            (self.folder / name).write_text(self.adapted(text))
            if language == "sql" and "/" not in name:
                self.run_sql(name)

    def adapted(self, text: str) -> str:
        """The text of a file as this reader writes it."""
        return text

    def run_sql(self, name: str) -> None:
        """Runs a file in the database."""
        self._type(f"$ slackwater dev sql {name}\n{ANYTHING}\n")

    def _type(self, text: str) -> None:
        is_background = text.startswith("# in a terminal of its own")
        for shown in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = shown.partition("\n")
            if is_background:
                self._start(command, expected.splitlines())
            else:
                done = subprocess.run(  # noqa: S602 - our own page
                    command,
                    shell=True,
                    cwd=self.folder,
                    env=self._environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
                self._compare(command, expected.splitlines(), done.stdout.splitlines())

    def _start(self, command: str, expected: list[str]) -> None:
        """Starts a command that continues, and waits until it has said what the page shows."""
        output = self.folder / f"output-{len(self._running)}"
        with output.open("w") as file:
            self._running.append(
                subprocess.Popen(
                    command.split(),
                    cwd=self.folder,
                    env=self._environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._running[-1].poll() is None:
            if agrees(expected, output.read_text().splitlines()):
                break
            time.sleep(0.2)
        self._compare(command, expected, output.read_text().splitlines())

    def _compare(self, command: str, expected: list[str], found: list[str]) -> None:
        self.transcript += [f"$ {command}", *found]
        assert agrees(expected, found), "\n".join([f"$ {command}", *found])

    def end(self) -> None:
        """Ends what continues, as Ctrl-C does."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
        down(self.folder / ".slackwater" / "dev")


class WalkWithOwnServers(Walk):
    """A reader who has servers, and a client of the database."""

    skipped = ONLY_DEV

    def __init__(self, folder: Path, stack: DevStack) -> None:
        super().__init__(folder)
        with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE shop")
        self.dsn = stack.postgres.dsn("shop")
        self._addresses = {
            "postgresql://owner:secret@localhost:5432/shop": self.dsn,
            "localhost:9092": stack.kafka.bootstrap,
            "http://localhost:8083": stack.connect.address,
            "redis://localhost:6379": stack.redis.url,
        }

    def adapted(self, text: str) -> str:
        """The text with the addresses of this reader's servers."""
        for address, own in self._addresses.items():
            text = text.replace(address, own)
        return text

    def run_sql(self, name: str) -> None:
        """Runs a file in the database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute((self.folder / name).read_bytes())


def same(line: str) -> str:
    """The line without what differs from run to run."""
    for pattern, replacement in VARIES:
        line = pattern.sub(replacement, line)
    return line.strip()


def ordered(lines: list[str]) -> list[str]:
    """The documents of a commit have no order: sorted, each group by itself."""
    groups = groupby(lines, key=lambda line: line.startswith("  {"))
    return [line for is_documents, group in groups for line in (sorted(group) if is_documents else group)]


def agrees(expected: list[str], found: list[str]) -> bool:
    """The lines are those of the page; an ellipsis stands for any lines, also for none."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == ANYTHING else re.escape(same(line)) + r"\n"
        for line in ordered(expected)
    )
    return re.fullmatch(pattern, "".join(f"{same(line)}\n" for line in ordered(found))) is not None


def blocks(skipped: list[str]) -> Iterator[tuple[str, str]]:
    """The blocks of the page with their languages, but for those of some sections."""
    _, *parts = SECTION.split(PAGE.read_text())
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(ONLY_DEV + ONLY_OWN) <= set(sections)
    for title, text in sections.items():
        if title not in skipped:
            yield from BLOCK.findall(text)


@pytest.fixture(params=["servers of the page", "own servers"])
def walk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Walk]:
    if request.param == "own servers":
        stack = request.getfixturevalue("dev_stack")()
        stack.start_connector()
        made: Walk = WalkWithOwnServers(tmp_path, stack)
    else:
        made = Walk(tmp_path)
    yield made
    made.end()


def test_every_command_of_the_page_says_what_the_page_shows(walk: Walk) -> None:
    try:
        for language, text in blocks(walk.skipped):
            walk.follow(language, text)
    finally:
        (walk.folder / "transcript").write_text("\n".join(walk.transcript))


def test_another_output_is_noticed() -> None:
    assert agrees(["…", "  0/1924838  2 rows", "…"], ["started", "0/AB00000 2 rows"])
    assert not agrees(["0/1924838  2 rows"], ["0/AB00000 3 rows"])
    assert not agrees(["0/1924838  2 rows"], ["0/AB00000 2 rows", "an error"])
    assert agrees(["  {1}", "  {2}"], ["  {2}", "  {1}"])
    assert not agrees(["  {1}", "  {2}"], ["  {1}", "  {3}"])
