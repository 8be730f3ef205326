"""Stages whose rows are kept together give what they give alone, and keep the rows once."""

import json
import random

import pytest

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document, Outcome
from slackwater.engine.state.entry import sharer_part, tag_of
from slackwater.engine.state.inspection import count_contents
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner import cutting
from slackwater.sql.postgres import parse_catalog

TABLES = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, status text, total bigint, note text);
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, quantity bigint, text text);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
ALTER TABLE s.lines REPLICA IDENTITY FULL;
"""
VIEWS = {
    "lists": "SELECT TRANSACTIONALLY o.id, o.status, list(l.text ORDER BY l.id) AS texts"
    " FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id, o.status",
    "notes": "SELECT TRANSACTIONALLY o.id, o.note, list(l.id ORDER BY l.id) AS lines"
    " FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id, o.note",
    "totals": "SELECT TRANSACTIONALLY o.id, o.total, count(l.id) AS n, max(l.quantity) AS most"
    " FROM s.lines l RIGHT JOIN s.orders o ON o.id = l.order_id GROUP BY o.id, o.total",
    "sums": "SELECT TRANSACTIONALLY o.id, sum(l.quantity) AS quantity, min(l.text) AS first"
    " FROM s.orders o LEFT JOIN s.lines l ON l.order_id = o.id GROUP BY o.id",
    "pairs": "SELECT TRANSACTIONALLY l.id, o.status FROM s.orders o JOIN s.lines l ON l.order_id = o.id",
    "by_status": "SELECT TRANSACTIONALLY p.status, count(*) AS n FROM pairs p GROUP BY p.status",
}
ROUNDS = 12


def compiled(monkeypatch: pytest.MonkeyPatch, *, is_together: bool) -> EnginePlan:
    with monkeypatch.context() as patch:
        if not is_together:
            patch.setattr(cutting, "with_shared_rows", lambda plan, _: plan)
        views = [(f"{name}.sql", sql) for name, sql in VIEWS.items()]
        return cutting.compile_pipeline(views, parse_catalog({"schema.sql": TABLES}))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> tuple[EnginePlan, EnginePlan]:
    together, apart = (compiled(monkeypatch, is_together=each) for each in (True, False))
    assert sum(bool(stage.kept_by) for stage in together.stages) >= len(VIEWS) - 2
    assert not any(stage.kept_by for stage in apart.stages)
    return together, apart


class Source:
    """Random changes of both tables."""

    def __init__(self, seed: object) -> None:
        self._rng = random.Random(str(seed))
        self._rows: dict[tuple[str, int], bytes] = {}

    def batch(self, first_lsn: int) -> list[ChangeEvent]:
        """Some commits; a truncation now and then."""
        changes: list[ChangeEvent] = []
        for lsn in range(first_lsn, first_lsn + self._rng.randrange(1, 5)):
            if self._rng.random() < 0.08:
                changes.append(("s.lines", "t", lsn, None, None, 10 * lsn))
                self._rows = {name: row for name, row in self._rows.items() if name[0] != "s.lines"}
                continue
            changes += [self._change(lsn) for _ in range(self._rng.randrange(1, 8))]
        return changes

    def _change(self, lsn: int) -> ChangeEvent:
        rng = self._rng
        table, number = rng.choice(("s.orders", "s.lines")), rng.randrange(12)
        before = self._rows.pop((table, number), None)
        if before is not None and rng.random() < 0.25:
            return table, "d", lsn, before, None, 10 * lsn + 1
        row: dict[str, object] = {"id": number}
        if table == "s.orders":
            row |= {"status": rng.choice("ab"), "total": rng.randrange(3), "note": rng.choice("xy")}
        else:
            row |= {"order_id": rng.randrange(6), "quantity": rng.randrange(3), "text": rng.choice("pq")}
        after = self._rows[table, number] = json.dumps(row).encode()
        return table, "c" if before is None else "u", lsn, before, after, 10 * lsn + 1


def shown(
    batch: dict[int, list[Document]], *, every_commit: bool
) -> dict[int, list[tuple[int, bytes, bytes | None]]]:
    return {
        view: sorted((lsn if every_commit else 0, key, document) for lsn, key, document in documents)
        for view, documents in batch.items()
    }


@pytest.mark.full
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("every_commit", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_views_are_the_same_together_and_apart(
    plans: tuple[EnginePlan, EnginePlan], seed: int, every_commit: bool, buckets: int
) -> None:
    engines = [LocalEngine(plan, buckets=buckets, every_commit=every_commit) for plan in plans]
    source, documents = Source(seed), 0
    for number in range(ROUNDS):
        batch = source.batch(100 * number + 100)
        if number % 4 == 3:
            for engine in engines:
                engine.lose_index(1, 0)
        one, other = (shown(engine.run(batch), every_commit=every_commit) for engine in engines)
        assert one == other
        documents += sum(map(len, one.values()))
    assert documents > ROUNDS


@pytest.mark.full
def test_rows_are_kept_once(plans: tuple[EnginePlan, EnginePlan]) -> None:
    engines = [LocalEngine(plan, buckets=2) for plan in plans]
    source = Source("rows")
    batches = [source.batch(100 * number + 100) for number in range(ROUNDS)]
    kept = []
    for engine in engines:
        for batch in batches:
            engine.run(batch)
        rows: dict[int, int] = {}
        for (stage, _), index in engine.indexes.items():
            entries = index.update(lambda contents: list(contents.entries()))
            kinds = count_contents(entries, 1).kinds
            of_inputs = sum(amount.entries for kind, amount in kinds.items() if kind.startswith("input"))
            rows[stage] = rows.get(stage, 0) + of_inputs
            size = sum(len(name) + len(value) for name, value in entries)
            assert size == engine.state.head(stage, _).live_bytes, "what changes is counted once"
        kept.append(rows)
    together, apart = kept
    (keeper,) = {stage.kept_by for stage in plans[0].stages if stage.kept_by}
    sharers = [stage.number for stage in plans[0].stages if stage.kept_by]
    assert together[keeper] == apart[keeper] > 0
    assert [together[number] for number in sharers] == [0] * len(sharers)
    assert [apart[number] for number in sharers] == [apart[keeper]] * len(sharers)


def test_entries_of_stages_that_share_rows_are_told_apart() -> None:
    assert len({sharer_part(number) for number in range(64)}) == 64
    for number in (0, 1, 63):
        name = b"\x91\x05" + sharer_part(number) + b"\xf0"
        assert tag_of(name, 2) == b"\xf0"


def test_changes_that_another_stage_has_made_are_not_made_again() -> None:
    outcome = Outcome(1)
    with outcome.changed_once():
        outcome.change(b"row", None, b"1")
        outcome.partials.append((1, -1, b"", b""))
    with outcome.changed_once():
        outcome.change(b"row", None, b"1")
        outcome.change(b"own", None, b"22")
        assert outcome.partials == []

    assert outcome.changes == [(b"row", b"1"), (b"own", b"22")]
    assert outcome.growths == [4, 5]
