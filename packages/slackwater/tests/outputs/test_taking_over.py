"""Who takes a pipeline over reads its progress when earlier runs are fenced; who was overtaken stays out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaException

from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.transactions import Headers, KafkaTransactions
from slackwater.outputs.kafka import sink as kafka
from slackwater.outputs.kafka.answers import TransactionFailedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.sink import Waiting
from slackwater.protocol import (
    KafkaSettings,
    OvertakenError,
    ProgressRecord,
    SlackwaterError,
    StateError,
    TopicState,
    UnavailableError,
    decode_progress_record,
)
from slackwater.protocol.errors import run_overtaken

MakeBatch = Callable[..., DocumentBatch]


class Broker:
    """What happens, in order; the newest progress record, and which producer is not fenced."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.progress: ProgressRecord | None = None
        self.newest: Producer | None = None
        self.fails: list[str] = []
        self.hooks: dict[str, Callable[[], object]] = {}

    def did(self, what: str) -> None:
        self.happened.append(what)
        if hook := self.hooks.pop(what, None):
            hook()
        if what in self.fails:
            self.fails.remove(what)
            raise TransactionFailedError(what, "broker is away")


class Producer(KafkaTransactions):
    """Stands in for Kafka's."""

    def __init__(self, broker: Broker, settings: KafkaSinkSettings) -> None:
        self._broker = broker
        self._progress: ProgressRecord | None = None
        self.settings = settings

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        raise AssertionError("it asks no Kafka")

    def open(self) -> None:
        self._broker.did("open")
        self._broker.newest = self

    def begin(self) -> None:
        self._progress = None

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        report: object,
        partition: int = -1,
    ) -> None:
        if topic.endswith(".progress") and value is not None:
            self._progress = decode_progress_record(value)

    def serve(self) -> None:
        pass

    def flush(self, *how: Any) -> None:
        pass

    def commit(self) -> None:
        """As Kafka: a failure may come before it or, when only the answer is lost, behind it."""
        self._broker.did("commit")
        if self._broker.newest is not self:
            raise run_overtaken("orders", "epoch")
        self._broker.progress = self._progress
        self._broker.did("answer")

    def abort(self) -> None:
        self._broker.did("abort")

    def check(self) -> None:
        pass

    def discard(self) -> None:
        self._broker.did("discard")


class Guard:
    """Topics that nobody changes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.states: Mapping[str, TopicState] = {"out": TopicState("a", (0,), (0,))}

    def create_missing(self, _record: ProgressRecord | None) -> None:
        self._broker.did("create missing")

    def check(self, _record: ProgressRecord | None) -> None:
        self._broker.did("check")

    def check_identity(self) -> None:
        self._broker.did("check identity")

    def states_after(self, _written: object) -> Mapping[str, TopicState]:
        self._broker.did("states_after")
        return {"out": TopicState("a", (0,), (self.states["out"].end[0] + 1,))}

    def largest_records(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._broker.did("close")


SETTINGS = KafkaSinkSettings(
    pipeline="orders",
    outputs=(OutputTopic("out"),),
    kafka=KafkaSettings("b:1"),
    patience=timedelta(),  # a run that should have ended does not continue for minutes
)
BEGUN = ["read progress", "create missing", "open", "read progress", "check", "commit", "answer"]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    result = Broker()

    def newest_progress(
        _settings: KafkaSinkSettings, *, may_be_absent: bool = False
    ) -> ProgressRecord | None:
        result.did("read progress")
        return result.progress

    monkeypatch.setattr(kafka, "TopicGuard", lambda _settings: Guard(result))
    monkeypatch.setattr(kafka, "newest_progress", newest_progress)
    return result


def sink_of(broker: Broker, settings: KafkaSinkSettings = SETTINGS) -> KafkaSink:
    return KafkaSink(settings, connect=lambda settings: Producer(broker, settings))


@pytest.fixture
def sink(broker: Broker) -> KafkaSink:
    return sink_of(broker)


def record(batch_id: int, commit_lsn: int) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders", query_id="q", batch_id=batch_id, source="inv", timeline=1, commit_lsn=commit_lsn
    )


def shown(progress: ProgressRecord | None) -> tuple[int, int]:
    assert progress is not None
    return progress.batch_id, progress.commit_lsn


def test_earlier_runs_are_fenced_before_the_progress_is_read_and_topics_are_compared(
    sink: KafkaSink, broker: Broker
) -> None:
    assert sink.open() is None
    assert broker.happened == BEGUN


def test_a_run_begins_by_writing_the_progress_in_its_own_name(sink: KafkaSink, broker: Broker) -> None:
    broker.progress = record(3, 40)
    assert shown(sink.open()) == (3, 40)
    run, topics = broker.progress.run, Guard(broker).states
    assert broker.progress == replace(record(3, 40), run=run, topics=topics, root="inv")
    before = broker.progress.run
    sink_of(broker).open()
    assert broker.progress.run not in ("", before)


def test_a_run_that_has_shown_nothing_says_so(sink: KafkaSink, broker: Broker) -> None:
    sink.open()
    assert broker.progress is not None
    assert broker.progress.batch_id == -1
    assert sink_of(broker).open() is None


def test_the_topics_behind_a_batch_are_the_ones_before_the_next(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    for number in range(3):
        sink.write("q", make_batch(number, []))
    assert broker.progress is not None
    assert broker.progress.topics["out"].end == (3,)


def test_a_commit_whose_outcome_is_unknown_is_looked_up_and_not_repeated(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.happened.clear()
    broker.fails = ["answer"]

    report = sink.write("q", make_batch(0, []))

    assert report.was_covered
    assert broker.happened.count("commit") == 1
    assert broker.happened[-5:] == ["discard", "read progress", "open", "read progress", "check identity"]
    broker.happened.clear()
    sink.write("q", make_batch(1, []))
    assert broker.progress is not None
    assert broker.progress.topics["out"].end == (2,), (
        "the states of topics are those of the batch that became visible"
    )


def test_a_commit_that_failed_is_repeated_by_another_producer(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.happened.clear()
    broker.fails = ["commit"]

    report = sink.write("q", make_batch(0, []))

    assert not report.was_covered
    opened = broker.happened.index("open")
    assert broker.happened[:opened].count("commit") == broker.happened[opened:].count("commit") == 1


@pytest.mark.parametrize("what", ["open", "commit", "answer"])
def test_a_start_that_fails_is_tried_again_and_given_up(broker: Broker, what: str) -> None:
    broker.fails = [what]
    sink_of(broker).open()
    assert broker.happened.count("open") == 2
    broker.fails = [what] * 3
    broker.happened.clear()
    with pytest.raises(UnavailableError, match="3 attempts"):
        sink_of(broker).open()
    assert broker.happened.count("open") == 3
    assert broker.happened.count("discard") == 3


def test_a_start_that_is_fenced_by_a_run_that_it_overtakes_is_tried_again(broker: Broker) -> None:
    """An overtaken run opens another producer before the newer one has written its record."""
    sink = sink_of(broker)
    broker.hooks["commit"] = lambda: Producer(broker, SETTINGS).open()
    sink.open()
    assert broker.progress is not None


def test_a_run_that_was_overtaken_is_fenced_for_its_life(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    newer = sink_of(broker)
    newer.open()
    broker.happened.clear()
    with pytest.raises(OvertakenError, match="newest progress record is of run"):
        sink.write("q", make_batch(0, []))
    newer.close()
    broker.progress = None
    with pytest.raises(OvertakenError):
        sink.write("q", make_batch(0, []))
    assert "open" not in broker.happened


def test_an_attempt_that_fails_is_the_last_one_of_a_run_that_was_overtaken(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    """Another producer would fence the newer run."""
    sink.open()
    newer = sink_of(broker)
    broker.hooks["states_after"] = newer.open
    broker.fails = ["states_after"]
    with pytest.raises(OvertakenError):
        sink.write("q", make_batch(0, []))
    broker.happened.clear()
    newer.write("q", make_batch(0, []))
    assert "open" not in broker.happened, "the newer run was fenced"


def test_a_run_that_was_fenced_lets_go_of_its_producer_and_ends(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    broker.hooks["commit"] = sink_of(broker).open
    with pytest.raises(OvertakenError):
        sink.write("q", make_batch(0, []))
    assert broker.happened[-2:] == ["discard", "read progress"]


def test_another_time_out_does_not_make_an_overtaken_run_take_over(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.open()
    newer = sink_of(broker)
    newer.open()
    broker.happened.clear()
    monkeypatch.setattr("slackwater.outputs.kafka.settings._SLOWEST_BYTES_PER_SECOND", 0.001)
    with pytest.raises(OvertakenError):
        sink.write("q", make_batch(0))
    assert "open" not in broker.happened


def test_of_two_runs_that_open_producers_at_once_the_one_that_began_last_goes_on(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    newer = sink_of(broker)
    broker.fails = ["commit"]
    broker.hooks["open"] = newer.open
    with pytest.raises(OvertakenError):
        sink.write("q", make_batch(0, []))
    assert newer.write("q", make_batch(0, [])).was_covered is False


def test_a_run_that_is_fenced_in_vain_goes_on(sink: KafkaSink, broker: Broker, make_batch: MakeBatch) -> None:
    sink.open()
    broker.hooks["states_after"] = lambda: Producer(broker, SETTINGS).open()
    assert not sink.write("q", make_batch(0, [])).was_covered
    assert shown(broker.progress) == (0, 10)


class WithoutPauses(Waiting):
    def pause(self, seconds: float, step: str) -> None:
        pass


def test_a_run_is_fenced_in_vain_as_often_as_its_patience_allows(
    broker: Broker, make_batch: MakeBatch
) -> None:
    """Kafka fences a producer whose transaction was timed out, however often."""
    settings, left = replace(SETTINGS, patience=timedelta(hours=1), attempts=2), iter(range(4))

    def fence() -> None:
        Producer(broker, SETTINGS).open()
        if next(left, None) is not None:
            broker.hooks["states_after"] = fence

    sink = KafkaSink(settings, connect=lambda settings: Producer(broker, settings), waiting=WithoutPauses())
    sink.open()
    broker.hooks["states_after"] = fence
    assert not sink.write("q", make_batch(0, [])).was_covered
    assert next(left, None) is None
    assert shown(broker.progress) == (0, 10)


def test_a_progress_topic_that_was_emptied_under_a_run_is_refused(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    sink.write("q", make_batch(0, []))
    broker.fails = ["commit"]
    broker.hooks["commit"] = lambda: setattr(broker, "progress", None)
    with pytest.raises(StateError, match="progress records are gone"):
        sink.write("q", make_batch(1, []))


def test_the_progress_names_the_state_that_a_batch_leads_to(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    sink.write("q", make_batch(0, []))
    assert broker.progress is not None
    assert broker.progress.state == "state 0"
    again = sink_of(broker).open()
    assert again is not None
    assert again.state == "state 0", "a run that begins says it again"


def test_another_attempt_of_the_batch_that_is_visible_is_refused(
    sink: KafkaSink, broker: Broker, make_batch: MakeBatch
) -> None:
    sink.open()
    sink.write("q", make_batch(0, []))
    broker.happened.clear()
    with pytest.raises(StateError, match="does not follow it"):
        sink.write("q", make_batch(0, [], state="another attempt"))
    assert broker.happened == []


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
    broker.happened.clear()

    with pytest.raises(StateError):
        sink.write("another", make_batch(1, []))
    assert broker.happened == []
