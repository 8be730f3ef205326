"""Compares a sink's topics with the state in which the pipeline left them.

:class:`TopicGuard` queries Kafka and refuses; the functions that it uses are pure and find the differences.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from slackwater.outputs.kafka.answers import first_visible, newest_commit
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.topics import UNKNOWN_ID, SinkTopics, unusable_topic
from slackwater.outputs.kafka.transaction import WrittenRanges
from slackwater.protocol import (
    CommitPosition,
    OffsetRange,
    ProgressRecord,
    TopicState,
    epoch_ms,
    format_position,
    visible_progress,
)
from slackwater.protocol.keys import commit_topic

_ADVICE = (
    "docs/runbooks.md#output-changed describes how to rebuild the output; --accept-changed-output continues "
    "with it as it is, and missing records stay missing"
)
_OURS = "only records that the pipeline has written"
_UNWRITTEN = "a topic that nobody has written to yet"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A difference between a topic and the state in which the pipeline left it."""

    expected: str
    found: str


class TopicGuard:
    """Refuses output and commit topics that lost what the pipeline wrote, or that others have written to.

    With ``accept_changed_output``, it logs a warning instead, and accepts the current state of the topics.

    Every method raises :class:`StateError` and the errors of :class:`SinkTopics`.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._topics = SinkTopics(settings)
        self.states: Mapping[str, TopicState] = {}
        """The state of the topics after the newest batch."""

    def create_missing(self, record: ProgressRecord | None) -> None:
        """Creates the topics that do not exist, unless the newest progress record shows that they did."""
        missing = self._topics.missing()
        for rule in missing:
            if visible_progress(record) is not None:
                self._found(
                    rule.name,
                    TopicChange("the topic that the pipeline has written", "none: it was deleted"),
                )
        self._topics.create(missing)

    def check_progress_topic(self) -> None:
        """Refuses to continue if the progress topic was deleted under the run."""
        if self._settings.progress_topic in {rule.name for rule in self._topics.missing()}:
            raise unusable_topic(
                self._settings.progress_topic, "the pipeline's progress", "none: it was deleted", _ADVICE
            )

    def check(self, record: ProgressRecord | None) -> None:
        """Compares the topics with the newest progress record, when no other run writes any more."""
        found = self._topics.states()
        left = {} if record is None else record.topics
        commits = {*map(commit_topic, self._settings.topics), *self._settings.avro_commits}
        for name in self._settings.written_topics:
            change = self._change(record, name, left.get(name), found[name], is_of_commits=name in commits)
            if change is not None:
                self._found(name, change)
            if (before := left.get(name)) is not None:  # what only the pipeline knows
                found[name] = replace(found[name], lag_ms=before.lag_ms, raised_ms=before.raised_ms)
        self.states = found

    def check_identity(self) -> None:
        """Refuses topics that were replaced while the run writes."""
        self.states_after({})

    def states_after(self, written: WrittenRanges) -> Mapping[str, TopicState]:
        """Returns the topics' states after a batch whose documents are acknowledged, but not yet visible."""
        identities = self._topics.identities()
        after = {}
        for name, was in self.states.items():
            if name not in identities:
                raise unusable_topic(
                    name, "the topic that the pipeline writes", "none: it was deleted", _ADVICE
                )
            topic_id, partitions = identities[name]
            ranges = written.get(name, {})
            change = compare_written(was, topic_id, partitions, ranges)
            if change is not None:
                self._found(name, change)
                was = TopicState(topic_id, (0,) * partitions, (0,) * partitions, views=was.views)
            elif (place := first_visible(self._settings, name, offset_gaps(was, ranges))) is not None:
                self._found(name, _stray(place))
            after[name] = state_after(was, ranges)
        return after

    def close(self) -> None:
        """Closes the connection; the next use connects again."""
        self._topics.close()

    def largest_records(self) -> Mapping[str, int]:
        """Returns the maximum size of a record in each output, in bytes, as far as it can be read."""
        return self._topics.largest_records()

    def hold(self, until: datetime | None, now: datetime, write_down: Callable[[], None]) -> None:
        """Raises the time for which compacted outputs keep what was replaced, or restores the previous value.

        At any moment up to the given time, a topic keeps records for at least its previous lag plus the time
        since it was raised. Everything that could be read when it was raised can therefore be read until
        then.

        Args:
            until: The time at which the last reader needs an earlier state; None if no reader does.
            now: The time.
            write_down: Called before a topic is raised. It writes :attr:`states`, from which readers
                determine what may have been removed before.
        """
        states = dict(self.states)
        if until is None:
            self._topics.set_compaction_lags(
                {name: each.lag_ms for name, each in states.items() if each.lag_ms is not None}
            )
            self.states = {name: replace(each, lag_ms=None, raised_ms=0) for name, each in states.items()}
            return
        lags = self._topics.compaction_lags()
        for name, lag_ms in lags.items():
            before = states[name].lag_ms
            if before is None or lag_ms <= before:  # a run may have ended before it could raise it
                states[name] = replace(states[name], lag_ms=lag_ms, raised_ms=epoch_ms(now))
        if states != self.states:
            self.states = states
            write_down()
        self._topics.set_compaction_lags(
            {
                name: max(lag_ms, epoch_ms(until) - states[name].raised_ms + (states[name].lag_ms or 0))
                for name, lag_ms in lags.items()
            }
        )

    def _change(
        self,
        record: ProgressRecord | None,
        name: str,
        left: TopicState | None,
        found: TopicState,
        *,
        is_of_commits: bool,
    ) -> TopicChange | None:
        change = None if left is None else compare_topic(left, found)
        visible = visible_progress(record)
        if visible is None:
            return self._foreign(name, None if change else left, found, is_of_commits=is_of_commits)
        if change is not None:
            return change
        if is_of_commits:
            is_as_left = left is not None and left.end == found.end
            return None if is_as_left else compare_commits(visible, newest_commit(self._settings, name))
        return None if left is None else self._foreign(name, left, found)

    def _foreign(
        self, name: str, left: TopicState | None, found: TopicState, *, is_of_commits: bool = False
    ) -> TopicChange | None:
        """Returns a change for records that readers see and the pipeline has not written."""
        place = first_visible(self._settings, name, first_unknown_offsets(left, found))
        if place is None:
            return None
        if is_of_commits:
            return TopicChange(_UNWRITTEN, _written(newest_commit(self._settings, name)))
        return _stray(place, _UNWRITTEN if left is None else _OURS)

    def _found(self, topic: str, change: TopicChange) -> None:
        if not self._settings.accept_changed_output:
            raise unusable_topic(topic, change.expected, change.found, _ADVICE)
        _log.warning(
            "topic %r: expected %s, found %s; accepted: the pipeline continues with it as it is",
            topic,
            change.expected,
            change.found,
        )


def compare_topic(left: TopicState, found: TopicState) -> TopicChange | None:
    """Returns the change if a topic lost what the pipeline wrote to it, or if its keys would move.

    Compaction is not a change, because it does not move the first offset.
    """
    if UNKNOWN_ID not in (left.topic_id, found.topic_id) and left.topic_id != found.topic_id:
        return TopicChange(
            f"the topic that the pipeline has written (id {left.topic_id})",
            f"another one of this name (id {found.topic_id}): it was deleted and recreated",
        )
    if len(left.end) != len(found.end):
        return TopicChange(
            f"{len(left.end)} partition(s), as when the pipeline wrote to it",
            f"{len(found.end)}: documents of a key would be written to another partition than before",
        )
    for partition, (start, end) in enumerate(zip(left.start, left.end, strict=True)):
        if found.end[partition] < end:
            return TopicChange(
                f"records up to offset {end - 1} in partition {partition}",
                f"that it ends at offset {found.end[partition]}: newer records were lost, "
                "or the topic was deleted and recreated",
            )
        if found.start[partition] > start:
            return TopicChange(
                f"all records since offset {start} in partition {partition}",
                f"that it starts at offset {found.start[partition]}: older records were removed, "
                "by retention (cleanup.policy=delete) or by hand",
            )
    return None


def first_unknown_offsets(left: TopicState | None, found: TopicState) -> dict[int, int]:
    """Returns for each partition the offset from which on a topic may contain records of others."""
    ours = found.start if left is None else left.end
    return {
        partition: max(start, own)
        for partition, (start, own, end) in enumerate(zip(found.start, ours, found.end, strict=True))
        if max(start, own) < end
    }


def compare_commits(
    progress: ProgressRecord, newest: tuple[str, CommitPosition] | None
) -> TopicChange | None:
    """Returns the change if the newest commit record does not belong to the newest batch.

    Both became visible at once. Of the record, the pipeline and the commit are given.
    """
    expected = f"the commit record of batch {progress.batch_id}, at {format_position(progress.commit_lsn)}"
    if newest is None:
        return TopicChange(expected, "no commit record at all: they were removed")
    pipeline, position = newest
    if pipeline != progress.pipeline:
        return TopicChange(expected, f"one that pipeline {pipeline!r} wrote")
    if position != CommitPosition(progress.timeline, progress.commit_lsn):
        found = f"{format_position(position.lsn)} of timeline {position.timeline} as the newest one"
        return TopicChange(expected, f"{found}: commit records or progress records were removed")
    return None


def compare_written(
    left: TopicState, topic_id: str, partitions: int, written: Mapping[int, OffsetRange]
) -> TopicChange | None:
    """Returns the change if a topic was modified while a batch was being written to it.

    Args:
        left: The topic before the batch.
        topic_id: Its id after the records were acknowledged.
        partitions: The number of partitions at that time. It never falls, so it was not larger when keys were
            assigned.
        written: The offsets of the records, by partition.
    """
    found = TopicState(topic_id, left.start, left.end)
    partitions = max(partitions, max(written, default=-1) + 1)
    if partitions != len(left.end):
        found = replace(found, start=(0,) * partitions, end=(0,) * partitions)
    if (change := compare_topic(left, found)) is not None:
        return change
    for partition, offsets in written.items():
        if offsets.first_offset < left.end[partition]:
            return TopicChange(
                f"new records of partition {partition} after offset {left.end[partition] - 1}",
                f"that they were written at offset {offsets.first_offset}: the topic was deleted and "
                "recreated",
            )
    return None


def offset_gaps(left: TopicState, written: Mapping[int, OffsetRange]) -> dict[int, int]:
    """Returns the partitions in which more than a transaction's marker lies between two batches.

    This may be records of others, of aborted transactions, or the broker's own.
    """
    return {
        partition: left.end[partition]
        for partition, offsets in written.items()
        if offsets.first_offset > left.end[partition] + 1
    }


def state_after(left: TopicState, written: Mapping[int, OffsetRange]) -> TopicState:
    """Returns a topic's state after a batch."""
    end = list(left.end)
    for partition, offsets in written.items():
        end[partition] = offsets.last_offset + 1
    return replace(left, end=tuple(end))


def _stray(place: tuple[int, int], expected: str = _OURS) -> TopicChange:
    partition, offset = place
    return TopicChange(expected, f"a record of another writer at offset {offset} of partition {partition}")


def _written(newest: tuple[str, CommitPosition] | None) -> str:
    if newest is None:
        return "records"
    pipeline, position = newest
    return f"what pipeline {pipeline!r} wrote up to {format_position(position.lsn)}"
