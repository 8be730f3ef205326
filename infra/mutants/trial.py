"""Runs tests in a child process in which one module's source is exchanged; no file is changed.

The child is forked from a process that has loaded the libraries, but nothing of this repository, so that a
trial costs little more than its tests.
"""

import ast
import contextlib
import importlib
import importlib.machinery
import json
import os
import resource
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infra.mutants.catalog import Mechanism, Mutant

_LIBRARIES = (
    "pytest hypothesis.strategies msgspec duckdb pyarrow confluent_kafka redis lmdb fastavro rich "
    "click prometheus_client pyspark.sql.datasource"
)
_NOT_QUICK = ("integration", "spark", "system", "chaos", "slow")
_MEMORY = 12 << 30
"""Of address space, against what grows for ever: DuckDB was seen to reserve 6.2 GB where it used 0.5."""
_SECONDS = 900
"""Of wall time: against what waits for ever. What loops is stopped by its CPU time."""
NO_LIMIT = 1e9
_NOTHING_RUN = 5
"""The exit code of pytest if it has run no test, which notices nothing."""
_SEEDS = {"simulator": 400, "differential": 120}


class BaselineError(Exception):
    """The tests fail without any mutant."""


@dataclass(slots=True)
class Quick:
    """What the quick tests of a mechanism run, as seen in one run without a mutant."""

    seconds: dict[str, float]
    """CPU time by test."""
    tests_of: dict[str, list[str]]
    """By function (``file:line``): the tests that call it, the quickest first."""

    def of(self, mutant: Mutant, root: Path) -> list[str]:
        """The tests that can notice a mutant: all, if it is outside of functions."""
        function = _function_at((root / mutant.file).read_text(), mutant.lines)
        if function is None:
            return sorted(self.seconds, key=lambda test: self.seconds[test])
        return self.tests_of.get(f"{mutant.file}:{function}", [])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant."""

    caught_by: str
    """``tests``, ``simulator``, ``differential``; empty if it survives."""
    how: str
    """The test that failed, ``time`` or ``crash``."""
    seconds: float


def load_libraries() -> None:
    """Loads what all children share."""
    for name in _LIBRARIES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def look(root: Path, mechanism: Mechanism, logs: Path, limit: float, *, has_properties: bool = True) -> Quick:
    """Runs the quick tests of a mechanism once, without a mutant, with or without property tests.

    Tests that took more CPU time than the limit (in seconds) the last time are left out.

    Raises:
        BaselineError: they fail.
    """
    report, log = logs / f"{mechanism.name}.json", logs / "baseline.log"
    known = json.loads(report.read_text())["seconds"] if report.exists() else {}
    slow = {test for test, seconds in known.items() if seconds > limit}
    plugins = [
        _Recorder({str((root / f).resolve()): f for f in mechanism.files}, report),
        _Selection(lambda test: test.nodeid not in slow and (has_properties or not _is_property(test))),
    ]
    if _in_child(lambda: _pytest(mechanism.tests, plugins, mechanism.lane), root, None, log, 3600) != 0:
        raise BaselineError(f"the tests of {mechanism.name} fail without a mutant: {log}")
    found = json.loads(report.read_text())
    seconds = found["seconds"]
    tests_of = {
        where: sorted(tests, key=lambda test: seconds[test]) for where, tests in found["tests_of"].items()
    }
    if limit < NO_LIMIT:
        report.write_text(json.dumps({"seconds": known | seconds, "tests_of": {}}))
    return Quick(seconds, tests_of)


def judge(root: Path, mechanism: Mechanism, quick: Quick, mutant: Mutant, logs: Path) -> Outcome:
    """Runs the tests that can notice a mutant, and if they do not, what judges the mechanism then."""
    began = time.monotonic()
    log = logs / "mutant.log"
    tests = quick.of(mutant, root)
    for portion in _portions(tests):
        order = {test: number for number, test in enumerate(portion)}
        limit = 30 + int(10 * sum(quick.seconds[test] for test in portion))
        code = _in_child(partial(_run_selected, order, mechanism.lane), root, mutant, log, limit)
        if code != 0:
            return Outcome("tests", _how(code, log), time.monotonic() - began)
    if mechanism.then:
        code = _in_child(lambda: _run_seeds(mechanism.then), root, mutant, log, 600)
        if code != 0:
            return Outcome(mechanism.then, _how(code, log), time.monotonic() - began)
    return Outcome("", "" if tests else "no quick test calls it", time.monotonic() - began)


def _portions(tests: list[str]) -> list[list[str]]:
    """First the tests of the file with most of them: collecting all files takes longer than running one."""
    numbers = Counter(map(_file_of, tests))
    first = max(numbers, key=numbers.__getitem__, default="")
    parts = ([t for t in tests if _file_of(t) == first], [t for t in tests if _file_of(t) != first])
    return [part for part in parts if part]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _is_property(test: Any) -> bool:
    return test.get_closest_marker("hypothesis") is not None


def _run_selected(order: dict[str, int], lane: str) -> int:
    chosen = _Selection(lambda test: test.nodeid in order, order)
    code = _pytest(sorted({_file_of(test) for test in order}), [chosen], lane)
    return 0 if code == _NOTHING_RUN else code


def _pytest(tests: list[str], plugins: Sequence[object], lane: str) -> int:
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile", "ci"]
    options += ["--assert", "plain"]  # pytest itself loads what it rewrites, plugins' packages too: no mutant
    excluded = [each for each in _NOT_QUICK if each != lane]
    marks = " and ".join(f"not {each}" for each in excluded)
    return int(pytest.main([*options, "--tb=line", "-m", marks, *tests], plugins=plugins))


def _run_seeds(what: str) -> int:
    seeds = importlib.import_module("slackwater_lab.seeds")
    if what == "simulator":
        subject = importlib.import_module("slackwater_lab.simulator.simulation").Simulator()
    else:
        subject = importlib.import_module("slackwater_lab.differential.subject").Differential()
    failed = seeds.first_failure(seeds.Plan(subject, 0, _SEEDS[what]))
    if failed is None:
        return 0
    sys.stdout.write(f"FAILED seed {failed.case.seed}\n")
    return 1


def _in_child(run: Callable[[], int], root: Path, mutant: Mutant | None, log: Path, cpu_seconds: int) -> int:
    """The exit code; negative: the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            _prepare(root, mutant, log, cpu_seconds)
            code = run()
        except BaseException as error:  # noqa: BLE001 - a mutant may raise anything while it is imported
            sys.stdout.write(f"FAILED {type(error).__name__}: {error}\n")
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + max(_SECONDS, 2 * cpu_seconds if mutant is None else 0)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the tests left behind
    return os.waitstatus_to_exitcode(status)


def _prepare(root: Path, mutant: Mutant | None, log: Path, cpu_seconds: int) -> None:
    handle = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    os.chdir(root)
    sources = [str(p) for p in sorted(root.glob("packages/*/src"))]
    sys.path[:0] = [*sources, str(root / "sidecar/src"), str(root / "benchmarks/src")]
    if mutant is not None:
        _exchange(str((root / mutant.file).resolve()), mutant.source)


def _exchange(path: str, source: str) -> None:
    """Lets a module be compiled from another text."""
    loader: Any = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> types.CodeType | None:
        if os.path.realpath(self.get_filename(fullname)) == path:
            return compile(source, path, "exec", dont_inherit=True)
        found: types.CodeType | None = original(self, fullname)
        return found

    loader.get_code = get_code


def _how(code: int, log: Path) -> str:
    if code < 0:
        return "time" if -code in (signal.SIGKILL, signal.SIGXCPU) else "crash"
    lines = log.read_text(errors="replace").splitlines()
    named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return named[0].split(" - ")[0].partition(" ")[2][:200] if named else f"exit code {code}"


def _function_at(text: str, lines: tuple[int, int]) -> int | None:
    """The line at which the innermost function around some lines begins, decorators included."""
    found = None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.body:
            begins = node.body[0].lineno
            if begins <= lines[0] and lines[1] <= (node.end_lineno or 0):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found = first if found is None else max(found, first)
    return found


class _Selection:
    """A pytest plugin: runs the tests that are chosen, and in their order if they have one."""

    def __init__(self, is_chosen: Callable[[Any], bool], order: Mapping[str, int] = {}) -> None:
        self._is_chosen = is_chosen
        self._order = order

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(filter(self._is_chosen, items), key=lambda item: self._order.get(item.nodeid, 0))


class _Recorder:
    """A pytest plugin: which test calls which functions of some files, and its CPU time."""

    def __init__(self, files: dict[str, str], report: Path) -> None:
        self._files = files
        self._report = report
        self._calls: set[tuple[str, int]] = set()
        self._seconds: dict[str, float] = {}
        self._tests_of: dict[str, list[str]] = {}

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._calls = set()

    def pytest_sessionstart(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_runtest_setup(self, item: Any) -> None:
        sys.settrace(self._trace)  # Python ends it in a test that recurses too deeply
        self._seconds[item.nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid in self._seconds:
            self._seconds[nodeid] += time.process_time()
        for path, line in self._calls:
            self._tests_of.setdefault(f"{path}:{line}", []).append(nodeid)

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        report = {"seconds": self._seconds, "tests_of": self._tests_of}
        self._report.write_text(json.dumps(report))

    def _trace(self, frame: types.FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        path = self._files.get(code.co_filename)
        if path is not None:
            self._calls.add((path, code.co_firstlineno))
