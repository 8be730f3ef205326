"""Topics in memory that somebody changes between two runs, or while one writes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from slackwater.cdc.commit_avro import encode_commit_avro
from slackwater.outputs.contract import Emit
from slackwater.outputs.kafka import answers, guard
from slackwater.outputs.kafka.guard import TopicGuard
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.kafka.topics import TopicRule, topic_rules
from slackwater.protocol import (
    CommitFormat,
    CommitPosition,
    CommitRecord,
    ConfigError,
    KafkaSettings,
    OffsetRange,
    ProgressRecord,
    StateError,
    TopicState,
    encode_commit_record,
    epoch_ms,
)

SETTINGS = KafkaSinkSettings(
    pipeline="orders",
    outputs=(OutputTopic("out"), OutputTopic("sums", commit_format=CommitFormat.AVRO)),
    kafka=KafkaSettings("b:1"),
)
ACCEPTING = replace(SETTINGS, accept_changed_output=True)


def commit(commit_lsn: int = 10, pipeline: str = "orders") -> tuple[str, CommitPosition]:
    return pipeline, CommitPosition(1, commit_lsn)


def test_topics_of_latest_keep_documents_that_were_replaced_for_a_while() -> None:
    """So that views can be read where recent batches ended."""
    rules = topic_rules(replace(SETTINGS, keep=timedelta(seconds=90)))
    configs = {rule.name: rule.config for rule in rules}
    assert configs["out"] == {"cleanup.policy": "compact", "min.compaction.lag.ms": "90000"}
    assert configs[SETTINGS.progress_topic] == {"cleanup.policy": "compact"}
    whole = {rule.name: rule.config for rule in topic_rules(replace(SETTINGS, emit=Emit.TRANSACTIONS))}
    assert "min.compaction.lag.ms" not in whole["out"]


KEPT = 600_000
"""Milliseconds for which outputs keep what was replaced."""


@dataclass
class Topics:
    """A broker. Of each topic its state; which offsets hold records that readers see; commit records."""

    kept: dict[str, TopicState] = field(default_factory=dict)
    visible: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    commits: dict[str, tuple[str, CommitPosition]] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=count)
    lags: dict[str, int] = field(default_factory=lambda: {"out": KEPT, "sums": KEPT})
    happened: list[str] = field(default_factory=list)

    def missing(self) -> list[TopicRule]:
        rules = [rule for rule in topic_rules(SETTINGS) if rule.name != SETTINGS.progress_topic]
        return [rule for rule in rules if rule.name not in self.kept]

    def create(self, rules: Iterable[TopicRule]) -> None:
        for rule in rules:
            self.make(rule.name, rule.create_partitions)

    def make(self, name: str, partitions: int) -> None:
        self.kept[name] = TopicState(f"id {next(self.ids)}", (0,) * partitions, (0,) * partitions)
        self.visible[name] = []
        self.commits.pop(name, None)

    def identities(self) -> dict[str, tuple[str, int]]:
        return {name: (state.topic_id, len(state.end)) for name, state in self.kept.items()}

    def states(self) -> dict[str, TopicState]:
        return dict(self.kept)

    def compaction_lags(self) -> dict[str, int]:
        return dict(self.lags)

    def set_compaction_lags(self, lags: Mapping[str, int]) -> None:
        self.happened.append("set")
        self.lags |= lags

    def close(self) -> None:
        pass

    def first_visible(
        self, _settings: KafkaSinkSettings, topic: str, positions: Mapping[int, int]
    ) -> tuple[int, int] | None:
        places = [(p, offset) for p, offset in self.visible[topic] if offset >= positions.get(p, 1 << 60)]
        return min(places, default=None)

    def newest_commit(self, _settings: KafkaSinkSettings, topic: str) -> tuple[str, CommitPosition] | None:
        return self.commits.get(topic)

    def write(self, topic: str, offset: int, partition: int = 0) -> None:
        """A record and, behind it, the marker of its transaction."""
        state = self.kept[topic]
        end = list(state.end)
        end[partition] = offset + 2
        self.kept[topic] = replace(state, end=tuple(end))
        self.visible[topic].append((partition, offset))

    def batch(self, guard: TopicGuard, number: int = 0) -> ProgressRecord:
        """A batch of one document per output, and the progress record that becomes visible with it."""
        written = {}
        for output in SETTINGS.outputs:
            offset = self.kept[output.name].end[0]
            written[output.name] = {0: OffsetRange(1, offset, offset)}
        states = guard.states_after(written)
        for output in SETTINGS.outputs:
            self.write(output.name, written[output.name][0].first_offset)
            self.write(output.commits, self.kept[output.commits].end[0])
            self.commits[output.commits] = commit(10 * (number + 1))
        for name in SETTINGS.avro_commits:
            self.write(name, self.kept[name].end[0])
            self.commits[name] = commit(10 * (number + 1))
        return progress(number, states)


def progress(batch_id: int, states: Mapping[str, TopicState]) -> ProgressRecord:
    return ProgressRecord(
        pipeline="orders",
        query_id="q",
        batch_id=batch_id,
        source="inv",
        timeline=1,
        commit_lsn=10 * (batch_id + 1),
        topics=states,
    )


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    result = Topics()
    monkeypatch.setattr(guard, "SinkTopics", lambda _settings: result)
    monkeypatch.setattr(guard, "first_visible", result.first_visible)
    monkeypatch.setattr(guard, "newest_commit", result.newest_commit)
    return result


def begin(record: ProgressRecord | None, settings: KafkaSinkSettings = SETTINGS) -> TopicGuard:
    """A run up to its first batch."""
    found = TopicGuard(settings)
    found.create_missing(record)
    found.check(record)
    return found


def delete(topics: Topics, name: str) -> None:
    del topics.kept[name]


def remake(topics: Topics, name: str) -> None:
    topics.make(name, len(topics.kept[name].end))


def cut(topics: Topics, name: str) -> None:
    state = topics.kept[name]
    topics.kept[name] = replace(state, start=(1, *state.start[1:]))


def lose(topics: Topics, name: str) -> None:
    state = topics.kept[name]
    topics.kept[name] = replace(state, end=(0, *state.end[1:]))


def grow(topics: Topics, name: str) -> None:
    state = topics.kept[name]
    topics.kept[name] = replace(state, start=(*state.start, 0), end=(*state.end, 0))


def write(topics: Topics, name: str) -> None:
    topics.write(name, topics.kept[name].end[0])


def write_commit(topics: Topics, name: str) -> None:
    write(topics, name)
    topics.commits[name] = commit(20, "others")


CHANGES: list[tuple[Callable[[Topics, str], None], str, str]] = [
    (delete, "out", "none: it was deleted"),
    (delete, "sums", "none: it was deleted"),
    (delete, "out.commits", "none: it was deleted"),
    (remake, "out", "recreated"),
    (remake, "sums.commits", "recreated"),
    (cut, "out", "starts at offset 1"),
    (cut, "sums", "starts at offset 1"),
    (cut, "out.commits", "starts at offset 1"),
    (lose, "out", "ends at offset 0"),
    (grow, "sums", "found 5"),
    (write, "out", "record of another writer at offset 2 of partition 0"),
    (write_commit, "sums.commits", "pipeline 'others' wrote"),
    (delete, "sums.commits-avro", "none: it was deleted"),
    (remake, "sums.commits-avro", "recreated"),
    (cut, "sums.commits-avro", "starts at offset 1"),
    (write_commit, "sums.commits-avro", "pipeline 'others' wrote"),
]


@pytest.mark.parametrize(("change", "name", "told"), CHANGES)
def test_a_change_between_two_runs_is_refused_until_it_is_accepted(
    topics: Topics, change: Callable[[Topics, str], None], name: str, told: str
) -> None:
    first = begin(None)
    before = topics.batch(first)
    begin(before)
    change(topics, name)
    known = set(topics.kept)
    with pytest.raises(StateError, match=told) as refused:
        begin(before)
    assert f"topic {name!r}: " in str(refused.value)
    assert "--accept-changed-output" in str(refused.value)
    assert set(topics.kept) == known
    accepted = begin(before, ACCEPTING)
    claimed = replace(before, topics=accepted.states)
    again = begin(claimed)
    begin(topics.batch(again, 1))


@pytest.mark.parametrize(
    ("change", "name", "told"), [each for each in CHANGES if each[0] in (delete, remake, grow)]
)
def test_a_change_while_a_run_writes_is_refused(
    topics: Topics, change: Callable[[Topics, str], None], name: str, told: str
) -> None:
    running = begin(None)
    running.states = topics.batch(running).topics
    change(topics, name)
    with pytest.raises(StateError, match=told):
        running.states_after({})
    with pytest.raises(StateError, match=told):
        running.check_identity()


def test_records_of_others_between_two_batches_are_refused_or_accepted(topics: Topics) -> None:
    running = begin(None)
    running.states = topics.batch(running).topics
    write(topics, "out")
    with pytest.raises(StateError, match="another writer at offset 2"):
        topics.batch(running, 1)
    accepting = begin(None, ACCEPTING)
    assert topics.batch(accepting, 1).topics["out"].end[0] == 5


def test_what_is_accepted_while_a_run_writes_counts_from_then_on(topics: Topics) -> None:
    running = begin(None, ACCEPTING)
    running.states = topics.batch(running).topics
    remake(topics, "out")
    after = topics.batch(running, 1).topics
    assert after["out"] == TopicState(topics.kept["out"].topic_id, (0,) * 4, (1, 0, 0, 0))
    begin(progress(1, after))


def test_topics_may_be_made_anew_while_nothing_is_visible(topics: Topics) -> None:
    nothing = replace(progress(-1, begin(None).states), batch_id=-1)
    for name in ("out", "sums.commits"):
        delete(topics, name)
        begin(nothing)
        remake(topics, name)
        begin(nothing)
        grow(topics, "sums")
        begin(nothing)


@pytest.mark.parametrize("name", ["out", "sums", "out.commits"])
def test_a_pipeline_without_progress_takes_only_topics_without_records(topics: Topics, name: str) -> None:
    before = begin(None).states
    write(topics, name)
    topics.commits[name] = commit(10, "others")
    told = (
        "what pipeline 'others' wrote up to 0/A" if name.endswith(".commits") else "offset 0 of partition 0"
    )
    for record in (None, replace(progress(-1, before), batch_id=-1)):
        with pytest.raises(StateError, match=told):
            begin(record)
    accepted = begin(None, ACCEPTING).states
    begin(replace(progress(-1, accepted), batch_id=-1))


def test_records_that_readers_do_not_see_are_nobody_s(topics: Topics) -> None:
    begin(None)
    write(topics, "out")
    topics.visible["out"].clear()
    begin(None)


def test_of_progress_of_an_older_version_only_the_commit_records_are_compared(topics: Topics) -> None:
    before = replace(topics.batch(begin(None)), topics={})
    grow(topics, "out")
    begin(before)
    topics.commits["out.commits"] = commit(30)
    with pytest.raises(StateError, match="0/1E of timeline 1 as the newest one"):
        begin(before)


NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000


def hold(found: TopicGuard, topics: Topics, until: datetime | None, now: datetime = NOW) -> None:
    found.hold(until, now, lambda: topics.happened.append("write"))


def test_readers_learn_that_topics_are_raised_before_they_are(topics: Topics) -> None:
    found = begin(None)
    hold(found, topics, NOW + HOUR)
    assert topics.happened == ["write", "set"]
    assert topics.lags == {"out": KEPT + HOUR_MS, "sums": KEPT + HOUR_MS}
    for name in ("out", "sums"):
        assert (found.states[name].lag_ms, found.states[name].raised_ms) == (KEPT, epoch_ms(NOW))
    assert found.states["out.commits"].lag_ms is None


def test_a_topic_that_is_raised_is_counted_from_then_and_never_gets_shorter(topics: Topics) -> None:
    found = begin(None)
    hold(found, topics, NOW + 2 * HOUR)
    hold(found, topics, NOW + HOUR, NOW + HOUR / 2)
    assert topics.lags["out"] == KEPT + 2 * HOUR_MS
    hold(found, topics, NOW + 3 * HOUR, NOW + HOUR)
    assert topics.lags["out"] == KEPT + 3 * HOUR_MS
    assert topics.happened == ["write", "set", "set", "set"]
    assert found.states["out"].raised_ms == epoch_ms(NOW)


def test_when_the_last_reader_is_done_topics_are_as_before(topics: Topics) -> None:
    found = begin(None)
    topics.lags["sums"] = 2 * KEPT
    hold(found, topics, NOW + HOUR)
    hold(found, topics, None)
    assert topics.lags == {"out": KEPT, "sums": 2 * KEPT}
    assert all((state.lag_ms, state.raised_ms) == (None, 0) for state in found.states.values())


def test_the_next_run_knows_which_topics_are_raised(topics: Topics) -> None:
    first = begin(None)
    hold(first, topics, NOW + HOUR)
    second = begin(topics.batch(first))
    assert second.states["out"].raised_ms == epoch_ms(NOW)
    hold(second, topics, NOW + HOUR, NOW + HOUR / 2)
    assert topics.happened == ["write", "set", "set"], "it is written down already"
    hold(begin(topics.batch(second, 1)), topics, None)
    assert topics.lags == {"out": KEPT, "sums": KEPT}


def test_a_topic_that_was_written_down_but_not_raised_is_raised_from_now_on(topics: Topics) -> None:
    first = begin(None)
    hold(first, topics, NOW + HOUR)
    topics.lags["out"] = KEPT
    later = NOW + HOUR / 2
    second = begin(topics.batch(first))
    hold(second, topics, NOW + HOUR, later)
    assert second.states["out"].raised_ms == epoch_ms(later)
    assert second.states["sums"].raised_ms == epoch_ms(NOW)
    assert topics.lags["out"] == KEPT + HOUR_MS // 2


def test_a_topic_that_is_not_compacted_is_left_alone(topics: Topics) -> None:
    found = begin(None)
    topics.lags = {"sums": KEPT}
    hold(found, topics, NOW + HOUR)
    assert topics.lags == {"sums": KEPT + HOUR_MS}
    assert found.states["out"].lag_ms is None


def test_without_a_registry_commit_records_in_avro_are_refused_before_kafka_is_asked() -> None:
    with pytest.raises(ConfigError, match=r"'sums\.commits-avro' with a schema.*registry\.url"):
        KafkaSink(SETTINGS).check(None)


def test_the_newest_commit_record_is_read_in_the_form_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    record = CommitRecord(
        pipeline="orders",
        source="inv",
        timeline=2,
        commit_lsn=10,
        previous_lsn=0,
        xid=None,
        commit_ts_ms=0,
        offsets={},
    )
    forms = {
        "sums.commits": encode_commit_record(record),
        "sums.commits-avro": bytes(5) + encode_commit_avro(record),
    }
    monkeypatch.setattr(answers, "_newest_value", lambda _, topic: forms[topic])
    for topic in forms:
        assert answers.newest_commit(SETTINGS, topic) == ("orders", CommitPosition(2, 10))
