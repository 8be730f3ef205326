"""Tables and partitions in which nothing happens.

A few machines run; all others stand still, so most partitions of their topics get nothing after the start.
The sites of the machines never change, and the manuals have no row at all. Invariant in every committed
state: a machine's ``runs`` and ``output`` are the number and the sum of its runs, and it has one site.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar

from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Update,
    Value,
    Workload,
    workload_pipeline,
)

_MACHINES = "plant.machines"
_RUNS = "plant.runs"
_SITES = "plant.sites"

_RUNNING = 2
"""Machines that run. Their changes go to two partitions at most."""
_MAX_RUNS = 200
"""Kept of a machine, all writers together."""


@dataclass(frozen=True, slots=True)
class IdleWorkload(Workload):
    """Runs of two machines; everything else is idle.

    ``size`` is the number of machines.
    """

    name: ClassVar[str] = "idle"
    pipeline: Path = field(default=workload_pipeline("idle"), kw_only=True)

    def first(self) -> Iterator[BusinessTransaction]:
        for machine in range(1, max(_RUNNING, self.size) + 1):
            row: dict[str, Value] = {"id": machine, "name": f"machine-{machine}", "runs": 0, "output": 0}
            site: dict[str, Value] = {"id": machine, "machine_id": machine, "place": f"hall {machine % 7}"}
            yield BusinessTransaction((Insert(_MACHINES, row), Insert(_SITES, site)))

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        rng = self.new_random(writer, writers).random
        ids, own = count(1 + writer, writers), deque[tuple[int, int, int]]()
        most = max(1, _RUNNING * _MAX_RUNS // writers)
        while True:
            if len(own) >= most:
                yield BusinessTransaction(_forget(*own.popleft()))
            else:
                run = next(ids), 1 + int(rng() * _RUNNING), 1 + int(rng() * 1_000)
                is_rolled_back = rng() < 0.03
                if not is_rolled_back:
                    own.append(run)
                yield BusinessTransaction(_run(*run), is_rolled_back=is_rolled_back)


def _run(run_id: int, machine: int, output: int) -> tuple[Operation, ...]:
    row: dict[str, Value] = {"id": run_id, "machine_id": machine, "output": output}
    return Insert(_RUNS, row), _adjust(machine, 1, output)


def _forget(run_id: int, machine: int, output: int) -> tuple[Operation, ...]:
    return Delete(_RUNS, run_id), _adjust(machine, -1, -output)


def _adjust(machine: int, runs: int, output: int) -> Update:
    return Update(_MACHINES, machine, {"runs": Plus(runs), "output": Plus(output)})
