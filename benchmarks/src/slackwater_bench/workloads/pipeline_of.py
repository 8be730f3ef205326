"""A workload read by another pipeline than its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slackwater_bench.workloads.workload import Transaction, Workload


@dataclass(frozen=True, slots=True)
class PipelineOf:
    """The same changes, another pipeline."""

    workload: Workload
    pipeline: Path

    @property
    def name(self) -> str:
        """See the protocol."""
        return self.workload.name

    def first(self) -> Iterator[Transaction]:
        """See the protocol."""
        return self.workload.first()

    def transactions(self, writer: int, writers: int) -> Iterator[Transaction]:
        """See the protocol."""
        return self.workload.transactions(writer, writers)
