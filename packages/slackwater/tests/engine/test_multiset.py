"""Ordered multisets against sorted lists, over both kinds of index."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.multiset import (
    SORT_KEY_BYTES,
    OrderedMultiset,
    multiset_prefix,
    sort_key_part,
)
from slackwater.engine.index import BucketIndex, IndexTransaction
from slackwater.engine.local import MemoryIndex
from slackwater.engine.payloads import Outcome
from slackwater.engine.state.entry import MAX_PART_BYTES, Change
from slackwater_lab.fakes.buckets import CountingIndex

MakeIndex = Callable[[], BucketIndex]
Additions = dict[bytes, int]

PREFIX = multiset_prefix(b"\x91\x01", 3)
LMDB_NAME_BYTES = 511


def refusal(text: str, count: int) -> Exception:
    return ValueError(f"{text} {count}")


def text_of(sort_key: bytes) -> str:
    return sort_key.hex()


def run(contents: IndexTransaction, steps: list[Additions]) -> list[tuple[str | None, str | None]]:
    """Makes the steps as one batch; gives the ends before it and after each step."""
    touched = {sort_key: text_of(sort_key) for step in steps for sort_key in step}
    multiset = OrderedMultiset(contents, PREFIX, touched)
    ends = [(multiset.end(is_largest=False), multiset.end(is_largest=True))]
    for step in steps:
        multiset.add(step, refusal)
        ends.append((multiset.end(is_largest=False), multiset.end(is_largest=True)))
    outcome = Outcome(buckets=1)
    multiset.conclude(outcome)
    contents.apply(outcome.changes)
    return ends


def ends_of(model: Counter[bytes]) -> tuple[str | None, str | None]:
    there = sorted(model)
    return (text_of(there[0]), text_of(there[-1])) if there else (None, None)


stems = st.sampled_from([b"", b"a", b"a" * (SORT_KEY_BYTES - 1), b"a" * SORT_KEY_BYTES, b"b" * 600])
sort_keys = st.builds(lambda stem, end: stem + end, stems, st.binary(max_size=2))
batches = st.lists(st.lists(st.lists(sort_keys, max_size=5), max_size=4), max_size=5)


@settings(deadline=None)
@given(batches=batches, data=st.data())
def test_the_ends_are_those_of_the_sorted_values_after_every_step(
    batches: list[list[list[bytes]]], data: st.DataObject
) -> None:
    index = MemoryIndex()
    model: Counter[bytes] = Counter()
    for batch in batches:
        steps: list[Additions] = []
        expected = [ends_of(model)]
        for added in batch:
            present = sorted(model.elements())
            removed = data.draw(st.lists(st.sampled_from(present), max_size=4)) if present else []
            after = model + Counter(added)
            after.subtract({key: min(count, after[key]) for key, count in Counter(removed).items()})
            steps.append({key: after[key] - model[key] for key in {*added, *removed}})
            model = +after
            expected.append(ends_of(model))
        assert index.update(partial(run, steps=steps)) == expected
        names = index.update(lambda contents: [name for name, _ in contents.entries()])
        assert names == sorted(PREFIX + sort_key_part(key) for key in model)


def test_it_finds_its_ends_in_any_index(make_index: MakeIndex) -> None:
    index = make_index()
    long = b"m" * SORT_KEY_BYTES
    values = [b"b", b"c", long + b"1", long + b"2"]
    assert index.update(lambda contents: run(contents, [dict.fromkeys(values, 1)]))[-1] == (
        "62",
        text_of(values[3]),
    )
    removals = [{b"b": -1}, {values[3]: -1}, {b"c": -1}, {values[2]: -1}]
    ends = index.update(lambda contents: run(contents, removals))
    assert ends[1:] == [
        ("63", text_of(values[3])),
        ("63", text_of(values[2])),
        (text_of(values[2]), text_of(values[2])),
        (None, None),
    ]


def test_long_values_that_begin_alike_are_ordered_by_their_whole_sort_key(make_index: MakeIndex) -> None:
    stem = b"x" * (SORT_KEY_BYTES + 1)
    values = [stem + bytes((number,)) for number in range(20)]
    index = make_index()
    index.update(lambda contents: run(contents, [dict.fromkeys(values, 1)]))
    for removed in range(19):
        smallest, largest = index.update(partial(run, steps=[{values[removed]: -1}]))[-1]
        assert (smallest, largest) == (text_of(values[removed + 1]), text_of(values[19]))


def test_another_multisets_values_are_not_its_own(make_index: MakeIndex) -> None:
    others: list[Change] = [
        (multiset_prefix(b"\x91\x01", 2) + b"a", b"\x92\x01\xa1a"),
        (multiset_prefix(b"\x91\x01", 4) + b"a", b"\x92\x01\xa1a"),
        (multiset_prefix(b"\x91\x02", 3) + b"a", b"\x92\x01\xa1a"),
    ]
    index = make_index()
    index.update(lambda contents: contents.apply(others))
    assert index.update(lambda contents: run(contents, [])) == [(None, None)]


def test_a_value_is_never_there_less_than_zero_times() -> None:
    index = MemoryIndex()
    index.update(lambda contents: run(contents, [{b"a": 1}]))
    with pytest.raises(ValueError, match="61 -1"):
        index.update(lambda contents: run(contents, [{b"a": -2}]))


def test_different_values_are_counted() -> None:
    def work(contents: IndexTransaction) -> list[int]:
        multiset = OrderedMultiset(contents, PREFIX, {b"a": "a", b"b": "b"})
        gained = []
        for step in ({b"a": 2}, {b"a": -1, b"b": 1}, {b"a": -1}):
            multiset.add(step, refusal)
            gained.append(multiset.gained)
        return gained

    assert MemoryIndex().update(work) == [1, 2, 1]


def test_names_fit_into_an_index() -> None:
    longest = multiset_prefix(b"g" * MAX_PART_BYTES, 65535) + sort_key_part(b"k" * 10_000)
    assert len(longest) <= LMDB_NAME_BYTES


@pytest.mark.parametrize("size", [10, 1000])
def test_what_a_batch_reads_does_not_depend_on_the_number_of_values(size: int) -> None:
    index = MemoryIndex()
    values = [b"%06d" % number for number in range(size)]
    index.update(lambda contents: run(contents, [dict.fromkeys(values, 1)]))

    counting = CountingIndex(index)
    counting.update(partial(run, steps=[{values[0]: -1, values[-1]: -1}, {values[5]: 1}]))
    assert counting.reads == 3 + 4  # those it touches; at each end, those of them that are met, and one more
