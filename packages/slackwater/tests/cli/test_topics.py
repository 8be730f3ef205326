"""Reading topics while Kafka reports errors."""

import pytest
from confluent_kafka import KafkaError

from slackwater.cli.examination import KafkaProbe, SourceFacts
from slackwater.cli.topics import read_to_end
from slackwater.protocol import KafkaSettings, SourceTopics, UnavailableError
from slackwater_lab.fakes.topics import FlakyConsumer

VALUES = [b"a", b"b"]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FlakyConsumer:
    consumer = FlakyConsumer({("t", 0): VALUES})
    monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
    return consumer


def test_topics_are_read_to_their_ends(consumer: FlakyConsumer) -> None:
    assert [message.value() for message in read_to_end(KafkaSettings("nowhere:1"), ["t"])] == VALUES
    assert (consumer.errors, consumer.is_closed) == ([], True)


@pytest.mark.parametrize("succeeding", [0, 1, 2])
def test_other_errors_end_it_at_once(consumer: FlakyConsumer, succeeding: int) -> None:
    consumer.errors = [0] * succeeding + [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(UnavailableError, match=r"[Aa]uthorization failed"):
        list(read_to_end(KafkaSettings("nowhere:1"), ["t"]))
    assert consumer.is_closed


def test_silence_ends_it_with_what_was_reported_last(
    consumer: FlakyConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.cli.topics._SILENCE_SECONDS", 0.2)
    consumer.errors = [0, 0] + [KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000_000
    with pytest.raises(UnavailableError, match=r"tried for 0\.2 s: Broker: Not leader"):
        list(read_to_end(KafkaSettings("nowhere:1"), ["t"]))


@pytest.mark.parametrize("succeeding", [0, 1, 2, 3, 4])
def test_the_doctor_asks_again_after_transient_errors_and_only_after_those(
    monkeypatch: pytest.MonkeyPatch, succeeding: int
) -> None:
    def look(name: str) -> tuple[str, ...]:
        end = b'{"status": "END", "id": "500:77"}'
        errors = [0] * succeeding + [getattr(KafkaError, name)] * 2
        consumer = FlakyConsumer({("inv.transaction", 0): [end], ("inv.a.b", 0): VALUES}, errors)
        monkeypatch.setattr("slackwater.kafka.reader.Consumer", lambda *_, **__: consumer)
        with KafkaProbe(KafkaSettings("nowhere:1"), "inv.a.b".__eq__) as probe:
            facts = SourceFacts(topics=SourceTopics("inv"), now_ms=0)
            probe.read_topics(facts)
        assert consumer.errors == []
        return *facts.data_topics, *(str(found.xid) for _, found in facts.ends)

    assert look("NOT_LEADER_FOR_PARTITION") == ("inv.a.b", "500")
    with pytest.raises(UnavailableError):
        look("TOPIC_AUTHORIZATION_FAILED")
