"""Who takes a pipeline over reads its progress only when every earlier run is fenced."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slackwater_protocol import CommitRecord, ProgressRecord, encode_commit_record
from slackwater_spark.sink import (
    DocumentBatch,
    KafkaSinkSettings,
    OutputTopic,
    OutputTopicError,
    OutputUnavailableError,
    PipelineNameTakenError,
    ProducerFencedError,
    ProgressMismatchError,
    SinkError,
    kafka,
    progress,
)
from slackwater_spark.sink.kafka import KafkaSink
from slackwater_spark.sink.producer import Headers, TransactionFailedError

MakeBatch = Callable[..., DocumentBatch]


class Broker:
    """What happens, in order; a run that is not fenced yet writes one more batch."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.progress: ProgressRecord | None = None
        self.fails_at = ""
        self.failure: SinkError = TransactionFailedError("any", "broker is away")

    def did(self, what: str) -> None:
        self.happened.append(what)
        if what == self.fails_at:
            self.fails_at = ""
            raise self.failure


class Producer:
    """Stands in for Kafka's."""

    def __init__(self, broker: Broker, settings: KafkaSinkSettings) -> None:
        self._broker = broker
        self.settings = settings

    def open(self) -> None:
        self._broker.did("open")

    def begin(self) -> None:
        self._broker.did("begin")

    def produce(self, topic: str, _key: object, _value: object, _headers: Headers, _report: object) -> None:
        self._broker.did(topic)

    def serve(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def commit(self) -> None:
        self._broker.did("commit")

    def abort(self) -> None:
        self._broker.did("abort")

    def discard(self) -> None:
        self._broker.did("discard")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    result = Broker()

    def read_progress(_settings: KafkaSinkSettings) -> ProgressRecord | None:
        result.did("read progress")
        return result.progress

    monkeypatch.setattr(kafka, "ensure_topics", lambda _settings: result.did("ensure topics"))
    monkeypatch.setattr(kafka, "check_unused", lambda _settings: result.did("check unused"))
    monkeypatch.setattr(kafka, "read_progress", read_progress)
    return result


SETTINGS = KafkaSinkSettings(pipeline="orders", outputs=(OutputTopic("out"),), bootstrap="b:1")


@pytest.fixture
def sink(broker: Broker) -> KafkaSink:
    return KafkaSink(SETTINGS, connect=lambda settings: Producer(broker, settings))


def record(batch_id: int, commit_lsn: int) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders", query_id="q", batch_id=batch_id, source="inv", timeline=1, commit_lsn=commit_lsn
    )


def test_earlier_runs_are_fenced_before_the_progress_is_read(sink: KafkaSink, broker: Broker) -> None:
    sink.open()

    assert broker.happened == ["ensure topics", "open", "read progress", "check unused"]


def test_outputs_may_hold_what_the_progress_tells_of(sink: KafkaSink, broker: Broker) -> None:
    broker.progress = record(3, 40)

    assert sink.open() == record(3, 40)
    assert "check unused" not in broker.happened


def test_a_commit_whose_outcome_is_unknown_is_looked_up_and_not_repeated(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.happened.clear()
    broker.progress = record(0, 10)
    broker.fails_at = "commit"

    report = sink.write("q", make_batch(0, []))

    assert report.was_covered
    assert broker.happened.count("commit") == 1
    assert broker.happened[-3:] == ["discard", "open", "read progress"]


def test_a_commit_that_failed_is_repeated_by_another_producer(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.happened.clear()
    broker.fails_at = "commit"

    report = sink.write("q", make_batch(0, []))

    assert not report.was_covered
    opened = broker.happened.index("open")
    assert broker.happened[:opened].count("commit") == broker.happened[opened:].count("commit") == 1


def test_what_fails_to_open_is_discarded_and_an_error(sink: KafkaSink, broker: Broker) -> None:
    broker.fails_at = "open"
    with pytest.raises(OutputUnavailableError):
        sink.open()

    assert broker.happened == ["ensure topics", "open", "discard"]


def test_each_batch_continues_the_one_before(sink: KafkaSink, broker: Broker, make_batch: MakeBatch) -> None:
    sink.open()
    broker.happened.clear()

    reports = [sink.write("q", make_batch(number, [])) for number in (0, 1, 1)]

    assert [report.was_covered for report in reports] == [False, False, True]
    assert broker.happened.count("commit") == 2
    assert "open" not in broker.happened


def test_the_progress_of_another_checkpoint_is_not_continued(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    broker.progress = record(0, 10)
    sink.open()

    with pytest.raises(PipelineNameTakenError):
        sink.write("another", make_batch(1, []))
    assert "begin" not in broker.happened


def test_a_pipeline_without_progress_does_not_go_on_behind_what_others_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = CommitRecord(
        pipeline="other",
        source="inv",
        timeline=1,
        commit_lsn=7,
        previous_lsn=0,
        xid=None,
        commit_ts_ms=0,
        offsets={},
    )
    monkeypatch.setattr(progress, "_newest_value", lambda *_: encode_commit_record(written))

    with pytest.raises(OutputTopicError, match="'other'"):
        progress.check_unused(SETTINGS)


def test_batches_without_input_are_asked_for_only_when_numbers_are_missing(
    broker: Broker, make_batch: MakeBatch
) -> None:
    asked: list[None] = []

    def without_output() -> frozenset[int]:
        asked.append(None)
        return frozenset({0, 3})

    settings = replace(SETTINGS, without_output=without_output)
    sink = KafkaSink(settings, connect=lambda settings: Producer(broker, settings))
    sink.open()
    sink.write("q", make_batch(1, [], from_lsn=0))
    assert len(asked) == 1
    sink.write("q", make_batch(2, [], from_lsn=10))
    assert len(asked) == 1
    sink.write("q", make_batch(4, [], from_lsn=20))
    assert len(asked) == 2
    with pytest.raises(ProgressMismatchError):
        sink.write("q", make_batch(6, [], from_lsn=30))


def test_a_run_that_was_fenced_lets_go_of_its_producer_and_ends(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.happened.clear()
    broker.fails_at, broker.failure = "commit", ProducerFencedError("orders", "fenced")

    with pytest.raises(ProducerFencedError):
        sink.write("q", make_batch(0, []))
    assert broker.happened[-1] == "discard"
    assert broker.happened.count("begin") == 1
