"""What is read ahead of the next transaction, and when that stops."""

import pytest
from confluent_kafka import Message

from slackwater.client import ByPartition, ByUnit, Everything, Share
from slackwater.client.merges import OutputMerge
from slackwater.client.transaction import LanePosition
from slackwater.protocol import CommitRecord, OffsetRange
from slackwater.protocol.commit_lookup import PlacedCommit
from slackwater_lab.fakes.broker import memory_record


def document(place: tuple[str, int], at: int) -> Message:
    return memory_record(place, at, b"k", b"x" * 600)


def commit(number: int, documents: int) -> PlacedCommit:
    """A commit with this many documents in each of two partitions."""
    first = documents * number
    ranges = {"t": {p: OffsetRange(documents, first, first + documents - 1) for p in (0, 1)}}
    record = CommitRecord(
        pipeline="p",
        source="s",
        timeline=1,
        commit_lsn=number + 1,
        previous_lsn=number,
        xid=number,
        commit_ts_ms=0,
        offsets=ranges,
    )
    return PlacedCommit(number, record)


def test_partitions_that_are_ahead_are_paused_until_there_is_room_and_those_that_are_needed_never() -> None:
    """Fails when ``PartitionQueues.paused`` pauses nothing, or what is needed, too."""
    needed, ahead = ("t", 0), ("t", 1)
    merge = OutputMerge(["t"], Everything(), 5_000, {0: LanePosition(0)})
    for number in range(3):
        merge.expect(commit(number, documents=2))
    assert merge.paused() == frozenset()
    merge.queues.add(ahead, [document(ahead, at) for at in range(6)], 6)
    assert merge.paused() == {ahead}
    assert merge.next() is None, "the first transaction is not whole"
    merge.queues.add(needed, [document(needed, at) for at in range(2)], 2)
    piece = merge.next()
    assert piece is not None
    assert (len(piece.records), piece.is_last) == (4, True)
    assert merge.paused() == frozenset(), "what was handed out makes room"


@pytest.mark.parametrize("share", [ByPartition(), ByUnit(lambda record: str(record.partition()), lanes=2)])
def test_a_lane_that_is_ahead_of_another_one_gets_no_commit_again(share: Share) -> None:
    merge = OutputMerge(["t"], share, 5_000, {0: LanePosition(1), 1: LanePosition(0)})
    for number in range(2):
        merge.expect(commit(number, documents=1))
    for partition in (0, 1):
        place = ("t", partition)
        merge.queues.add(place, [document(place, n) for n in range(2)], 2)
    pieces = []
    while (piece := merge.next()) is not None:
        pieces.append((piece.commit.lsn, sorted(piece.lanes)))
    lanes_of_first = [lane for lsn, lanes in pieces if lsn == 1 for lane in lanes]
    assert lanes_of_first == [1]
    assert sorted(lane for lsn, lanes in pieces if lsn == 2 for lane in lanes) == [0, 1]
