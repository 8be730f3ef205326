"""The frontier accepts generated records, in whatever order the partitions are read."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from slackwater.cdc import Frontier, Partition
from slackwater_lab.debezium.records import partition_of
from slackwater_lab.generator.debezium_records import ConnectorIdentity, Headers
from slackwater_lab.generator.share import TRANSACTIONS, Share
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.huge import HugeWorkload
from slackwater_lab.workloads.workload import BusinessTransaction, Workload

PARTITIONS = 3
EVENTS = 2_000
Records = list[tuple[int, bytes | None]]


@dataclass
class Topics:
    """What was put, by topic and partition, with offsets."""

    records: dict[tuple[str, int], Records] = field(default_factory=dict)

    def put(self, topic: str, value: str | None, key: str, _: Headers) -> None:
        number = 0 if topic.endswith(f".{TRANSACTIONS}") else partition_of(key.encode(), PARTITIONS)
        records = self.records.setdefault((topic, number), [])
        records.append((len(records), None if value is None else value.encode()))


def generated(name: str) -> tuple[Share, Topics, Workload]:
    workload = HugeWorkload(1, 60, 1_000) if name == "huge" else WORKLOADS[name](1, 60)
    topics = Topics()
    share = Share(workload, ConnectorIdentity("inv"), topics.put)
    share.begin()
    share.advance(EVENTS)
    return share, topics, workload


def read_in_pieces(frontier: Frontier, workload: Workload, topics: Topics, seed: int) -> Iterator[int]:
    """Reads random pieces of random partitions; yields the frontier's LSN after each."""
    rng = random.Random(seed)
    readers: dict[tuple[str, int], Callable[[Records], None]] = {}
    for table in workload.tables:
        for number in range(PARTITIONS):
            partition = frontier.add_partition(f"inv.{table}", number, 0)
            readers[partition.topic, number] = reader(partition)
    readers["inv.transaction", 0] = lambda records: frontier.read_transactions(
        (offset, value, 0) for offset, value in records
    )
    left = {place: list(records) for place, records in topics.records.items()}
    while left:
        place = rng.choice(sorted(left))
        size = rng.randint(1, 200)
        readers[place](left[place][:size])
        left[place] = left[place][size:]
        if not left[place]:
            del left[place]
        frontier.advance()
        if frontier.end_offsets_wanted:  # as if no more had been written yet
            ends = {each: len(topics.records.get(each, ())) - len(left.get(each, ())) for each in readers}
            frontier.end_offsets(ends)
            frontier.advance()
        yield frontier.lsn


def reader(partition: Partition) -> Callable[[Records], None]:
    return lambda records: partition.read(records, "run")


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_frontier_ends_at_the_last_commit_with_all_events(name: str) -> None:
    share, topics, workload = generated(name)
    frontier = Frontier("inv", complete_tables=frozenset(workload.tables))
    lsns = list(read_in_pieces(frontier, workload, topics, seed=7))
    assert lsns == sorted(lsns)
    cuts = frontier.cuts()
    assert cuts[-1].lsn == frontier.lsn == share.log.last_commit_lsn
    assert cuts[-1].event_count == share.events >= EVENTS
    assert not frontier.obstacles


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_frontier_stops_before_a_transaction_with_a_missing_row(name: str) -> None:
    share, topics, workload = generated(name)
    place = max(
        (p for p in topics.records if not p[0].endswith(TRANSACTIONS)), key=lambda p: len(topics.records[p])
    )
    records = topics.records[place]
    missing = max(index for index, (_, value) in enumerate(records) if value is not None)
    del records[missing:]
    frontier = Frontier("inv", complete_tables=frozenset(workload.tables))
    list(read_in_pieces(frontier, workload, topics, seed=7))
    assert frontier.lsn < share.log.last_commit_lsn


def test_idle_leaves_most_partitions_alone_after_the_start() -> None:
    workload = WORKLOADS["idle"](1, 60)
    topics = Topics()
    share = Share(workload, ConnectorIdentity("inv"), topics.put)
    share.begin()
    before = {place: len(records) for place, records in topics.records.items()}
    share.advance(EVENTS)
    grown = {place for place, records in topics.records.items() if len(records) > before.get(place, 0)}
    assert {topic for topic, _ in grown} == {"inv.plant.machines", "inv.plant.runs", "inv.transaction"}
    assert len([place for place in grown if place[0] == "inv.plant.machines"]) <= 2


def test_long_transactions_have_rows_below_earlier_commits() -> None:
    workload = WORKLOADS["interleaved"](1, 60)
    share = Share(workload, ConnectorIdentity("inv"), lambda *_: None)
    commits = list(share.log.commits(iter_some(workload)))
    crossing = [later for earlier, later in pairwise(commits) if later.begin_lsn < earlier.commit_lsn]
    assert len(crossing) > 10


def iter_some(workload: Workload) -> Iterator[BusinessTransaction]:
    stream = workload.transactions(0, 1)
    return (next(stream) for _ in range(400))
