"""A task of a batch: all stages at once or some of them, and repeated without a trace."""

import json
from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from slackwater.engine.index import BucketIndex
from slackwater.engine.local import ChangeEvent, LocalEngine, MemoryIndex
from slackwater.engine.payloads import Document, PackedPayload, decode_documents, documents_by_view
from slackwater.engine.settings import Scope, StageSettings
from slackwater.engine.state.manifest import NO_STATE, SegmentReader, State
from slackwater.engine.task import PipelineTask, TaskResult
from slackwater.protocol import ConfigError, InputError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, region text);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer_id bigint, amount bigint);
ALTER TABLE s.customers REPLICA IDENTITY FULL;
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
REGIONS = """
SELECT TRANSACTIONALLY c.region, count(*) AS n, sum(o.amount) AS amount
FROM s.customers c JOIN s.orders o ON o.customer_id = c.id GROUP BY c.region
"""
TOTAL = "SELECT TRANSACTIONALLY count(*) AS n FROM s.orders"
BUCKETS = 3
SETTINGS = StageSettings(buckets=BUCKETS)


@pytest.fixture(scope="module")
def regions() -> EnginePlan:
    views = [("regions.sql", REGIONS), ("total.sql", TOTAL)]
    return compile_pipeline(views, parse_catalog({"t.sql": TABLES}))


def customer(number: int, region: str) -> ChangeEvent:
    return "s.customers", "c", 100, None, json.dumps({"id": number, "region": region}).encode()


def order(number: int, customer_id: int, amount: int, lsn: int = 100) -> ChangeEvent:
    row = {"id": number, "customer_id": customer_id, "amount": amount}
    return "s.orders", "c", lsn, None, json.dumps(row).encode()


CHANGES = [
    *(customer(number, "x" if number % 2 else "y") for number in range(6)),
    *(order(number, number % 6, number) for number in range(20)),
]


def packed(engine: LocalEngine, changes: list[ChangeEvent]) -> list[PackedPayload]:
    payloads = engine.payloads(changes)
    return [(*name, *payload) for name, of_bucket in payloads.items() for payload in of_bucket]


class Worker:
    """Indexes of a process."""

    def __init__(self, plan: EnginePlan, engine: LocalEngine) -> None:
        self.task = PipelineTask(plan, SETTINGS)
        self.indexes: dict[tuple[int, int], BucketIndex] = {}
        self.asked: list[tuple[int, int]] = []
        self._source = SegmentReader(engine.store)

    def run(
        self, rows: list[PackedPayload], state: State = NO_STATE, stages: set[int] | None = None
    ) -> TaskResult:
        return self.task.process(rows, state, self._source, self._find, stages)

    def _find(self, stage: int, bucket: int) -> BucketIndex:
        self.asked.append((stage, bucket))
        return self.indexes.setdefault((stage, bucket), MemoryIndex())


@pytest.fixture
def engine(regions: EnginePlan) -> LocalEngine:
    return LocalEngine(regions, buckets=BUCKETS)


@pytest.fixture
def make_worker(regions: EnginePlan, engine: LocalEngine) -> Callable[[], Worker]:
    return lambda: Worker(regions, engine)


MakeWorker = Callable[[], Worker]


def sizes(result: TaskResult) -> list[tuple[int, int, int, list[int]]]:
    """What the writes are, apart from what is random in them."""
    return [
        (each.stage, each.bucket, each.live_bytes, [blob.size for blob in each.blobs])
        for each in result.writes
    ]


def test_all_stages_at_once_give_documents_and_what_each_bucket_writes(
    engine: LocalEngine, make_worker: MakeWorker, regions: EnginePlan
) -> None:
    worker = make_worker()
    result = worker.run(packed(engine, CHANGES))
    assert {stage for stage, *_ in result.rows} == {-1, -2}
    written = [(each.stage, each.bucket) for each in result.writes]
    assert written == sorted(written)
    assert {stage for stage, _ in written} == {stage.number for stage in regions.stages}
    asked = list(dict.fromkeys(worker.asked))
    assert [stage for stage, _ in asked] == sorted(stage for stage, _ in asked), "after all that sends to it"
    assert sorted(asked) == written


def shown(rows: Iterable[PackedPayload]) -> list[list[Document]]:
    """The documents of each view; how they are packed depends on the task."""
    by_view = documents_by_view(0, rows)
    return [sorted(chain.from_iterable(decode_documents(0, by_view[view]))) for view in sorted(by_view)]


def test_stage_by_stage_in_several_tasks_it_is_the_same(
    engine: LocalEngine, make_worker: MakeWorker, regions: EnginePlan
) -> None:
    rows = packed(engine, CHANGES)
    whole = make_worker().run(rows)
    writes = []
    for level in regions.levels:
        of_level = [row for row in rows if row[0] in level]
        rows = [row for row in rows if row[0] not in level]
        for bucket in range(BUCKETS):
            of_task = [row for row in of_level if row[1] == bucket]
            result = make_worker().run(of_task, stages=set(level))
            assert all(row[0] not in level for row in result.rows)
            rows += result.rows
            writes += sizes(result)
    assert shown(rows) == shown(whole.rows)
    assert sorted(writes) == sorted(sizes(whole))


def test_what_belongs_to_other_stages_is_handed_on_as_it_is(
    engine: LocalEngine, make_worker: MakeWorker
) -> None:
    rows = packed(engine, CHANGES)
    worker = make_worker()
    result = worker.run([*rows, (-1, 2, 0, b"documents")], stages=set())
    assert (result.rows, result.writes, worker.asked) == ([*rows, (-1, 2, 0, b"documents")], [], [])


def test_nothing_to_do_is_nothing(make_worker: MakeWorker) -> None:
    assert make_worker().run([]) == TaskResult([], [])


def test_a_repeated_task_gives_the_same_whatever_its_worker_has_seen(
    engine: LocalEngine, make_worker: MakeWorker
) -> None:
    engine.run(CHANGES)
    state = engine.state
    rows = packed(engine, [order(30, 1, 5, lsn=200), order(31, 2, 5, lsn=200)])
    lost = packed(engine, [order(40, 3, 9, lsn=200), order(41, 2, 7, lsn=200)])
    worker = make_worker()
    first = worker.run(rows, state)
    worker.run(lost, state)
    again = worker.run(rows, state)
    assert again.rows == first.rows == make_worker().run(rows, state).rows
    assert sizes(again) == sizes(first)
    assert {blob.token for each in again.writes for blob in each.blobs}.isdisjoint(
        blob.token for each in first.writes for blob in each.blobs
    )


def test_the_order_of_payloads_does_not_matter(engine: LocalEngine, make_worker: MakeWorker) -> None:
    rows = packed(engine, CHANGES)
    result, reversed_result = make_worker().run(rows), make_worker().run(rows[::-1])
    assert result.rows == reversed_result.rows
    assert sizes(result) == sizes(reversed_result)


def test_a_bucket_that_stays_as_it_is_writes_nothing(engine: LocalEngine, make_worker: MakeWorker) -> None:
    engine.run(CHANGES)
    assert make_worker().run(packed(engine, [order(3, 3, 3, lsn=200)]), engine.state) == TaskResult([], [])


def test_an_error_of_a_bucket_ends_the_task(engine: LocalEngine, make_worker: MakeWorker) -> None:
    gone = "s.orders", "d", 100, order(3, 3, 3)[4], None
    with pytest.raises(InputError, match=r"s\.orders"):
        make_worker().run(packed(engine, [gone, gone]))


def test_stages_that_cannot_run_like_this_are_refused_at_once(regions: EnginePlan) -> None:
    with pytest.raises(ConfigError):
        PipelineTask(regions, StageSettings(buckets=BUCKETS, scope=Scope.AGGREGATE))
