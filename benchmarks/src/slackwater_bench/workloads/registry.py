"""All workloads by name."""

from collections.abc import Callable, Mapping

from slackwater_bench.workloads.orders import OrdersWorkload
from slackwater_bench.workloads.transfers import TransfersWorkload
from slackwater_bench.workloads.workload import Workload

WORKLOADS: Mapping[str, Callable[[int, int], Workload]] = {
    "orders": OrdersWorkload,
    "transfers": TransfersWorkload,
}
"""Name to ``(seed, size) -> Workload``; ``size`` is the number of main rows."""
