"""From two offsets to tasks. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_LSN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Records of one partition that a batch holds, or a part of them."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    """Exclusive."""
    sequence: int
    """Place among all spans of the batch, by topic, partition and offset; in scope ``aggregate`` with the
    partition in its high bits."""
    after_lsn: int = 0
    """Only commits above this LSN belong to the batch."""
    up_to_lsn: int = MAX_LSN
    """Only commits up to this LSN belong to the batch."""
    next_offset: int | None = None
    """Where the next batch reads on in the partition, if that is below the end of this one (scope
    ``aggregate``); None: at its end."""

    is_of_group: bool = False
    """Whether its partition goes on by its own markers (scope ``aggregate``)."""

    @property
    def size(self) -> int:
        """Offsets in it; an upper bound of its records."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """How a batch is divided."""

    parallelism: int
    min_task_events: int
    target_task_events: int

    def tasks(self, size: int) -> int:
        """Number of tasks for so many offsets, at least 1."""
        wanted = min(self.parallelism, size // self.min_task_events)
        return max(1, wanted, -(-size // self.target_task_events))


def plan_tasks(
    spans: Iterable[tuple[str, int, int, int]],
    policy: TaskPolicy,
    *,
    may_split: bool,
    keep_topics: bool = False,
) -> list[list[OffsetSpan]]:
    """Tasks of about equal size; each is a stretch of the sorted spans, so sequences rise from task to task.

    Args:
        spans: ``(topic, partition, from, to)``, sorted, none of them empty.
        policy: How many tasks.
        may_split: Whether a partition may be divided between tasks. Not when repeated rows have to be found,
            since a row and its repetition have to meet in one task.
        keep_topics: Whether all spans of a topic have to be in one task: repeated rows without keys.

    Returns:
        At most the tasks that the policy says, none of them empty.
    """
    todo = list(spans)
    size = sum(to - first for _, _, first, to in todo)
    count = policy.tasks(size)
    tasks: list[list[OffsetSpan]] = [[] for _ in range(count)]
    done = sequence = task = 0
    previous = ""
    for topic, partition, from_offset, to_offset in todo:
        for first, last in _pieces(done, from_offset, to_offset, size / count if may_split else None):
            if not keep_topics or topic != previous:
                middle = done + (first - from_offset) + (last - first) / 2
                task = min(count - 1, int(middle * count / size))
            previous = topic
            sequence += _append(tasks[task], OffsetSpan(topic, partition, first, last, sequence))
        done += to_offset - from_offset
    return [task for task in tasks if task]


def _append(task: list[OffsetSpan], span: OffsetSpan) -> int:
    """Adds a span, or lengthens the last one that it continues; returns how many were added."""
    before = task[-1] if task else None
    if before is None or (before.topic, before.partition) != (span.topic, span.partition):
        task.append(span)
        return 1
    task[-1] = OffsetSpan(span.topic, span.partition, before.from_offset, span.to_offset, before.sequence)
    return 0


def _pieces(done: int, from_offset: int, to_offset: int, share: float | None) -> list[tuple[int, int]]:
    """Divides a span where a task's share ends."""
    if share is None:
        return [(from_offset, to_offset)]
    size = to_offset - from_offset
    borders = [from_offset]
    number = int(done / share) + 1
    while (border := round(number * share) - done) < size:
        if border > 0:
            borders.append(from_offset + border)
        number += 1
    return list(zip(borders, [*borders[1:], to_offset], strict=True))
