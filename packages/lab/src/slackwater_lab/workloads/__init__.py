"""Seeded workloads: what a database is asked to do. Here are all of them by name."""

from collections.abc import Callable, Mapping

from slackwater_testing.workloads.hot_key import HotKeyWorkload
from slackwater_testing.workloads.huge import HugeWorkload
from slackwater_testing.workloads.idle import IdleWorkload
from slackwater_testing.workloads.interleaved import InterleavedWorkload
from slackwater_testing.workloads.mixed import MixedWorkload
from slackwater_testing.workloads.orders import OrdersWorkload
from slackwater_testing.workloads.tpcc import TpccWorkload
from slackwater_testing.workloads.transfers import TransfersWorkload
from slackwater_testing.workloads.workload import Workload

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
