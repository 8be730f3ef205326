"""Ranges of ordered multisets against sorted lists, over both kinds of index."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.multiset import SORT_KEY_BYTES, multiset_prefix
from slackwater.engine.evaluate.ranks import RankedMultiset, height
from slackwater.engine.index import BucketIndex, IndexTransaction
from slackwater.engine.local import MemoryIndex
from slackwater.engine.payloads import Outcome
from slackwater_lab.fakes.buckets import CountingIndex

MakeIndex = Callable[[], BucketIndex]
Additions = dict[bytes, int]
PREFIX = multiset_prefix(b"\x91\x01", 3)
FOUND_WITHIN = 130
"""Entries that a change of one of 10,000 values may read: four levels, of whose ranges one in 16 is long."""


def refusal(text: str, count: int) -> Exception:
    return ValueError(f"{text} {count}")


def key_of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def run(
    contents: IndexTransaction, steps: list[Additions], sizes: list[int], changes: list[int] | None = None
) -> list[list[str]]:
    """Makes the steps as one batch; gives some of the values after each, given how many there are."""
    touched: dict[bytes, str] = {key: key.hex() for step in steps for key in step}
    multiset = RankedMultiset(contents, PREFIX, touched)
    found = []
    for step, size in zip(steps, sizes, strict=True):
        multiset.add(step, refusal)
        found.append([multiset.nth(index) for index in some_of(size)])
    outcome = Outcome(buckets=1)
    multiset.conclude(outcome)
    contents.apply(outcome.changes)
    if changes is not None:
        changes.append(len(outcome.changes))
    return found


def some_of(size: int) -> list[int]:
    return sorted({0, size // 3, size // 2, size - 1}) if size else []


stems = st.sampled_from([b"", b"a" * (SORT_KEY_BYTES - 1), b"a" * SORT_KEY_BYTES, b"b" * 600])
sort_keys = st.integers(0, 2000).map(key_of) | st.builds(
    lambda stem, end: stem + end, stems, st.binary(max_size=2)
)
batches = st.lists(
    st.lists(st.lists(sort_keys, max_size=60) | st.lists(sort_keys, max_size=3), max_size=3), max_size=4
)


@settings(deadline=None)
@given(batches=batches, data=st.data())
def test_the_nth_value_is_that_of_the_sorted_values_after_every_step(
    batches: list[list[list[bytes]]], data: st.DataObject
) -> None:
    index = MemoryIndex()
    model: Counter[bytes] = Counter()
    for batch in batches:
        steps: list[Additions] = []
        expected = []
        for added in batch:
            present = sorted(model.elements())
            removed = data.draw(st.sampled_from([[], present, present[::2], present[5:9]]))
            after = model + Counter(added)
            after.subtract(Counter(removed))
            steps.append({key: after[key] - model[key] for key in {*added, *removed}})
            model = +after
            there = sorted(model.elements())
            expected.append([there[number].hex() for number in some_of(len(there))])
        sizes = [sum(sum(step.values()) for step in steps[: number + 1]) for number in range(len(steps))]
        size_before = sum(model.values()) - (sizes[-1] if sizes else 0)
        assert (
            index.update(partial(run, steps=steps, sizes=[size_before + size for size in sizes])) == expected
        )
    assert entries(index) == entries(built(model))


def built(model: Counter[bytes]) -> MemoryIndex:
    """The same values, added one after the other."""
    index = MemoryIndex()
    for key in sorted(model, key=hash):
        index.update(partial(run, steps=[{key: model[key]}], sizes=[0]))
    return index


def entries(index: BucketIndex) -> list[tuple[bytes, bytes]]:
    return index.update(lambda contents: list(contents.entries()))


def test_nothing_is_left_of_a_multiset_without_values() -> None:
    index = MemoryIndex()
    keys = [key_of(number) for number in range(300)]
    index.update(partial(run, steps=[dict.fromkeys(keys, 1)], sizes=[300]))
    assert max(map(height, keys)) > 1
    index.update(partial(run, steps=[dict.fromkeys(keys, -1)], sizes=[0]))
    assert entries(index) == []


def test_it_is_found_in_any_index(make_index: MakeIndex) -> None:
    index = make_index()
    keys = [key_of(3 * number) for number in range(400)]
    index.update(partial(run, steps=[dict.fromkeys(keys, 2)], sizes=[800]))
    found = index.update(partial(run, steps=[{keys[0]: -2, key_of(1): 1}, {keys[-1]: -1}], sizes=[799, 798]))
    assert found == [
        [key.hex() for key in (key_of(1), keys[133], keys[200], keys[-1])],
        [key.hex() for key in (key_of(1), keys[133], keys[199 + 1], keys[-1])],
    ]


def test_there_are_no_more_values_than_were_added() -> None:
    with pytest.raises(IndexError):
        MemoryIndex().update(partial(run, steps=[{b"a": 2}], sizes=[4]))


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_change_reads_and_writes_a_few_entries_per_level(size: int) -> None:
    index = MemoryIndex()
    keys = [key_of(2 * number) for number in range(size)]
    index.update(partial(run, steps=[dict.fromkeys(keys, 1)], sizes=[size]))
    counting = CountingIndex(index)
    changes: list[int] = []
    for number in range(5):
        step = {key_of(2 * (number * size // 7) + 1): 1}
        counting.update(partial(run, steps=[step], sizes=[0], changes=changes))
    assert counting.reads / 5 < FOUND_WITHIN
    assert max(changes) <= 1 + 2 * max(map(height, keys))
