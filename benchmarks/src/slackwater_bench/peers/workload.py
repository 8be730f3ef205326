"""The orders workload with whole old rows in every change event."""

from pathlib import Path

from slackwater_bench.peers.registry import PROGRAMS
from slackwater_bench.workloads.orders import OrdersWorkload


class PeersWorkload(OrdersWorkload):
    """As the orders workload, both tables with ``REPLICA IDENTITY FULL``.

    Flink's ``debezium-json`` ends the job at an update without its old row, and Pathway's reader does not
    take the old row out. Slackwater does not need it for ``orders``.
    """

    @property
    def pipeline(self) -> Path:
        """The folder with this comparison's schema."""
        return PROGRAMS
