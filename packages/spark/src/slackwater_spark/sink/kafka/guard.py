"""Compares a sink's topics with what the pipeline left of them."""

import logging
from collections.abc import Mapping

from slackwater_protocol import CommitRecord, ProgressRecord, TopicState, format_position
from slackwater_spark.sink.kafka.reading import NOTHING_VISIBLE, first_visible, newest_commit
from slackwater_spark.sink.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater_spark.sink.kafka.topic_changes import (
    TopicChange,
    compare_commits,
    compare_topic,
    compare_written,
    first_unknown_offsets,
    offset_gaps,
    state_after,
)
from slackwater_spark.sink.kafka.topics import SinkTopics, unusable_topic
from slackwater_spark.sink.kafka.transaction import WrittenRanges

ADVICE = (
    "docs/runbooks/output-changed.md says how to build the output anew; --accept-changed-output goes on with "
    "it as it is, and what is missing stays missing"
)
_OURS = "nothing but what the pipeline has written"
_UNWRITTEN = "a topic that nobody has written to yet"

_log = logging.getLogger(__name__)


class TopicGuard:
    """Refuses output and commit topics that lost what the pipeline wrote, or got what others wrote.

    With ``accept_changed_output`` it warns instead, and takes them as they are from then on.

    Every method raises :class:`PipelineStateError` and what :class:`SinkTopics` raises.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._topics = SinkTopics(settings)
        self.states: Mapping[str, TopicState] = {}
        """The topics behind the newest batch."""

    def create_missing(self, record: ProgressRecord | None) -> None:
        """Makes the topics that are not there, unless the newest progress record says that they were."""
        missing = self._topics.missing()
        for rule in missing:
            if _is_visible(record):
                self._found(
                    rule.name,
                    TopicChange("the topic that the pipeline has written", "none: it was deleted"),
                )
        self._topics.create(missing)

    def check(self, record: ProgressRecord | None) -> None:
        """Compares with the newest progress record, when no other run writes any more."""
        found = self._topics.states()
        left = {} if record is None else record.topics
        for output in self._settings.outputs:
            for name in (output.commits, output.name):
                change = self._change(record, output, name, left.get(name), found[name])
                if change is not None:
                    self._found(name, change)
        self.states = found

    def check_identity(self) -> None:
        """Refuses topics that are not the same ones any more, while the run writes."""
        self.states_after({})

    def states_after(self, written: WrittenRanges) -> Mapping[str, TopicState]:
        """Returns the topics behind a batch whose documents are acknowledged, but not visible yet."""
        identities = self._topics.identities()
        after = {}
        for name, was in self.states.items():
            if name not in identities:
                raise unusable_topic(
                    name, "the topic that the pipeline writes", "none: it was deleted", ADVICE
                )
            topic_id, partitions = identities[name]
            ranges = written.get(name, {})
            change = compare_written(was, topic_id, partitions, ranges)
            if change is not None:
                self._found(name, change)
                was = TopicState(topic_id, (0,) * partitions, (0,) * partitions)
            elif (place := first_visible(self._settings, name, offset_gaps(was, ranges))) is not None:
                self._found(name, _stray(place))
            after[name] = state_after(was, ranges)
        return after

    def close(self) -> None:
        """Frees the connection; the next use connects again."""
        self._topics.close()

    def largest_records(self) -> Mapping[str, int]:
        """Returns the largest record that each output takes, in bytes, as far as it may be known."""
        return self._topics.largest_records()

    def _change(
        self,
        record: ProgressRecord | None,
        output: OutputTopic,
        name: str,
        left: TopicState | None,
        found: TopicState,
    ) -> TopicChange | None:
        change = None if left is None else compare_topic(left, found)
        if record is None or not _is_visible(record):
            return self._foreign(output, name, None if change else left, found)
        if change is not None:
            return change
        if name == output.commits:
            is_as_left = left is not None and left.end == found.end
            return None if is_as_left else compare_commits(record, newest_commit(self._settings, name))
        return None if left is None else self._foreign(output, name, left, found)

    def _foreign(
        self, output: OutputTopic, name: str, left: TopicState | None, found: TopicState
    ) -> TopicChange | None:
        """Records that readers see and the pipeline has not written."""
        place = first_visible(self._settings, name, first_unknown_offsets(left, found))
        if place is None:
            return None
        if name == output.commits:
            return TopicChange(_UNWRITTEN, _written(newest_commit(self._settings, name)))
        return _stray(place, _UNWRITTEN if left is None else _OURS)

    def _found(self, topic: str, change: TopicChange) -> None:
        if not self._settings.accept_changed_output:
            raise unusable_topic(topic, change.expected, change.found, ADVICE)
        _log.warning(
            "topic %r: expected %s, found %s; accepted: the pipeline goes on with it as it is",
            topic,
            change.expected,
            change.found,
        )


def _stray(place: tuple[int, int], expected: str = _OURS) -> TopicChange:
    partition, offset = place
    return TopicChange(expected, f"a record of somebody else at offset {offset} of partition {partition}")


def _is_visible(record: ProgressRecord | None) -> bool:
    return record is not None and record.batch_id != NOTHING_VISIBLE


def _written(newest: CommitRecord | None) -> str:
    if newest is None:
        return "records"
    return f"what pipeline {newest.pipeline!r} wrote up to {format_position(newest.commit_lsn)}"
