"""A member of a group, without a broker."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from slackwater_messaging import MessagingUnavailableError
from slackwater_messaging.message import Place
from slackwater_messaging.receiving import ReceivedMessage
from slackwater_messaging.receiving.group import GroupMember
from slackwater_protocol import KafkaSettings


class Commits:
    """Takes offsets as a consumer does, and answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[list[TopicPartition]] = []

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self.sent.append(offsets)

    @property
    def offsets(self) -> list[int]:
        return [part.offset for parts in self.sent for part in parts]


def process(member: GroupMember, offset: int) -> None:
    member.batch = [ReceivedMessage(topic="orders", partition=0, offset=offset, value=b"")]
    member.done()
    member.commit()


def test_offsets_wait_for_those_that_are_on_their_way(monkeypatch: Any) -> None:
    """Two requests at once may arrive in any order when a broker has been away; the older one would count."""
    kafka = KafkaSettings("127.0.0.1:1")
    member = GroupMember(kafka, ["orders"], "group", latest=False, on_revoke=lambda places: None)
    real, commits = member._consumer, Commits()  # noqa: SLF001
    monkeypatch.setattr(member, "_consumer", commits)
    member.places = (Place("orders", 0),)
    for offset in (4, 9, 19):
        process(member, offset)
    assert commits.offsets == [5]
    failed = KafkaError(KafkaError.NOT_COORDINATOR)
    member._committed(failed, commits.sent[0])  # noqa: SLF001
    member.commit()
    assert commits.offsets == [5, 20]
    member._committed(None, commits.sent[1])  # noqa: SLF001
    member.commit()
    assert commits.offsets == [5, 20]
    real.close()


class Portion:
    """A consumer that hands out messages 0 to 4 at once, with an error in the middle."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error
        self.is_read = False

    def poll(self, _: float) -> Any:
        return None if self.is_read else Fetched(0)

    def consume(self, *_: object) -> list[Any]:
        self.is_read = True
        return [Fetched(1), Fetched(2, self._error), Fetched(2), Fetched(3), Fetched(4)]


class Fetched:
    """A message of Kafka's client, or an error in the place of one."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def value(self) -> bytes:
        return b""

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None


def test_an_error_in_the_middle_of_a_portion_drops_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's position is behind all of them: a later commit would cover what was dropped."""
    kafka = KafkaSettings("127.0.0.1:1")
    member = GroupMember(kafka, ["orders"], "group", latest=False, on_revoke=lambda places: None)
    real = member._consumer  # noqa: SLF001
    monkeypatch.setattr(member, "_consumer", Portion(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    member.places = (Place("orders", 0),)
    with pytest.raises(MessagingUnavailableError, match="reading failed"):
        member.read(10, 0)
    member.read(10, 0)
    assert [each.offset for each in member.batch] == [0, 1, 2, 3, 4]
    real.close()
