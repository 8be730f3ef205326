"""The resources of a run: processor time, memory, Redis, and what the pipeline said of its batches."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

import psutil

from slackwater.protocol import parse_position
from slackwater_lab.watching import Background

SAMPLE_SECONDS = 1.0


class MemoryWatch(Background):
    """Samples the proportional set size of process trees; peaks in MiB per role.

    Proportional, since Python workers are forked and share pages with each other.

    Args:
        roots: Role to pid. Children are counted with their root, a JVM below a Python process as
            ``<role> jvm``.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        super().__init__("memory-watch")
        self.roots = roots
        self.peaks: dict[str, float] = {}

    def _work(self) -> None:
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


def cpu_of(pid: int) -> float:
    """Processor seconds of a process and its children so far."""
    processes = (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    return sum(sum(process.cpu_times()[:2]) for process in processes)


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


_LINE = re.compile(
    r"batch \d+ at (?P<lsn>[0-9A-F]+/[0-9A-F]+): (?P<events>[\d,]+) events, [\d,]+ documents,"
    r" visible (?P<lag>-?[\d,]+) ms after its newest commit(?: \((?P<parts>[^)]*)\))?"
)
_PART = re.compile(r"(?P<name>\w+) (?P<seconds>[\d.]+) s")


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch as the line of the command tells of it."""

    commit_lsn: int
    """The view shows everything up to and including this commit."""
    events: int
    """Change events of the source."""
    lag_ms: float
    """From its newest commit until it was visible, by the clock of the run."""
    seconds: Mapping[str, float]
    """By part; those of less than a millisecond are absent."""


def logged_batches(log: str) -> list[LoggedBatch]:
    """Reads the batches in the log of a run."""
    return [
        LoggedBatch(
            commit_lsn=parse_position(line["lsn"]),
            events=_number(line["events"]),
            lag_ms=_number(line["lag"]),
            seconds={part["name"]: float(part["seconds"]) for part in _PART.finditer(line["parts"] or "")},
        )
        for line in _LINE.finditer(log)
    ]


def batch_parts(log: str) -> dict[str, float]:
    """Mean seconds of each part over all batches in the log, largest first; empty if there are none.

    A part that is not shown counts as nothing.
    """
    batches = [batch.seconds for batch in logged_batches(log)]
    names = {name for batch in batches for name in batch}
    means = {name: round(mean(batch.get(name, 0.0) for batch in batches), 3) for name in names}
    return dict(sorted(means.items(), key=lambda part: -part[1]))


def batch_sizes(log: str) -> list[int]:
    """Change events of each batch in the log."""
    return [batch.events for batch in logged_batches(log)]


def _number(text: str) -> int:
    return int(text.replace(",", ""))
