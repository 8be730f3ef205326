"""A catch-up load of one of the workloads."""

from slackwater_bench.generator.fill import TopicFiller
from slackwater_bench.runs.bed import SOURCE
from slackwater_bench.workloads.workload import Workload

SEED = 1


class WorkloadLoad:
    """The rows a workload begins with, then its transactions.

    Args:
        bootstrap: The broker.
        workload: What happens; must be picklable.
        events: Change events of the backlog.
        partitions: Of each data topic.
    """

    def __init__(self, bootstrap: str, workload: Workload, *, events: int, partitions: int = 4) -> None:
        self._filler = TopicFiller(bootstrap, workload, prefix=SOURCE, partitions=partitions)
        self._events = events

    def prepare(self) -> int:
        """Writes the first rows."""
        return self._filler.fill(1).last_commit_lsn

    def backlog(self) -> tuple[int, int]:
        """Writes more."""
        filled = self._filler.fill(self._events)
        return filled.events, filled.last_commit_lsn

    def close(self) -> None:
        """Ends the processes that write."""
        self._filler.close()
