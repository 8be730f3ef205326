"""Reading is paused where it is too far ahead of the rest."""

from dataclasses import dataclass
from typing import cast

import pytest

from slackwater.cdc import Frontier, Partition
from slackwater_sidecar import reader
from slackwater_sidecar.reader import Balance

END = ("s.transaction", 0)
A, B = ("s.a", 0), ("s.a", 1)


@dataclass
class Held:
    """A partition, or a frontier, with so much above the frontier."""

    key: tuple[str, int]
    backlog: int = 0
    queue_length: int = 0


def looked(
    of: Balance, a: int, b: int, ends: int = 0, *, needs_commits: bool = False
) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """What is paused and resumed at these backlogs."""
    partitions = [cast(Partition, Held(A, a)), cast(Partition, Held(B, b))]
    frontier = cast(Frontier, Held(END, queue_length=ends))
    paused, resumed = of.update(frontier, partitions, [A, B, END], needs_commits=needs_commits)
    return set(paused), set(resumed)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Balance:
    """Too far ahead are more than ten transactions; a look every five records."""
    monkeypatch.setattr(reader, "_FAR_AHEAD", 10)
    monkeypatch.setattr(reader, "_RECORDS_BETWEEN_COMPARISONS", 5)
    result = Balance(END)
    result.record(5)
    return result


def test_a_partition_that_is_too_far_ahead_is_paused(watch: Balance) -> None:
    assert looked(watch, 11, 10) == ({A}, set())
    assert watch.paused == {A}


def test_a_paused_partition_goes_on_when_half_of_that_is_left(watch: Balance) -> None:
    looked(watch, 11, 0)

    assert looked(watch, 6, 0) == (set(), set())
    assert looked(watch, 5, 0) == (set(), {A})
    assert not watch.paused


def test_the_transaction_topic_is_paused_at_twice_as_many(watch: Balance) -> None:
    assert looked(watch, 0, 0, ends=21) == (set(), set())

    watch.record(5)
    assert looked(watch, 0, 0, ends=22) == ({END}, set())


def test_the_transaction_topic_is_read_on_while_its_newest_commit_is_needed(watch: Balance) -> None:
    looked(watch, 0, 0, ends=22)

    assert looked(watch, 0, 0, ends=99, needs_commits=True) == (set(), {END})
    assert not watch.paused


def test_never_is_everything_paused(watch: Balance) -> None:
    """Then nothing could ever be resumed."""
    assert looked(watch, 11, 11, ends=0) == ({A, B}, set())
    assert looked(watch, 11, 11, ends=22) == (set(), {A, B})


def test_the_transaction_topic_is_left_alone_where_another_process_reads_it(watch: Balance) -> None:
    partitions = [cast(Partition, Held(A, 11)), cast(Partition, Held(B, 0))]
    paused, _ = watch.update(cast(Frontier, Held(END, queue_length=99)), partitions, [A, B])

    assert paused == {A}


def test_a_look_is_taken_only_now_and_then(watch: Balance) -> None:
    looked(watch, 0, 0)
    watch.record(4)
    assert looked(watch, 11, 0) == (set(), set())

    watch.record(1)
    assert looked(watch, 11, 0) == ({A}, set())
