"""The first rows of a group against sorted lists, after every step of batches."""

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.engine.evaluate.multiset import SORT_KEY_BYTES, multiset_prefix
from slackwater.engine.evaluate.top import TopRows, without_common
from slackwater.engine.index import IndexTransaction
from slackwater.engine.local import MemoryIndex
from slackwater.engine.payloads import Outcome
from slackwater.sql.plan import Accumulator, AccumulatorKind, Ranks
from slackwater_lab.fakes.buckets import CountingIndex

PREFIX = multiset_prefix(b"\x91\x01", 0)

Rows = dict[bytes, tuple[bytes, int]]
"""By identity, the order and another column of each row."""
Step = dict[bytes, tuple[bytes, int] | None]


def refusal(text: str, count: int) -> Exception:
    return ValueError(f"{text} {count}")


def text_of(order: bytes, other: int) -> str:
    return f"[{len(order)},{other}]"


def ranked(rows: Rows, function: str) -> Iterator[tuple[int, int]]:
    """Yields rank and other column, as SQL defines them."""
    ordered = sorted((order, identity, other) for identity, (order, other) in rows.items())
    orders = [order for order, _, _ in ordered]
    for number, (order, _, other) in enumerate(ordered, 1):
        before = orders.index(order)
        rank = {"row_number": number, "rank": before + 1, "dense_rank": len({*orders[:before]}) + 1}
        yield rank[function], other


def shown(rows: Rows, top: Accumulator) -> tuple[str, ...]:
    ranks = top.ranks
    assert ranks is not None
    found = [each for each in ranked(rows, ranks.function) if ranks.first <= each[0] <= ranks.last]
    return tuple(f"[{rank if top.is_ranked else '_'},{other}]" for rank, other in found)


def run(
    contents: IndexTransaction, before: Rows, steps: list[Step], top: Accumulator
) -> list[tuple[str, ...]]:
    """Makes the steps as one batch; gives what is shown before it and after each step."""
    rows, additions, texts = dict(before), [], []
    touched: dict[bytes, str] = {}
    for step in steps:
        added: dict[bytes, int] = {}
        of_step: dict[bytes, str] = {}
        for identity, new in step.items():
            for row, more in ((rows.pop(identity, None), -1), (new, 1)):
                if row is None:
                    continue
                added[row[0] + identity] = added.get(row[0] + identity, 0) + more
                touched.setdefault(row[0] + identity, text_of(*row))
                if more > 0:
                    of_step[row[0] + identity] = text_of(*row)
            if new is not None:
                rows[identity] = new
        additions.append(added)
        texts.append(of_step)
    kept = TopRows(top, contents, PREFIX, touched)
    found = [kept.shown()]
    for added, of_step in zip(additions, texts, strict=True):
        kept.add(added, refusal, of_step)
        found.append(kept.shown())
    outcome = Outcome(buckets=1)
    kept.conclude(outcome)
    contents.apply(outcome.changes)
    if top.is_ranked:
        return found
    return [tuple(f"[_{text[text.index(',') :]}" for text in of_point) for of_point in found]


def top_of(
    function: str = "row_number", first: int = 1, last: int = 3, *, is_ranked: bool = False
) -> Accumulator:
    return Accumulator(
        AccumulatorKind.TOP, "x", multiset=0, ranks=Ranks(function, first, last), is_ranked=is_ranked
    )


tops = st.builds(
    top_of,
    st.sampled_from(["row_number", "rank", "dense_rank"]),
    st.integers(1, 3),
    st.integers(0, 4),
    is_ranked=st.booleans(),
)
orders = st.sampled_from([b"a", b"b", b"c", b"d" * (SORT_KEY_BYTES - 2), b"d" * SORT_KEY_BYTES, b"e" * 300])
identities = st.sampled_from([bytes([number, 0]) for number in range(8)])
steps = st.dictionaries(identities, st.none() | st.tuples(orders, st.integers(0, 2)), max_size=4)


@settings(deadline=None)
@given(batches=st.lists(st.lists(steps, max_size=4), max_size=5), top=tops)
def test_what_is_shown_has_the_ranks_of_the_sorted_rows_after_every_step(
    batches: list[list[Step]], top: Accumulator
) -> None:
    index, rows = MemoryIndex(), Rows()
    for batch in batches:
        before, expected = dict(rows), [shown(rows, top)]
        for step in batch:
            for identity, new in step.items():
                rows.pop(identity, None)
                rows |= {} if new is None else {identity: new}
            expected.append(shown(rows, top))
        assert index.update(partial(run, before=before, steps=batch, top=top)) == expected


@pytest.mark.parametrize("size", [20, 2000])
def test_a_change_reads_the_rows_that_it_changes_and_one_more_than_are_shown(size: int) -> None:
    index = CountingIndex(MemoryIndex())
    rows: Rows = {number.to_bytes(2, "big"): (b"a", number) for number in range(size)}
    index.update(partial(run, before={}, steps=[dict(rows)], top=top_of()))
    before = index.reads

    step: Step = {(0).to_bytes(2, "big"): None}
    found = index.update(partial(run, before=rows, steps=[step], top=top_of()))

    assert found == [("[_,0]", "[_,1]", "[_,2]"), ("[_,1]", "[_,2]", "[_,3]")]
    assert index.reads - before == 1 + 1 + 4  # the row that goes, once more in passing, and the others


def test_a_row_without_columns_has_a_rank() -> None:
    kept = TopRows(
        top_of("rank", is_ranked=True), MemoryIndex().update(lambda contents: contents), PREFIX, {b"a": "[1]"}
    )
    kept.add({b"a": 1}, refusal, {b"a": "[1]"})

    assert kept.shown() == ("[1]",)


def test_rows_that_are_shown_at_all_points_are_left_out() -> None:
    assert without_common([("a", "b"), ("b", "c"), None]) == [("a", "b"), ("b", "c"), None]
    assert without_common([("a", "b"), ("b", "c")]) == [("a",), ("c",)]
