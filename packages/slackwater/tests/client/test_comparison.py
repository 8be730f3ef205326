"""Two revisions of a view, compared as of one commit.

How the promise of one commit was seen to fail: ``compare_views`` reads the newest state of each output.
"""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.client import (
    ComparedView,
    Difference,
    ReadableStates,
    StateNotKeptError,
    TypedRows,
    ViewSnapshot,
    VisibleCommit,
    compare_documents,
    compare_views,
)
from slackwater.client.snapshot import Key
from slackwater.protocol import CommitPosition, ConfigError, from_epoch_ms

ROWS = st.dictionaries(st.integers(0, 9), st.integers(0, 3), max_size=8)


def document(**columns: Any) -> bytes:
    return json.dumps(columns).encode()


def documents(rows: dict[int, int]) -> list[bytes]:
    return [document(id=key, value=value) for key, value in rows.items()]


@given(ROWS, ROWS, st.randoms(use_true_random=False))
def test_each_key_is_counted_once_in_any_order(
    old: dict[int, int], new: dict[int, int], rng: random.Random
) -> None:
    here, there = documents(old), documents(new)
    found = compare_documents(here, there, ["id"])
    both = old.keys() & new.keys()
    assert found.equal == sum(old[key] == new[key] for key in both)
    assert found.different == sum(old[key] != new[key] for key in both)
    assert found.only_old == len(old.keys() - new.keys())
    assert found.only_new == len(new.keys() - old.keys())
    assert found.columns == ({"value": found.different} if found.different else {})
    assert found.is_equal == (old == new)
    rng.shuffle(here)
    rng.shuffle(there)
    assert compare_documents(here, there, ["id"]) == found


def test_without_a_key_whole_documents_are_counted_as_often_as_they_are_there() -> None:
    one, two = document(a=1), document(a=2)
    found = compare_documents([one, one, two], [one, two, two])
    assert (found.equal, found.different, found.only_old, found.only_new) == (2, 0, 1, 1)
    assert found.examples == [Difference(one, None), Difference(None, two)]


def test_documents_of_one_key_that_are_several_are_paired() -> None:
    old = [document(id=1, a=1), document(id=1, a=2), document(id=1, a=3)]
    new = [document(id=1, a=3), document(id=1, a=4)]
    found = compare_documents(old, new, ["id"])
    assert (found.equal, found.different, found.only_old, found.only_new) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"id": 1, "a": 1.50}', b'{"a":1.5,"id":1}'),
        (b'{"id": 1, "a": {"x": 1, "y": [1, 2]}}', b'{"id": 1, "a": {"y": [1, 2], "x": 1}}'),
    ],
)
def test_how_a_document_is_spelled_does_not_count(old: bytes, new: bytes) -> None:
    assert compare_documents([old], [new], ["id"]).is_equal


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"id": 1, "a": 1}', b'{"id": 1, "a": true}'),
        (b'{"id": 1, "a": 1}', b'{"id": 1, "a": "1"}'),
        (b'{"id": 1, "a": null}', b'{"id": 1}'),
        (b'{"id": 1, "a": [1, 2]}', b'{"id": 1, "a": [2, 1]}'),
        (b'{"id": 1, "a": 0.12345678901234567890}', b'{"id": 1, "a": 0.12345678901234567891}'),
    ],
)
def test_what_a_document_means_counts(old: bytes, new: bytes) -> None:
    found = compare_documents([old], [new], ["id"])
    assert (found.different, found.columns) == (1, {"a": 1})


def test_ten_examples_of_each_kind_are_shown() -> None:
    old = [document(id=number, value=0) for number in range(40)]
    new = [document(id=number, value=1) for number in range(20, 60)]
    found = compare_documents(old, new, ["id"])
    kinds = [(each.old is None, each.new is None) for each in found.examples]
    assert kinds == [(False, False)] * 10 + [(False, True)] * 10 + [(True, False)] * 10


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a JSON object"):
        compare_documents([b"\x00\x00\x00\x00\x01x"], [])
    with pytest.raises(ConfigError, match="lacks column 'number'"):
        compare_documents([document(id=1)], [], ["id", "number"])


class Kept:
    """An output that keeps the states of some commits; a batch may come before each reading."""

    def __init__(self, pipeline: str, states: dict[int, Sequence[bytes]]) -> None:
        self.pipeline = pipeline
        self._states = states
        self.coming: Iterator[dict[int, Sequence[bytes]]] = iter(())

    def views(self) -> Sequence[str]:
        return ["v"]

    def newest(self) -> VisibleCommit:
        return VisibleCommit("inv", CommitPosition(1, max(self._states)))

    def states(self, views: Sequence[str]) -> ReadableStates:
        ends = [CommitPosition(1, lsn) for lsn in sorted(self._states)]
        return ReadableStates(self.newest(), from_epoch_ms(0), ends)

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        self._states = next(self.coming, self._states)
        at = at or self.newest().position
        if at.lsn not in self._states:
            problem = "gone"
            raise StateNotKeptError(problem, "")
        return ViewSnapshot("inv", at, {"v": self._states[at.lsn]})

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        raise NotImplementedError

    def close(self) -> None: ...


def test_both_are_read_as_of_the_newest_commit_that_both_have() -> None:
    old = Kept("p", {100: documents({1: 1}), 200: documents({1: 2}), 300: documents({1: 3})})
    new = Kept("p.v2", {100: documents({1: 1}), 200: documents({1: 2})})
    at, found = compare_views(ComparedView(old, "v"), ComparedView(new, "v"), ["id"])
    assert (at, found.equal, found.is_equal) == (CommitPosition(1, 200), 1, True)


def test_a_state_that_has_gone_meanwhile_is_no_answer() -> None:
    old = Kept("p", {100: documents({1: 1})})
    new = Kept("p.v2", {100: documents({1: 1}), 200: documents({1: 2})})
    old.coming = iter([{200: documents({1: 2})}])
    at, found = compare_views(ComparedView(old, "v"), ComparedView(new, "v"), ["id"])
    assert (at.lsn, found.is_equal) == (200, True)


def test_who_is_behind_is_named() -> None:
    ahead, behind = Kept("p", {200: []}), Kept("p.v2", {100: []})
    with pytest.raises(StateNotKeptError, match=r"'p.v2' is behind"):
        compare_views(ComparedView(ahead, "v"), ComparedView(behind, "v"), timeout=timedelta(0))


def test_the_rows_of_change_events_are_compared() -> None:
    at = {1: b'{"op":"c","after":{"id":1,"a":1.50},"source":{"lsn":7}}', 2: b'{"op":"d","after":null}'}
    old, new = Kept("p", {100: list(at.values())}), Kept("p.v2", {100: [b'{"a": 1.5, "id": 1}']})
    _, found = compare_views(ComparedView(old, "v", is_change_event=True), ComparedView(new, "v"), ["id"])
    assert (found.equal, found.is_equal) == (1, True)
    broken = Kept("p.v3", {100: [b"{}"]})
    with pytest.raises(ConfigError, match="not a change event"):
        compare_views(ComparedView(broken, "v", is_change_event=True), ComparedView(new, "v"))
