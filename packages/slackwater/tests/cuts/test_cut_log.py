"""One behaviour of all cut logs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Producer, TopicPartition

from slackwater.cuts import (
    CutLog,
    CutLogDamagedError,
    CutLogReplacedError,
    LoggedRecord,
    RecordsGoneError,
    TopicUnavailableError,
)
from slackwater.protocol import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    InputError,
    KafkaSettings,
    LogRecord,
    Marker,
    PassDecision,
    PublishedCut,
    Refusal,
    SkipDecision,
    TimelineDecision,
    encode_cut,
)
from slackwater_lab.fakes.memory import InMemoryCutLog

MakeCut = Callable[..., Cut]


def others(source: str) -> list[LogRecord]:
    """One record of each kind that is no cut."""
    return [
        SkipDecision(source=source, timeline=1, to_lsn=7, wall_ms=5, decided_by="ann", reason="lost"),
        TimelineDecision(source=source, timeline=2, transaction_offset=9, wall_ms=6, decided_by="ann"),
        Refusal(source=source, timeline=2, since_lsn=3, newest_lsn=9, reason="a.setting: wrong"),
        AheadMarkers(
            source=source,
            timeline=2,
            previous_lsn=10,
            lsn=12,
            transactions=(CommittedTransaction(701, 12, 5),),
            markers={("src.inv.a", 1): Marker(12, 34)},
        ),
    ]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.integration)])
def log(request: pytest.FixtureRequest, source: str) -> Iterator[CutLog]:
    if request.param == "memory":
        yield InMemoryCutLog(source)
    else:
        bootstrap = request.getfixturevalue("bootstrap")
        kafka_log = CutLog(source, KafkaSettings(bootstrap), timeout=timedelta(seconds=10))
        kafka_log.ensure_topic(replication_factor=1)
        yield kafka_log
        kafka_log.close()


def lsns(found: list[PublishedCut]) -> list[int]:
    return [published.cut.lsn for published in found]


def test_an_empty_log_has_no_newest_cut(log: CutLog) -> None:
    assert log.newest() is None
    assert log.tail(-1) == []
    assert log.read_range(0, 0) == []


def test_append_returns_the_offsets_that_reading_finds(make_cut: MakeCut, log: CutLog, source: str) -> None:
    cuts = [make_cut(source, lsn, transactions=2) for lsn in (10, 20, 30)]
    appended = log.append(cuts)
    assert [p.cut for p in appended] == cuts
    assert log.tail(-1) == appended
    assert log.newest() == appended[-1]


def test_ranges_are_half_open(make_cut: MakeCut, log: CutLog, source: str) -> None:
    appended = log.append([make_cut(source, lsn) for lsn in (10, 20, 30, 40)])
    assert log.read_range(appended[1].log_offset, appended[3].log_offset) == appended[1:3]
    assert log.read_range(appended[2].log_offset, appended[3].log_offset + 1) == appended[2:]


def test_tail_is_exclusive_and_limited(make_cut: MakeCut, log: CutLog, source: str) -> None:
    appended = log.append([make_cut(source, lsn) for lsn in (10, 20, 30, 40)])
    assert lsns(log.tail(appended[0].log_offset)) == [20, 30, 40]
    assert lsns(log.tail(appended[0].log_offset, limit=2)) == [20, 30]
    assert log.tail(appended[-1].log_offset) == []


def test_reading_and_appending_may_alternate(make_cut: MakeCut, log: CutLog, source: str) -> None:
    after = -1
    for lsn in range(1, 6):
        log.append([make_cut(source, lsn)])
        found = log.tail(after)
        assert lsns(found) == [lsn]
        after = found[-1].log_offset


def test_records_of_all_kinds_are_found_where_they_were_written(
    make_cut: MakeCut, log: CutLog, source: str
) -> None:
    written = [make_cut(source, 10), *others(source), make_cut(source, 20)]
    offsets = log.append_records(written)
    logged = [LoggedRecord(*pair) for pair in zip(written, offsets, strict=True)]
    assert log.records(-1) == logged
    assert log.records(offsets[0], limit=2) == logged[1:3]
    assert log.records(offsets[-1]) == []
    assert log.records(-1, with_cuts=False) == logged[1:5]


def test_who_wants_cuts_gets_nothing_else(make_cut: MakeCut, log: CutLog, source: str) -> None:
    [first] = log.append([make_cut(source, 10)])
    log.append_records(others(source))
    [second] = log.append([make_cut(source, 20)])
    log.append_records(others(source))
    assert log.tail(-1) == [first, second]
    assert log.tail(-1, limit=2) == [first, second]
    assert log.tail(first.log_offset, limit=1) == [second]
    assert log.read_range(0, log.end()) == [first, second]
    assert log.newest() == second


def test_the_newest_cut_is_found_behind_many_other_records(
    make_cut: MakeCut, log: CutLog, source: str
) -> None:
    [cut] = log.append([make_cut(source, 10)])
    log.append_records(others(source) * 60)
    assert log.newest() == cut


def test_a_log_without_cuts_has_no_newest(log: CutLog, source: str) -> None:
    log.append_records(others(source))
    assert log.newest() is None
    assert log.tail(-1) == []


def test_the_end_is_behind_the_newest_record(make_cut: MakeCut, log: CutLog, source: str) -> None:
    assert log.end() == 0
    [appended] = log.append([make_cut(source, 10)])
    assert log.end() == appended.log_offset + 1


def test_each_log_has_an_identity_of_its_own(log: CutLog, source: str) -> None:
    other = InMemoryCutLog(source)
    assert log.identity() == log.identity()
    assert log.identity() != other.identity()


def test_what_was_read_from_a_log_that_ends_before_it_was_another_log(
    make_cut: MakeCut, log: CutLog, source: str
) -> None:
    log.append([make_cut(source, 10)])
    read: list[Callable[[], object]] = [
        lambda: log.read_range(0, 2),
        lambda: log.tail(1),
        lambda: log.records(1),
        lambda: log.records(1, with_cuts=False),
    ]
    for question in read:
        with pytest.raises(CutLogReplacedError, match="it ends at offset 1, but was read up to 2"):
            question()
    assert (log.tail(0), log.records(0)) == ([], [])


Write = Callable[[bytes | None], int]


@pytest.fixture
def write(log: CutLog, source: str, request: pytest.FixtureRequest) -> Write:
    """Appends bytes, as anybody could who may write to the topic."""

    def append(value: bytes | None) -> int:
        if isinstance(log, InMemoryCutLog):
            return log.append_bytes(value)
        producer = Producer(
            {"bootstrap.servers": request.getfixturevalue("bootstrap"), "enable.idempotence": True}
        )
        producer.produce(f"{source}.slackwater.cuts", value, key=b"k", partition=0)
        assert producer.flush(30) == 0
        return log.end() - 1

    return append


@pytest.mark.full
def test_what_is_not_ours_is_passed_over_and_said_once(
    make_cut: MakeCut, log: CutLog, write: Write, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    [first] = log.append([make_cut(source, 10)])
    foreign = [None, b"", b"hello", b"\xff", b'{"a": 1}', encode_cut(make_cut("another", 15))]
    offsets = [write(value) for value in foreign]
    [second] = log.append([make_cut(source, 20)])
    last = write(b"hello")
    for _ in range(3):
        assert log.tail(-1) == log.read_range(0, log.end()) == [first, second]
        assert [r.log_offset for r in log.records(-1)] == [first.log_offset, second.log_offset]
        assert log.records(-1, with_cuts=False) == []
        assert log.tail(first.log_offset, limit=1) == [second]
        assert log.newest() == second
    said = [line for line in caplog.messages if line.startswith("skipping the record")]
    assert [int(line.split()[5]) for line in said] == [*offsets, last]
    assert "it belongs to source 'another'" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [(b'"timeline":0', b'"timeline":"0"'), (b'"xids":[', b'"xids":['[:-1]), (b'"source"', b'"sauce"')],
)
def test_a_damaged_record_of_ours_holds_readers_up_until_an_operator_lets_it_pass(
    make_cut: MakeCut, log: CutLog, write: Write, source: str, damage: tuple[bytes, bytes]
) -> None:
    """It may have been a cut."""
    [first] = log.append([make_cut(source, 10)])
    at = write(encode_cut(make_cut(source, 15)).replace(*damage))
    [second] = log.append([make_cut(source, 20)])
    read: list[Callable[[], object]] = [
        lambda: log.tail(-1),
        lambda: log.read_range(0, log.end()),
        lambda: log.records(first.log_offset, limit=1),
    ]
    for question in read:
        with pytest.raises(CutLogDamagedError, match=f"pass-record --offset {at}") as caught:
            question()
        assert caught.value.log_offset == at
    assert log.tail(at) == [second]

    other = PassDecision(source=source, log_offset=at + 100, wall_ms=1, decided_by="ann")
    log.append_records([other])
    with pytest.raises(CutLogDamagedError):
        log.tail(-1)
    log.append_records([replace(other, log_offset=at)])
    assert log.tail(-1) == [first, second]
    assert log.newest() == second
    assert len(log.records(-1)) == 4


def test_a_record_of_a_newer_version_is_not_taken_for_a_damaged_one(
    make_cut: MakeCut, log: CutLog, write: Write, source: str
) -> None:
    at = write(encode_cut(make_cut(source, 15)).replace(b'"v":2', b'"v":3'))
    log.append_records([PassDecision(source=source, log_offset=at, wall_ms=1, decided_by="ann")])
    with pytest.raises(InputError):
        log.tail(-1)


def test_a_truncated_memory_log_names_the_offsets(make_cut: MakeCut, source: str) -> None:
    log = InMemoryCutLog(source)
    log.append([make_cut(source, lsn) for lsn in (10, 20, 30)])
    log.delete_before(2)
    assert_truncated(log)


@pytest.mark.integration
def test_a_truncated_kafka_log_names_the_offsets(make_cut: MakeCut, source: str, bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient

    log = CutLog(source, KafkaSettings(bootstrap))
    log.ensure_topic(replication_factor=1)
    log.append([make_cut(source, lsn) for lsn in (10, 20, 30)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.delete_records([TopicPartition(f"{source}.slackwater.cuts", 0, 2)]).values()
    done.result()
    assert_truncated(log)
    log.close()


def assert_truncated(log: CutLog) -> None:
    with pytest.raises(RecordsGoneError, match="no longer holds offset 1, it starts at 2"):
        log.read_range(1, 3)
    assert lsns(log.tail(-1)) == [30]
    assert lsns(log.read_range(2, 3)) == [30]
    assert (log.begin(), log.end()) == (2, 3)


def delete_before(log: CutLog, bootstrap: Callable[[], str], source: str, offset: int) -> None:
    """Loses the records below an offset, as an operator could."""
    from confluent_kafka.admin import AdminClient

    if isinstance(log, InMemoryCutLog):
        log.delete_before(offset)
    else:
        admin = AdminClient({"bootstrap.servers": bootstrap()})
        [done] = admin.delete_records([TopicPartition(f"{source}.slackwater.cuts", 0, offset)]).values()
        done.result(30)


def test_a_log_that_has_lost_all_its_cuts_is_not_taken_for_a_new_one(
    make_cut: MakeCut, log: CutLog, source: str, request: pytest.FixtureRequest
) -> None:
    log.append([make_cut(source, lsn) for lsn in (10, 20)])
    assert log.begin() == 0
    delete_before(log, lambda: request.getfixturevalue("bootstrap"), source, 2)
    with pytest.raises(RecordsGoneError, match="starts at 2"):
        log.newest()
    log.append_records(others(source))
    with pytest.raises(RecordsGoneError, match="starts at 2"):
        log.newest()
    [cut] = log.append([make_cut(source, 30)])
    assert log.newest() == cut


@pytest.mark.integration
def test_a_log_that_does_not_exist_is_empty(source: str, bootstrap: str) -> None:
    log = CutLog(source, KafkaSettings(bootstrap))
    assert log.newest() is None
    assert log.tail(-1) == []
    assert log.records(-1) == []
    assert (log.begin(), log.end()) == (0, 0)
    assert log.identity() is None
    log.close()


@pytest.mark.integration
def test_the_topic_is_made_once_and_kept_for_ever(source: str, bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource

    log = CutLog(source, KafkaSettings(bootstrap))
    log.ensure_topic(replication_factor=1)
    log.ensure_topic(replication_factor=1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"{source}.slackwater.cuts")
    [described] = admin.describe_configs([resource]).values()
    config = described.result()
    assert config["retention.ms"].value == "-1"
    assert config["cleanup.policy"].value == "delete"


def test_a_broker_that_is_away_is_reported(make_cut: MakeCut, source: str) -> None:
    log = CutLog(source, KafkaSettings("127.0.0.1:1"), timeout=timedelta(milliseconds=300))
    with pytest.raises(TopicUnavailableError, match="check that the broker is running"):
        log.newest()
    with pytest.raises(TopicUnavailableError, match="append"):
        log.append([make_cut(source, 10)])
    log.close()


@pytest.mark.integration
def test_a_topic_that_was_made_anew_is_another_log(make_cut: MakeCut, source: str, bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient

    log, topic = CutLog(source, KafkaSettings(bootstrap)), f"{source}.slackwater.cuts"
    log.ensure_topic(replication_factor=1)
    log.append([make_cut(source, lsn) for lsn in (10, 20)])
    before = log.identity()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(300)
    deadline = time.monotonic() + 900
    while log.identity() is not None:
        assert time.monotonic() < deadline
    log.ensure_topic(replication_factor=1)
    while log.identity() is None:
        assert time.monotonic() < deadline
    assert log.identity() != before
    log.close()
