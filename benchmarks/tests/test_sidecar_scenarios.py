import runpy

from slackwater_bench.scenarios.probes import FRONTIER_SOAK
from slackwater_bench.scenarios.sidecar import delays
from slackwater_lab.workloads.workload import REPOSITORY


def test_every_end_waits_for_the_first_cut_that_contains_it() -> None:
    appended = [(10, 100), (20, 101), (30, 130)]
    seen = [(10, 104.0), (25, 111.5), (31, 131.0)]

    assert delays(appended, seen) == [4.0, 10.5, 1.0]


def test_everything_that_the_soak_feeds_gets_into_cuts() -> None:
    soak = runpy.run_path(str(REPOSITORY / FRONTIER_SOAK))
    feed, batch = soak["Feed"](partitions=4), soak["BATCH"]
    for first in range(0, 3 * batch, batch):
        feed.feed(first)

    assert feed.frontier.queue_length == 0
    assert feed.frontier.obstacles == []
    assert feed.frontier.open_transactions() == []
    assert feed.cuts == 3
