"""Seeded workloads: what a database is asked to do. Here are all of them by name."""

from collections.abc import Callable, Mapping

from slackwater_lab.workloads.hot_key import HotKeyWorkload
from slackwater_lab.workloads.huge import HugeWorkload, MixedWorkload
from slackwater_lab.workloads.idle import IdleWorkload
from slackwater_lab.workloads.interleaved import InterleavedWorkload
from slackwater_lab.workloads.orders import OrdersWorkload
from slackwater_lab.workloads.tpcc import TpccWorkload
from slackwater_lab.workloads.transfers import TransfersWorkload
from slackwater_lab.workloads.workload import Workload

WORKLOADS: Mapping[str, Callable[[int, int], Workload]] = {
    "orders": OrdersWorkload,
    "transfers": TransfersWorkload,
    "hot-key": HotKeyWorkload,
    "huge": HugeWorkload,
    "idle": IdleWorkload,
    "interleaved": InterleavedWorkload,
    "tpcc": TpccWorkload,
    "mixed": MixedWorkload,
}
"""Name to ``(seed, size) -> Workload``; ``size`` is the number of main rows."""
