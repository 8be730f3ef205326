"""Processes of a run and the memory they took."""

import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import psutil

SAMPLE_SECONDS = 1.0


@dataclass(slots=True)
class MemoryWatch:
    """Samples the proportional set size of process trees; peaks in MiB per role.

    Proportional, since Python workers are forked and share pages with each other.
    """

    roots: dict[str, int]
    """Role to pid. Children are counted with their root, a JVM below a Python process as ``<role> jvm``."""
    peaks: dict[str, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "MemoryWatch":
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            sample: dict[str, float] = {}
            for role, pid in self.roots.items():
                self._add(sample, role, pid)
            for name, mib in sample.items():
                self.peaks[name] = max(self.peaks.get(name, 0.0), round(mib, 1))

    @staticmethod
    def _add(sample: dict[str, float], role: str, pid: int) -> None:
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                name = _role(role, process, root)
                sample[name] = sample.get(name, 0.0) + process.memory_full_info().pss / 2**20
        except psutil.Error:
            return  # it ended while we looked


def _role(role: str, process: psutil.Process, root: psutil.Process) -> str:
    if process == root:
        return role
    return f"{role} jvm" if process.name() == "java" else f"{role} workers"


def stop_all(processes: Iterable[subprocess.Popen[bytes]], seconds: float = 30) -> None:
    """Asks to stop, waits, then kills."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(roots: dict[str, int]) -> dict[str, float]:
    """Processor seconds per role so far, user and system, live descendants included."""
    result: dict[str, float] = {}
    for role, pid in roots.items():
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                times, name = process.cpu_times(), _role(role, process, root)
            except psutil.NoSuchProcess:
                continue  # it ended while we looked: its parent has its times now
            spent = times.user + times.system + times.children_user + times.children_system
            result[name] = round(result.get(name, 0.0) + spent, 1)
    return result


def cpu_use(roles: Mapping[str, int]) -> dict[str, float]:
    """:func:`cpu_seconds`, this process (``benchmark``) and everything on the machine (``machine``)."""
    own, machine = psutil.Process().cpu_times(), psutil.cpu_times()
    return {
        **cpu_seconds(dict(roles)),
        "benchmark": own.user + own.system,
        "machine": sum(machine) - machine.idle - machine.iowait,
    }


def cpu_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Seconds per role between two answers of :func:`cpu_use`; ``others`` is what does not belong to the run.

    A machine on which others work gives worse numbers: this tells.
    """
    used = {name: value - before.get(name, 0.0) for name, value in after.items()}
    machine = used.pop("machine")
    used["others"] = max(0.0, machine - sum(used.values()))
    return {name: round(value, 1) for name, value in used.items()}
