import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slackwater.cdc.batch import OffsetSpan, TaskPolicy, plan_tasks

Span = tuple[str, int, int, int]

SPANS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(1, 5000)),
    max_size=12,
).map(lambda d: sorted((t, p, first, first + size) for (t, p), (first, size) in d.items()))

POLICIES = st.builds(
    TaskPolicy,
    parallelism=st.integers(1, 8),
    min_task_events=st.integers(1, 3000),
    target_task_events=st.integers(500, 10_000),
)


def flat(tasks: list[list[OffsetSpan]]) -> list[OffsetSpan]:
    return [span for task in tasks for span in task]


def glued(spans: list[OffsetSpan]) -> list[Span]:
    """The spans with the pieces of a partition put together again, if they follow each other."""
    result: list[Span] = []
    for s in spans:
        if result and result[-1][:2] == (s.topic, s.partition) and result[-1][3] == s.from_offset:
            result[-1] = (*result[-1][:3], s.to_offset)
        else:
            result.append((s.topic, s.partition, s.from_offset, s.to_offset))
    return result


@given(SPANS, POLICIES, st.booleans())
def test_tasks_hold_every_offset_once_in_order(
    spans: list[Span], policy: TaskPolicy, may_split: bool
) -> None:
    tasks = plan_tasks(spans, policy, may_split=may_split)
    assert glued(flat(tasks)) == spans
    assert [s.sequence for s in flat(tasks)] == list(range(len(flat(tasks))))
    assert all(tasks)


@example(
    spans=[
        *(("a", n, 0, size) for n, size in enumerate((3012, 47, 418, 905, 106, 16))),
        ("b", 0, 0, 349),
        ("c", 0, 0, 4326),
        ("c", 1, 0, 835),
    ],
    policy=TaskPolicy(parallelism=1, min_task_events=1, target_task_events=835),
)
@given(SPANS, POLICIES)
def test_a_task_reads_a_partition_in_one_span(spans: list[Span], policy: TaskPolicy) -> None:
    for task in plan_tasks(spans, policy, may_split=True):
        assert len({(s.topic, s.partition) for s in task}) == len(task)


@given(SPANS, POLICIES)
def test_split_tasks_are_of_equal_size(spans: list[Span], policy: TaskPolicy) -> None:
    tasks = plan_tasks(spans, policy, may_split=True)
    sizes = [sum(s.size for s in task) for task in tasks]
    if sizes:
        assert len(sizes) == min(policy.tasks(sum(sizes)), sum(sizes))
        assert max(sizes) - min(sizes) <= 2


@given(SPANS, POLICIES)
def test_partitions_stay_whole_when_they_must(spans: list[Span], policy: TaskPolicy) -> None:
    planned = flat(plan_tasks(spans, policy, may_split=False))
    assert [(s.topic, s.partition, s.from_offset, s.to_offset) for s in planned] == spans


@given(SPANS, POLICIES, st.booleans())
def test_planning_is_a_function_of_its_arguments(
    spans: list[Span], policy: TaskPolicy, may_split: bool
) -> None:
    assert plan_tasks(spans, policy, may_split=may_split) == plan_tasks(spans, policy, may_split=may_split)


@pytest.mark.parametrize(
    ("size", "tasks"),
    [(0, 1), (19_999, 1), (20_000, 1), (40_000, 2), (80_000, 4), (400_000, 4), (5_000_000, 10)],
)
def test_small_batches_have_one_task_and_huge_ones_more_than_cores(size: int, tasks: int) -> None:
    policy = TaskPolicy(parallelism=4, min_task_events=20_000, target_task_events=500_000)
    assert policy.tasks(size) == tasks


def test_an_empty_batch_has_no_task() -> None:
    assert plan_tasks([], TaskPolicy(4, 1, 10), may_split=True) == []


def test_a_topic_whose_rows_may_repeat_anywhere_is_in_one_task() -> None:
    spans = [(topic, partition, 0, 100) for topic in ("a", "b", "c") for partition in range(4)]
    tasks = plan_tasks(spans, TaskPolicy(4, 1, 10_000), may_split=False, keep_topics=True)
    of_topics = [number for number, task in enumerate(tasks) for topic in {span.topic for span in task}]
    assert len(tasks) > 1
    assert len(of_topics) == 3, "no topic is in two"
