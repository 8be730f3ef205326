"""Buckets that are evaluated together: what they read, and that nothing but the cost differs."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest

from slackwater.engine.bucket import BucketProcessor
from slackwater.engine.index import BucketRoute, Contents, IndexTransaction, TogetherContents
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex, MemoryTransaction
from slackwater.engine.payloads import Document, bucket_of
from slackwater.engine.settings import Scope
from slackwater.engine.state.entry import MAX_PART_BYTES, part
from slackwater.protocol import UnavailableError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

T = TypeVar("T")
BUCKETS = 3
TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, status text, total bigint);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
VIEWS = {
    "each": "SELECT TRANSACTIONALLY id, status, total FROM s.orders",
    "grouped": """
        SELECT TRANSACTIONALLY status, count(*) AS n, min(total) AS least, max(total) AS most
        FROM s.orders GROUP BY status
    """,
    "joined": """
        SELECT TRANSACTIONALLY o.id, count(p.id) AS n, max(p.total) AS most
        FROM s.orders o LEFT JOIN s.orders p ON p.id = o.id GROUP BY o.id
    """,
    "finer": """
        SELECT TRANSACTIONALLY o.status, o.total, count(*) AS n
        FROM s.orders o JOIN s.orders p ON p.status = o.status GROUP BY o.status, o.total
    """,
}


def compiled(view: str) -> EnginePlan:
    return compile_pipeline([(f"{view}.sql", VIEWS[view])], parse_catalog({"tables.sql": TABLES}))


def order(number: int, lsn: int, status: str = "open", total: int = 1) -> ChangeEvent:
    row = {"id": number, "status": status, "total": total}
    return "s.orders", "c", lsn, None, json.dumps(row).encode()


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Chooses whether small buckets are evaluated together."""

    def choose(is_together: bool) -> None:
        monkeypatch.setattr("slackwater.engine.bucket.MAX_TOGETHER_BYTES", 1 << 20 if is_together else -1)

    return choose


class Evaluations:
    """Counts the evaluations of a stage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: list[Contents] = []
        evaluate = BucketProcessor._evaluated  # noqa: SLF001 - which nothing else tells apart

        def counting(processor: BucketProcessor, events: Any, contents: Contents, keys: Any = None) -> Any:
            self.contents.append(contents)
            return evaluate(processor, events, contents, keys)

        monkeypatch.setattr(BucketProcessor, "_evaluated", counting)

    def taken(self) -> int:
        """The number of evaluations since the last time it was asked."""
        count = len(self.contents)
        self.contents.clear()
        return count


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Evaluations:
    return Evaluations(monkeypatch)


class TestContents:
    """Several buckets read like one."""

    KEYS = tuple(msgspec.msgpack.encode([number]) for number in range(40)) + tuple(
        msgspec.msgpack.encode([f"{number} " + "x" * MAX_PART_BYTES]) for number in range(8)
    )

    @pytest.fixture
    def entries(self) -> dict[bytes, bytes]:
        rng = random.Random("entries")
        names = [
            part(key) + bytes([1 + tag]) + bytes([row])
            for key in self.KEYS
            for tag in (0, 1)
            for row in (1, 2, 3)
        ]
        return {name: rng.randbytes(4) for name in names}

    @pytest.fixture
    def read(self, entries: dict[bytes, bytes]) -> TogetherContents:
        bucket = {part(key): bucket_of(key, BUCKETS) for key in self.KEYS}
        by_bucket = {
            number: MemoryTransaction(
                {name: value for name, value in entries.items() if bucket[name[:-2]] == number}, b"token"
            )
            for number in range(BUCKETS)
        }
        assert all(contents.contents for contents in by_bucket.values())
        return TogetherContents(by_bucket, BucketRoute(BUCKETS, self.KEYS))

    @pytest.fixture
    def one(self, entries: dict[bytes, bytes]) -> MemoryTransaction:
        return MemoryTransaction(entries, None)

    def test_entries_are_found_one_by_one_and_many_at_once(
        self, read: TogetherContents, entries: dict[bytes, bytes]
    ) -> None:
        assert {name: read.get(name) for name in entries} == entries
        absent = [part(key) + b"\x01\x09" for key in self.KEYS]
        assert read.get_many([*absent, *entries]) == entries
        assert [read.get(name) for name in absent] == [None] * len(absent)

    def test_groups_are_read_from_either_end_and_as_far_as_they_are_asked_for(
        self, read: TogetherContents, one: MemoryTransaction
    ) -> None:
        for key in self.KEYS:
            for prefix in (part(key), part(key) + b"\x01", part(key) + b"\x02"):
                assert read.group(prefix) == one.group(prefix)
                assert read.group(prefix, 2) == one.group(prefix, 2)
                assert list(read.scan(prefix)) == one.group(prefix)
                assert list(read.scan(prefix, descending=True)) == one.group(prefix)[::-1]

    def test_all_entries_are_in_one_order_and_have_no_token(
        self, read: TogetherContents, entries: dict[bytes, bytes]
    ) -> None:
        assert list(read.entries()) == sorted(entries.items())
        assert read.token is None


def changes_of(view: str) -> list[list[ChangeEvent]]:
    """Batches, with a truncation among them."""
    rng = random.Random(view)
    batches = [
        [
            order(12 * batch + each, 100 * batch + each, rng.choice("abc"), rng.randrange(9))
            for each in range(12)
        ]
        for batch in range(1, 6)
    ]
    batches.insert(4, [("s.orders", "t", 450, None, None)])
    return batches


def published(
    batch: dict[int, list[Document]], *, every_commit: bool
) -> list[tuple[int, bytes, bytes | None]]:
    """The documents of a batch; `latest` shows all of them at the batch's end."""
    return sorted((lsn if every_commit else 0, key, document) for lsn, key, document in batch[0])


def kept(engine: LocalEngine) -> dict[tuple[int, int], tuple[int, int, list[tuple[bytes, bytes]]]]:
    """What each bucket holds, and what its log says that it does."""
    return {
        name: (
            engine.state.head(*name).live_bytes,
            engine.state.head(*name).log_bytes,
            index.update(lambda contents: list(contents.entries())),
        )
        for name, index in engine.indexes.items()
    }


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_documents_and_state_are_the_same_together_and_one_by_one(
    together: Callable[[bool], None], view: str, every_commit: bool
) -> None:
    engines = [LocalEngine(compiled(view), buckets=BUCKETS, every_commit=every_commit) for _ in range(2)]
    shown = []
    for is_together, engine in zip((True, False), engines, strict=True):
        together(is_together)
        batches = [engine.run(batch) for batch in changes_of(view)]
        shown.append([published(batch, every_commit=every_commit) for batch in batches])
    assert shown[0] == shown[1]
    assert kept(engines[0]) == kept(engines[1])
    assert len({bucket for _, bucket in kept(engines[0])}) == BUCKETS


def test_small_buckets_are_one_evaluation_and_large_ones_one_each(
    monkeypatch: pytest.MonkeyPatch, evaluations: Evaluations
) -> None:
    engine = LocalEngine(compiled("each"), buckets=BUCKETS)
    packed = engine.payloads([order(number, 100) for number in range(30)])
    size = sum(len(payload) for of_bucket in packed.values() for _, payload in of_bucket)
    for limit, expected in ((size, 1), (size - 1, BUCKETS)):
        monkeypatch.setattr("slackwater.engine.bucket.MAX_TOGETHER_BYTES", limit)
        engine.process(packed)
        assert evaluations.taken() == expected


@pytest.mark.parametrize(("view", "expected"), [("joined", 1), ("finer", BUCKETS)])
def test_groups_with_the_key_of_their_stage_are_evaluated_together_others_are_not(
    evaluations: Evaluations, view: str, expected: int
) -> None:
    engine = LocalEngine(compiled(view), buckets=BUCKETS)
    engine.run([order(number, 100, status=f"{number}") for number in range(30)])
    assert evaluations.taken() == expected


def test_groups_that_turn_out_to_have_other_keys_are_evaluated_bucket_by_bucket(
    evaluations: Evaluations,
) -> None:
    plan = compiled("finer")
    (stage,) = plan.stages
    assert stage.accumulate is not None
    claimed = replace(stage, accumulate=replace(stage.accumulate, has_stage_key=True))
    batch = [order(number, 100, status=f"{number % 7}", total=number) for number in range(30)]
    shown = [
        LocalEngine(each, buckets=BUCKETS).run(batch) for each in (plan, replace(plan, stages=(claimed,)))
    ]
    assert evaluations.taken() == BUCKETS + 1 + BUCKETS
    assert sorted(shown[0][0]) == sorted(shown[1][0]) != []


def test_a_single_bucket_is_not_evaluated_through_others(evaluations: Evaluations) -> None:
    engine = LocalEngine(compiled("each"), buckets=1)
    engine.run([order(1, 100)])
    assert not isinstance(evaluations.contents[0], TogetherContents)


def test_a_truncation_is_told_to_each_bucket(evaluations: Evaluations) -> None:
    engine = LocalEngine(compiled("each"), buckets=BUCKETS)
    engine.run([order(number, 100) for number in range(30)])
    assert evaluations.taken() == 1
    engine.run([("s.orders", "t", 200, None, None)])
    assert evaluations.taken() == BUCKETS
    assert all(not entries for _, _, entries in kept(engine).values())


def test_keys_with_owners_are_evaluated_bucket_by_bucket(evaluations: Evaluations) -> None:
    engine = LocalEngine(compiled("each"), buckets=BUCKETS, scope=Scope.AGGREGATE)
    engine.run_partitions({0: [order(number, 100) for number in range(30)]})
    assert evaluations.taken() == BUCKETS


class Watched(MemoryIndex):
    """Counts its updates; another process may change it just before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0
        self.is_readable = True
        self.before_reading: Callable[[], object] = lambda: None

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        self.updates += 1
        self.is_readable = True
        return super().update(work)

    @contextmanager
    def snapshot(self) -> Iterator[Contents]:
        self.before_reading()
        if not self.is_readable:
            raise UnavailableError("not now")
        with super().snapshot() as contents:
            yield contents


def watched() -> tuple[LocalEngine, list[Watched]]:
    """An engine with rows in all buckets, evaluated together."""
    indexes: list[Watched] = []

    def make() -> Watched:
        indexes.append(Watched())
        return indexes[-1]

    engine = LocalEngine(compiled("each"), make, buckets=BUCKETS)
    engine.run([order(number, 100) for number in range(30)])
    for index in indexes:
        index.updates = 0
    return engine, indexes


def documents(found: dict[int, list[Document]]) -> set[int]:
    return {json.loads(key)["id"] for _, key, _ in found[0]}


def test_a_current_index_is_changed_once_and_not_before(evaluations: Evaluations) -> None:
    engine, indexes = watched()
    evaluations.taken()
    assert documents(engine.run([order(number, 200) for number in range(100, 130)])) == set(range(100, 130))
    assert (evaluations.taken(), [index.updates for index in indexes]) == (1, [1] * BUCKETS)


def test_an_index_that_was_lost_or_cannot_be_read_is_mended_first(evaluations: Evaluations) -> None:
    engine, indexes = watched()
    evaluations.taken()
    engine.lose_index(1, 0)
    indexes[1].is_readable = False
    unchanged = [order(number, 200) for number in range(30)]
    assert documents(engine.run(unchanged)) == set(), "the rows that were there are known"
    assert evaluations.taken() == 1


def test_an_index_that_another_process_takes_over_is_not_read_with_others(evaluations: Evaluations) -> None:
    engine, indexes = watched()
    evaluations.taken()

    def take_over() -> None:
        indexes[2].update(lambda contents: contents.clear())

    indexes[2].before_reading = take_over
    assert documents(engine.run([order(number, 200) for number in range(30)])) == set()
    assert evaluations.taken() == BUCKETS
