"""A member of a group, without a broker."""

from typing import Any

from confluent_kafka import KafkaError, TopicPartition

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
