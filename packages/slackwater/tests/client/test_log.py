"""What a log of commits hands out between two offsets, over a broker in memory."""

import pytest

from slackwater.cdc.batch import Record
from slackwater.client.log import Log
from slackwater.protocol import UnavailableError
from slackwater_lab.fakes.broker import MemoryBroker
from slackwater_lab.fakes.outputs import Ticking

PLACE = ("log", 0)


class Minutes(Ticking):
    """Ends a test that would wait for ever."""

    def monotonic(self) -> float:
        now = super().monotonic()
        assert now < 200, "the log waits longer than a minute"
        return now


@pytest.fixture
def broker() -> MemoryBroker:
    """Five records, and a marker behind each of them; a reader returns two at once."""
    broker = MemoryBroker(at_once=2)
    broker.make_topic(PLACE[0])
    for number in range(5):
        broker.append(PLACE, str(number).encode())
        broker.skip(PLACE)
    return broker


@pytest.fixture
def log(broker: MemoryBroker) -> Log[int]:
    def decode(record: Record) -> int | None:
        number = int(record.value() or b"")
        return None if number == 3 else number

    return Log(broker, PLACE[0], decode, Minutes())


@pytest.mark.parametrize(
    ("start", "end", "entries"),
    [
        (0, 10, [0, 1, 2, 4]),
        (0, 9, [0, 1, 2, 4]),
        (0, 8, [0, 1, 2]),  # the record at the end is not handed out, although it is read
        (1, 5, [1, 2]),
        (1, 2, []),
        (2, 3, [1]),
        (4, 4, []),
        (6, 2, []),
    ],
)
def test_entries_are_those_between_two_offsets_also_if_others_were_asked_for_in_part(
    log: Log[int], start: int, end: int, entries: list[int]
) -> None:
    assert next(log.entries(0, 10)) == 0
    assert list(log.entries(start, end)) == entries
    assert list(log.entries(0, 10)) == [0, 1, 2, 4]


def test_looking_back_does_not_move_what_is_followed(log: Log[int], broker: MemoryBroker) -> None:
    log.follow(0)
    assert log.read(0) == [0, 1]
    assert list(log.entries(0, 10)) == [0, 1, 2, 4]
    assert log.read(0) == [2]
    log.follow(8)
    assert log.read(0) == [4]
    assert log.read(0) == []
    broker.append(PLACE, b"5")
    assert log.read(0) == [5]


def test_records_that_must_exist_and_cannot_be_read_are_waited_for_a_minute(
    log: Log[int], broker: MemoryBroker
) -> None:
    found = log.entries(8, 12)
    assert next(found) == 4
    with pytest.raises(UnavailableError, match="cannot be read beyond offset 10, although"):
        next(found)
    waiting = log.entries(8, 12)
    assert next(waiting) == 4
    broker.append(PLACE, b"5")
    broker.skip(PLACE)
    assert list(waiting) == [5]
