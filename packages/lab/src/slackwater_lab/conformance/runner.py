"""Runs a reader, which may be any program, over the cases, and compares what it prints with the recordings.

How the program is started, and what it prints, is in the description of the command. It may omit transactions
without documents.
"""

import json
import os
import queue
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from slackwater.protocol import SystemClock
from slackwater_lab.conformance.case import Case, Expected, Record
from slackwater_lab.conformance.replay import replayed

SECONDS = 120.0
"""How long a reader may be silent."""
HOLD_SECONDS = 5.0
"""How long a marker is late, if the reader does not show before then that it does not wait."""
_PRINTED = ("id", "xid", "skipped")


def run_cases(
    cases: Iterable[Case],
    program: Sequence[str],
    bootstrap: str,
    *,
    seconds: float = SECONDS,
    hold_seconds: float = HOLD_SECONDS,
) -> Iterator[tuple[Case, str]]:
    """Yields each case with what is wrong with the reader; empty if it conforms.

    Every case is written to new topics.
    """
    for case in cases:
        run = case.renamed(f"{uuid.uuid4().hex[:8]}.")
        with replayed(run, bootstrap) as replay:
            start = () if run.head.start is None else (str(run.head.start),)
            reader = ReaderProgram([*program, bootstrap, run.head.commits, *start], seconds)
            try:
                if run.head.held:
                    reader.read(lines=_visible(run))
                    reader.read(lines=_visible(run) + 1, seconds=hold_seconds)
                    if reader.has_ended or len(reader.lines) > _visible(run):
                        yield case, "it does not wait for a marker that is late"
                        continue
                    replay.release()
                reader.read()
                yield case, problem_of(run, reader)
            finally:
                reader.close()


class ReaderProgram:
    """A process that prints lines."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.lines: list[str] = []
        self.has_ended = self.is_silent = False
        self._seconds = seconds
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=dict(os.environ)
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def read(self, *, lines: int | None = None, seconds: float | None = None) -> None:
        """Waits until it has printed a number of lines, has ended, or has been silent for too long."""
        clock = SystemClock()
        deadline = clock.monotonic() + (self._seconds if seconds is None else seconds)
        while not self.has_ended and (lines is None or len(self.lines) < lines):
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - clock.monotonic()))
            except queue.Empty:
                self.is_silent = seconds is None
                return
            self.has_ended = line is None
            if line is not None:
                self.lines.append(line)

    def exit(self) -> tuple[int, str]:
        """Returns its exit code, and the end of what it reported as errors."""
        code = self._process.wait(self._seconds)
        self._errors.seek(0)
        return code, self._errors.read().decode(errors="replace").strip()[-500:]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with self._process.stdout as lines:
            for line in lines:
                self._arrived.put(line)
        self._arrived.put(None)


def problem_of(case: Case, reader: ReaderProgram) -> str:
    """Returns what is wrong with what a reader has printed, and how it has ended; empty: nothing."""
    if reader.is_silent:
        return f"it neither prints anything nor ends; expected {len(case.expected)} transactions"
    code, errors = reader.exit()
    if case.head.refused and (code == 0 or not errors):
        return "it ended without an error; expected that it refuses to continue"
    if not case.head.refused and code != 0:
        return f"it ended with exit code {code}: {errors}"
    printed = [_parsed(line) for line in reader.lines]
    return difference(case, printed)


def difference(case: Case, printed: Sequence[dict[str, Any]]) -> str:
    """Returns the first difference between printed and expected transactions; empty: there is none."""
    left = list(printed)
    for expected in case.expected:
        wanted = _wanted(case, expected)
        if left and _described(left[0]) == wanted:
            del left[0]
        elif expected.documents and not (case.head.refused and not left):
            return f"it printed {_shown(left)}\nexpected {wanted}"
    return f"it printed {_shown(left)}\nexpected nothing more" if left else ""


def _wanted(case: Case, expected: Expected) -> dict[str, Any]:
    found = {name: getattr(expected, name) for name in _PRINTED}
    return {**found, "documents": _by_partition(case.documents(expected))}


def _described(printed: dict[str, Any]) -> dict[str, Any]:
    found = {name: printed.get(name) for name in _PRINTED}
    return {**found, "documents": _by_partition(printed.get("documents", []))}


def _by_partition(documents: list[Any]) -> list[Any]:
    """Sorts by partition only: within one, the order counts."""
    ordered = sorted(documents, key=_place)
    return [[*place, [each[2:] for each in found]] for place, found in groupby(ordered, key=_place)]


def _place(document: list[Any]) -> list[Any]:
    return [str(document[0]), int(document[1])]


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"printed": line}


def _shown(left: Sequence[dict[str, Any]]) -> str:
    return str(_described(left[0])) if left else "nothing more"


def _visible(case: Case) -> int:
    """Returns how many of the expected transactions can be read while one is held."""
    records = [each for each in case.steps if isinstance(each, Record)]
    held = {(r.topic, r.partition, r.offset) for r in records if r.transaction == case.head.held}
    return [not held.isdisjoint(each.documents) for each in case.expected].index(True)
