"""A pipeline that begins with the rows of another one's state has what it would have from the beginning."""

import json
import random
from collections.abc import Sequence
from threading import Lock

import pytest

from slackwater.engine import copied_state
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.copied_state import (
    CopiedState,
    CopyTask,
    copy_state,
    copy_tasks,
    pack_rows,
    plan_copies,
    plan_copy,
)
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.engine.settings import StageSettings
from slackwater.engine.state import log, manifest
from slackwater.engine.state.inspection import find_state, kept_manifests
from slackwater.engine.state.manifest import (
    KEPT_STATES,
    SEGMENTS,
    SegmentReader,
    StateKeeper,
    segment_path,
)
from slackwater.engine.state.store import MemoryStore
from slackwater.protocol import ConfigError, StateError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer bigint, status text, total numeric(12,2), note text);
CREATE TABLE s.lines (
    id bigint PRIMARY KEY, order_id bigint, quantity bigint, price double precision, tags text[]
);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
OLD = {
    "orders_with_lines": "SELECT TRANSACTIONALLY o.id, o.customer, o.status, o.total, o.note,"
    " list({'id': l.id, 'quantity': l.quantity, 'price': l.price, 'tags': l.tags} ORDER BY l.id) AS lines"
    " FROM s.orders o FULL JOIN s.lines l ON l.order_id = o.id"
    " GROUP BY o.id, o.customer, o.status, o.total, o.note",
}
NEW = {
    "joined": {
        "lines_of_orders": "SELECT TRANSACTIONALLY l.id, o.status, l.quantity * 2 AS twice, l.price, l.tags"
        " FROM s.lines l JOIN s.orders o ON o.id = l.order_id WHERE o.status <> 'b'",
    },
    "outer": {
        "all_orders": "SELECT TRANSACTIONALLY o.id, o.note, count(l.id) AS n, max(l.quantity) AS most,"
        " min(l.price) AS least FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id"
        " GROUP BY o.id, o.note",
        "lone_lines": "SELECT TRANSACTIONALLY l.id, o.id AS of_order FROM s.orders o"
        " RIGHT JOIN s.lines l ON l.order_id = o.id",
    },
    "added up": {
        "by_customer": "SELECT TRANSACTIONALLY o.customer, sum(o.total) AS total, count(*) AS n,"
        " count(DISTINCT o.status) AS statuses FROM s.orders o GROUP BY o.customer",
        "by_total": "SELECT TRANSACTIONALLY c.n, count(*) AS customers, max(c.total) AS largest"
        " FROM by_customer c GROUP BY c.n",
        "everything": "SELECT TRANSACTIONALLY count(*) AS n, sum(l.quantity) AS quantity,"
        " min(l.quantity) AS least FROM s.lines l",
    },
    "shared": {
        "texts": "SELECT TRANSACTIONALLY o.id, o.note, list(l.id ORDER BY l.id) AS lines"
        " FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id, o.note",
        "sums": "SELECT TRANSACTIONALLY o.id, o.total, sum(l.quantity) AS quantity"
        " FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id, o.total",
        "ranked": "SELECT TRANSACTIONALLY o.id, o.customer, row_number() OVER (PARTITION BY o.customer"
        " ORDER BY o.total DESC, o.id) AS place FROM s.orders o",
    },
    "the same": OLD,
    "of groups": {
        "by_status": "SELECT TRANSACTIONALLY o.status, count(*) AS n, min(o.total) AS least,"
        " max(o.customer) AS last FROM s.orders o GROUP BY o.status",
        "by_quantity": "SELECT TRANSACTIONALLY l.quantity, count(*) AS n FROM s.lines l GROUP BY l.quantity",
    },
    "of stages behind others": {
        "lines_of_customers": "SELECT TRANSACTIONALLY o.customer, sum(l.quantity) AS quantity, count(*) AS n"
        " FROM s.lines l JOIN s.orders o ON o.id = l.order_id GROUP BY o.customer",
    },
}
OTHER_OLD = {
    "of groups": NEW["added up"],
    "of stages behind others": {
        "by_customer": "SELECT TRANSACTIONALLY o.customer, count(*) AS n FROM s.orders o GROUP BY o.customer",
        "lines_and_counts": "SELECT TRANSACTIONALLY l.id, l.quantity, c.n FROM s.lines l"
        " JOIN by_customer c ON c.customer = l.order_id",
    },
}
BUCKETS = 3


def compiled(views: dict[str, str], tables: str = TABLES) -> EnginePlan:
    texts = [(f"{name}.sql", sql) for name, sql in views.items()]
    return compile_pipeline(texts, parse_catalog({"schema.sql": tables}))


class Source:
    """Random changes of both tables: NULL in keys, rows that move, values that are left out, truncations."""

    def __init__(self, seed: object) -> None:
        self._rng = random.Random(str(seed))
        self._rows: dict[tuple[str, int], bytes] = {}

    def batch(self, first_lsn: int) -> list[ChangeEvent]:
        changes: list[ChangeEvent] = []
        for lsn in range(first_lsn, first_lsn + self._rng.randrange(1, 5)):
            if self._rng.random() < 0.05:
                changes.append(("s.lines", "t", lsn, None, None, 10 * lsn))
                self._rows = {name: row for name, row in self._rows.items() if name[0] != "s.lines"}
                continue
            changes += [self._change(lsn) for _ in range(self._rng.randrange(1, 12))]
        return changes

    def _change(self, lsn: int) -> ChangeEvent:
        rng = self._rng
        table, number = rng.choice(("s.orders", "s.lines")), rng.randrange(20)
        before = self._rows.pop((table, number), None)
        if before is not None and rng.random() < 0.25:
            return table, "d", lsn, before, None, 10 * lsn + 1
        row: dict[str, object] = {"id": number}
        if table == "s.orders":
            row |= {"customer": rng.choice([None, 1, 2]), "status": rng.choice([None, "a", "b"])}
            row |= {"total": f"{rng.randrange(500)}.25", "note": rng.choice(["x", "y" * 300])}
        else:
            row |= {"order_id": rng.choice([None, *range(8)]), "quantity": rng.randrange(4)}
            row |= {
                "price": rng.choice([None, 1.5, "NaN", "Infinity"]),
                "tags": rng.choice([None, [], ["p", None]]),
            }
        after = self._rows[table, number] = json.dumps(row).encode()
        if before is not None and table == "s.orders" and rng.random() < 0.2:
            note = json.loads(before)["note"]
            sent = json.dumps(row | {"note": "__debezium_unavailable_value"}).encode()
            self._rows[table, number] = json.dumps(row | {"note": note}).encode()
            return table, "u", lsn, before, sent, 10 * lsn + 1
        return table, "c" if before is None else "u", lsn, before, after, 10 * lsn + 1


def copied(
    old: LocalEngine, plan: EnginePlan, new: LocalEngine, *, every_commit: bool = False
) -> CopiedState:
    """Copies the newest state that another batch follows."""
    stages = {each.origin.stage for each in plan_copy(old.spec, new.spec)}
    settings = StageSettings(buckets=old.spec.buckets, every_commit=every_commit)
    found = copy_state(old.store, new.store, stages, fingerprint=state_fingerprint(plan, settings))
    assert found is not None
    return found


def begin(new: LocalEngine, old: LocalEngine, state: CopiedState, lsn: int) -> dict[int, list[Document]]:
    """Runs the first batch of a pipeline; returns its documents."""
    tasks = copy_tasks(plan_copy(old.spec, new.spec), state, lsn, task_bytes=500)
    payloads: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
    for task in reversed(tasks):  # in any order
        for stage, bucket, sequence, payload in pack_rows(task, new.spec, SegmentReader(new.store)):
            payloads.setdefault((stage, bucket), []).append((sequence, payload))
    return new.process(payloads)


def contents(engine: LocalEngine) -> dict[tuple[int, int], list[tuple[bytes, bytes]]]:
    kept = {
        place: index.update(lambda entries: list(entries.entries()))
        for place, index in engine.indexes.items()
    }
    sizes = {place: sum(len(name) + len(value) for name, value in entries) for place, entries in kept.items()}
    assert sizes == {place: engine.state.head(*place).live_bytes for place in kept}
    return kept


def shown(documents: Sequence[dict[int, list[Document]]]) -> dict[int, dict[bytes, bytes]]:
    """Returns what views show after all these batches."""
    views: dict[int, dict[bytes, bytes]] = {}
    for batch in documents:
        for view, of_view in batch.items():
            for _, key, document in of_view:
                if document is None:
                    del views[view][key]
                else:
                    views.setdefault(view, {})[key] = document
    return views


def in_any_order(batch: dict[int, list[Document]]) -> dict[int, list[Document]]:
    return {view: sorted(documents, key=repr) for view, documents in batch.items()}


@pytest.mark.full
@pytest.mark.parametrize(("every_commit", "buckets"), [(False, 5), (True, 1)])
@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_it_has_what_it_would_have_from_the_beginning(
    name: str, seed: int, every_commit: bool, buckets: int
) -> None:
    plans = compiled(OTHER_OLD.get(name, OLD)), compiled(NEW[name])
    old = LocalEngine(plans[0], buckets=BUCKETS, every_commit=not every_commit)
    new, whole = (LocalEngine(plans[1], buckets=buckets, every_commit=every_commit) for _ in range(2))
    source, first = Source(f"{name} {seed}"), []
    for number in range(8):
        batch = source.batch(100 * number + 100)
        old.run(batch)
        first.append(whole.run(batch))
    old.run([])
    state = copied(old, plans[0], new, every_commit=not every_commit)
    begun = begin(new, old, state, lsn=900)
    assert shown([begun]) == {view: found for view, found in shown(first).items() if found}
    assert {lsn for documents in begun.values() for lsn, _, _ in documents} <= {900}
    assert contents(new) == contents(whole)
    for number in range(9, 13):
        batch = source.batch(100 * number + 100)
        assert in_any_order(new.run(batch)) == in_any_order(whole.run(batch))
    assert contents(new) == contents(whole)


def changed_tables(narrow: bool) -> str:
    """Returns the tables before or after their columns were widened and others were added."""
    before = TABLES.replace("quantity bigint", "quantity int").replace("status text", "status varchar(9)")
    added = (
        "ALTER TABLE s.orders ADD COLUMN extra text, ADD COLUMN state varchar(9) NOT NULL DEFAULT 'new';"
        "ALTER TABLE s.lines ADD COLUMN weight bigint DEFAULT 7;"
    )
    return before if narrow else TABLES.replace("numeric(12,2)", "numeric(14,2)") + added


@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_wider_types_and_added_columns_are_carried_over(seed: int, every_commit: bool) -> None:
    views = {
        "sums": "SELECT TRANSACTIONALLY o.state, o.extra, count(*) AS n, sum(o.total) AS total,"
        " max(o.status) AS last FROM s.orders o GROUP BY o.state, o.extra",
        "lines": "SELECT TRANSACTIONALLY l.id, l.quantity, l.weight, o.extra"
        " FROM s.lines l LEFT JOIN s.orders o ON o.id = l.order_id",
    }
    plans = compiled(OLD, changed_tables(narrow=True)), compiled(views, changed_tables(narrow=False))
    old = LocalEngine(plans[0], buckets=BUCKETS)
    new, whole = (LocalEngine(plans[1], buckets=2, every_commit=every_commit) for _ in range(2))
    source, first = Source(f"wider {seed}"), []
    for number in range(8):
        batch = source.batch(100 * number + 100)
        old.run(batch)
        first.append(whole.run(batch))
    old.run([])
    begun = begin(new, old, copied(old, plans[0], new), lsn=900)
    assert shown([begun]) == {view: found for view, found in shown(first).items() if found}
    assert contents(new) == contents(whole)
    for number in range(9, 13):
        batch = [with_added(change) for change in source.batch(100 * number + 100)]
        assert in_any_order(new.run(batch)) == in_any_order(whole.run(batch))
    assert contents(new) == contents(whole)


def with_added(change: ChangeEvent) -> ChangeEvent:
    """Returns a change as it is after the columns were added."""
    table, op, lsn, before, after, *more = change
    values = {"extra": "e", "state": "old"} if table == "s.orders" else {"weight": 2**40, "quantity": 2**40}
    image = None if after is None else json.dumps(json.loads(after) | values).encode()
    return (table, op, lsn, before, image, *more)


def test_a_state_without_rows_gives_the_group_without_a_key() -> None:
    plans = compiled(OLD), compiled(NEW["added up"])
    old, new, whole = LocalEngine(plans[0]), LocalEngine(plans[1]), LocalEngine(plans[1])
    row = json.dumps({"id": 1, "order_id": 1, "quantity": 1, "price": None, "tags": None}).encode()
    for change in (("s.lines", "c", 100, None, row), ("s.lines", "d", 200, row, None)):
        old.run([change])
        whole.run([change])
    old.run([])
    begun = begin(new, old, copied(old, plans[0], new), lsn=200)
    assert [len(begun[view]) for view in sorted(begun)] == [0, 0, 1]
    assert contents(new) == contents(whole)


TOTALS = "SELECT TRANSACTIONALLY o.id, o.status, o.total FROM s.orders o"
BY_ORDER = (
    "SELECT TRANSACTIONALLY o.id, l.id AS line, l.quantity"
    " FROM s.lines l JOIN s.orders o ON o.id = l.order_id"
)


@pytest.mark.parametrize(
    ("old", "new", "tables", "lack"),
    [
        (TOTALS, BY_ORDER, TABLES, "table s.lines: no stage keeps its rows"),
        (TOTALS, TOTALS.replace("o.total", "o.note"), TABLES, "table s.orders: column note is not kept"),
        (
            TOTALS,
            TOTALS,
            TABLES.replace("numeric(12,2)", "numeric(14,3)"),
            "table s.orders: column total is kept as numeric(12,2), not as numeric(14,3)",
        ),
        (
            TOTALS,
            TOTALS,
            TABLES.replace("status text", "status text NOT NULL"),
            "table s.orders: column status could be NULL",
        ),
        (
            BY_ORDER,
            "SELECT TRANSACTIONALLY l.id, l.quantity FROM s.lines l",
            TABLES,
            "table s.lines: rows whose order_id is NULL are not kept",
        ),
        (
            BY_ORDER,
            "SELECT TRANSACTIONALLY l.id, o.id AS of_order FROM s.lines l"
            " LEFT JOIN s.orders o ON o.id = l.order_id",
            TABLES,
            "table s.lines: rows whose order_id is NULL are not kept",
        ),
        (
            TOTALS,
            TOTALS,
            TABLES.replace("id bigint PRIMARY KEY, customer bigint,", "id bigint, customer bigint, ").replace(
                "note text);", "note text, PRIMARY KEY (id, status));"
            ),
            "table s.orders: the primary key was id, column status could be NULL",
        ),
    ],
)
def test_what_is_kept_nowhere_is_refused_and_named(old: str, new: str, tables: str, lack: str) -> None:
    specs = [LocalEngine(compiled({"v": sql}, of)).spec for sql, of in ((old, TABLES), (new, tables))]
    with pytest.raises(ConfigError) as refused:
        plan_copy(*specs)
    assert str(refused.value) == lack


def test_all_that_is_kept_nowhere_is_named_at_once() -> None:
    new = {"a": TOTALS.replace("o.total", "o.note, o.customer"), "b": BY_ORDER}
    specs = [LocalEngine(compiled(views)).spec for views in ({"v": TOTALS}, new)]
    with pytest.raises(ConfigError) as refused:
        plan_copy(*specs)
    assert str(refused.value).split("; ") == [
        "table s.lines: no stage keeps its rows",
        "table s.orders: column customer is not kept, column note is not kept",
    ]


def test_rows_may_come_from_several_stages() -> None:
    pairs = (
        "SELECT TRANSACTIONALLY p.id, list({column} ORDER BY q.id) AS others"
        " FROM s.orders p JOIN s.orders q ON q.customer = p.customer GROUP BY p.id"
    )
    totals = "SELECT TRANSACTIONALLY o.id, o.total FROM s.orders o WHERE o.total > {least}"
    old = {"a": totals.format(least=1), "b": pairs.format(column="q.note")}
    new = {"a": totals.format(least=100), "b": pairs.format(column="upper(q.note)")}
    plans = compiled(old), compiled(new)
    engines = [LocalEngine(plans[number]) for number in (0, 1, 1)]
    source = Source(3)
    for number in range(8):
        batch = source.batch(100 * number + 100)
        for engine in (engines[0], engines[2]):
            engine.run(batch)
    engines[0].run([])
    begin(engines[1], engines[0], copied(engines[0], plans[0], engines[1]), 900)
    assert len(plan_copy(engines[0].spec, engines[1].spec)) == 2
    assert contents(engines[1]) == contents(engines[2])


def test_rows_of_several_pipelines_are_those_of_one_that_read_all() -> None:
    """Each has read the same commits; both keep orders, and only one keeps lines."""
    olds = compiled({"v": TOTALS}), compiled(OLD)
    plan = compiled({"v": TOTALS, **NEW["outer"]})
    engines = [LocalEngine(each, buckets=number) for number, each in enumerate((*olds, plan, plan), 2)]
    first, second, new, whole = engines
    source = Source(5)
    for number in range(8):
        batch = source.batch(100 * number + 100)
        for engine in (first, second, whole):
            engine.run(batch)
    first.run([])
    second.run([])
    tables, tasks = plan_copies([first.spec, second.spec], new.spec), list[CopyTask]()
    assert [len(each) for each in tables] == [1, 2]
    taken = [(each.stage, each.number) for of_old in tables for copy in of_old for each in copy.inputs]
    assert sorted(taken) == sorted((each.stage, each.number) for each in new.spec.inputs)
    for old, of_old, stages in zip((first, second), tables, olds, strict=True):
        stage_numbers = {each.origin.stage for each in of_old}
        fingerprint = state_fingerprint(stages, StageSettings(buckets=old.spec.buckets))
        state = copy_state(old.store, new.store, stage_numbers, fingerprint=fingerprint)
        assert state is not None
        tasks += copy_tasks(of_old, state, 900, 500, first=len(tasks))
    assert [task.number for task in tasks] == list(range(len(tasks)))
    payloads: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
    for task in tasks:
        for stage, bucket, sequence, payload in pack_rows(task, new.spec, SegmentReader(new.store)):
            payloads.setdefault((stage, bucket), []).append((sequence, payload))
    assert all(len({sequence for sequence, _ in each}) == len(each) for each in payloads.values())
    new.process(payloads)
    assert {place[0] for place in contents(new)} == {place[0] for place in contents(whole)}
    assert sorted(row for each in contents(new).values() for row in each) == sorted(
        row for each in contents(whole).values() for row in each
    )


def test_what_none_of_several_pipelines_keeps_is_named() -> None:
    specs = [LocalEngine(compiled(views)).spec for views in ({"v": TOTALS}, {"v": BY_ORDER}, OLD)]
    with pytest.raises(ConfigError) as refused:
        plan_copies(specs[:2], specs[2])
    assert str(refused.value) == (
        "table s.lines: column price is not kept, column tags is not kept, rows whose order_id is NULL are "
        "not kept; table s.orders: column customer is not kept, column note is not kept"
    )


@pytest.mark.parametrize("is_next_prepared", [False, True])
@pytest.mark.parametrize("every", [1, 4])
def test_each_state_that_is_listed_is_kept(
    every: int, monkeypatch: pytest.MonkeyPatch, *, is_next_prepared: bool
) -> None:
    """Whenever the run has removed files, and whether or not it has prepared its next batch."""
    monkeypatch.setattr(manifest, "_SWEEP_INTERVAL", every)
    keeper = StateKeeper(store := MemoryStore(), "stages")
    kept: dict[int, list[int]] = {}
    for number in range(3 * KEPT_STATES):
        blob = log.Blob("", 0, 100, 100, bytes([number]))
        write = log.LogWrite(1, 0, int(number > 0), (blob,), 100, bytes(100))
        keeper.adopt(keeper.prepare({"at": number}, [write]))
        if is_next_prepared:
            keeper.prepare({"at": number + 1}, [])
        listed = [each.position["at"] for _, each, _ in kept_manifests(store)]
        kept[number] = listed
        for each in listed:
            found = find_state(store, {"at": each}).state
            assert all(segment_path(name) in store.files for name in found.segments())
    newest = 3 * KEPT_STATES - 1 - (not is_next_prepared)
    assert kept[3 * KEPT_STATES - 1] == list(range(newest, newest - KEPT_STATES + 1, -1))


class TestWhileTheOtherGoesOn:
    """The state of one batch is copied, whatever the other pipeline does."""

    @pytest.fixture
    def plan(self) -> EnginePlan:
        return compiled(OLD)

    @pytest.fixture
    def old(self, plan: EnginePlan, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
        monkeypatch.setattr(log, "COMPACTION_SLACK_BYTES", 0)
        engine, self.source, self.lsn = LocalEngine(plan, buckets=BUCKETS), Source(1), 0
        self.go_on(engine, 12)
        return engine

    def go_on(self, engine: LocalEngine, batches: int) -> None:
        for _ in range(batches):
            self.lsn += 100
            engine.run(self.source.batch(self.lsn))

    def judged(self, plan: EnginePlan, old: LocalEngine, store: MemoryStore) -> LocalEngine:
        """Copies out of a store, and compares with a pipeline that has read what the state has."""
        new = LocalEngine(plan, buckets=BUCKETS)
        before = LocalEngine(plan, buckets=BUCKETS)
        old.store, kept = store, old.store
        state = copied(old, plan, new)
        old.store = kept
        begin(new, old, state, 1)
        source, lsn, found = Source(1), 0, contents(new)
        while contents(before) != found:
            lsn += 100
            assert lsn <= self.lsn, "no batch of the other pipeline has led to this state"
            before.run(source.batch(lsn))
        return new

    def test_files_that_vanish_make_it_take_a_newer_batch(
        self, plan: EnginePlan, old: LocalEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Logs lose their oldest blobs bit by bit, so states have files in common."""
        monkeypatch.setattr(log, "SMALL_BYTES", 0)
        monkeypatch.setattr(log, "MIN_STEP_BYTES", 1)
        monkeypatch.setattr(log, "COMPACTION_SLACK_BYTES", 30_000)
        self.go_on(old, 60)
        test, vanished, one_by_one, read = self, 0, Lock(), list[str]()

        class Vanishing(MemoryStore):
            """The other pipeline continues while its files are read, and removes what it needs no more."""

            def read(self, name: str) -> bytes | None:
                nonlocal vanished
                with one_by_one:
                    if name.startswith(SEGMENTS) and vanished < 2:
                        test.go_on(old, KEPT_STATES + 16)
                        vanished += name not in self.files
                    read.extend([name] if name in self.files else [])
                    return super().read(name)

        store = Vanishing()
        store.files = old.store.files
        self.judged(plan, old, store)
        assert vanished == 2
        copies = [name for name in read if name.startswith(SEGMENTS)]
        assert len(copies) > len(find_state(old.store).state.segments()), "several states were copied"
        assert len(copies) == len(set(copies)), "what was copied is not copied again"

    def test_a_file_that_is_missing_for_good_is_named(self, plan: EnginePlan, old: LocalEngine) -> None:
        name = max(find_state(old.store).state.segments())
        del old.store.files[segment_path(name)]
        with pytest.raises(StateError, match=segment_path(name)):
            copied(old, plan, LocalEngine(plan, buckets=BUCKETS))

    def test_a_damaged_file_is_noticed(self, plan: EnginePlan, old: LocalEngine) -> None:
        new = LocalEngine(plan, buckets=BUCKETS)
        blob = find_state(old.store).state.head(1, 0).blobs[-1]
        path, place = segment_path(blob.segment), blob.offset + blob.length // 2
        data = bytearray(old.store.files[path])
        data[place] ^= 1
        old.store.files[path] = bytes(data)
        state = copied(old, plan, new)
        with pytest.raises(StateError, match="copied state of another pipeline cannot be used"):
            begin(new, old, state, 1)
        assert new.state.batch_id == -1, "nothing has become true"

    def test_state_of_other_stages_is_refused(self, plan: EnginePlan, old: LocalEngine) -> None:
        with pytest.raises(StateError, match="belongs to other stages"):
            copied(old, compiled({"v": TOTALS}), LocalEngine(plan, buckets=BUCKETS))

    def test_it_ends_when_it_is_no_longer_wanted(self, plan: EnginePlan, old: LocalEngine) -> None:
        store, fingerprint = MemoryStore(), state_fingerprint(plan, StageSettings(buckets=BUCKETS))
        assert copy_state(old.store, store, {1}, fingerprint=fingerprint, is_wanted=lambda: False) is None
        assert store.files == {}

    def test_copies_are_removed_once_the_first_batch_is_true(
        self, plan: EnginePlan, old: LocalEngine
    ) -> None:
        new = LocalEngine(plan, buckets=BUCKETS)
        copied(old, plan, new)  # by a run that was killed
        self.go_on(old, 2)
        state = copied(old, plan, new)
        begin(new, old, state, self.lsn)
        segments = {name for name in new.store.files if name.startswith(SEGMENTS)}
        assert segments == {segment_path(name) for name in new.state.segments()}


def test_many_rows_are_packed_in_several_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_state, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(copied_state, "_ROWS_OF_PAYLOADS", 4)
    test_it_has_what_it_would_have_from_the_beginning("outer", 0, every_commit=False, buckets=1)


def test_attempts_of_a_task_give_the_same() -> None:
    plan = compiled(OLD)
    old, new = LocalEngine(plan), LocalEngine(plan, buckets=2)
    source = Source(2)
    for number in range(8):
        old.run(source.batch(100 * number + 100))
    tasks = copy_tasks(plan_copy(old.spec, new.spec), copied(old, plan, new), 800, task_bytes=500)
    assert len(tasks) > 1
    attempts = [
        [row for task in order for row in pack_rows(task, new.spec, SegmentReader(new.store))]
        for order in (tasks, tuple(reversed(tasks)))
    ]
    assert sorted(attempts[0]) == sorted(attempts[1])
    assert len({row[:3] for row in attempts[0]}) == len(attempts[0])
