"""All workloads by name."""

from collections.abc import Callable, Mapping

from slackwater_bench.workloads.hot_key import HotKeyWorkload
from slackwater_bench.workloads.huge import HugeWorkload
from slackwater_bench.workloads.idle import IdleWorkload
from slackwater_bench.workloads.interleaved import InterleavedWorkload
from slackwater_bench.workloads.orders import OrdersWorkload
from slackwater_bench.workloads.tpcc import TpccWorkload
from slackwater_bench.workloads.transfers import TransfersWorkload
from slackwater_bench.workloads.workload import Workload

WORKLOADS: Mapping[str, Callable[[int, int], Workload]] = {
    "orders": OrdersWorkload,
    "transfers": TransfersWorkload,
    "hot-key": HotKeyWorkload,
    "huge": HugeWorkload,
    "idle": IdleWorkload,
    "interleaved": InterleavedWorkload,
    "tpcc": TpccWorkload,
}
"""Name to ``(seed, size) -> Workload``; ``size`` is the number of main rows."""
