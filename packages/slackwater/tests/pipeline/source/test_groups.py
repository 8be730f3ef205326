"""What random histories, stalls and batches deliver in both scopes, judged by who knows every row."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.cdc.batch import BatchTask, OffsetSpan
from slackwater.cdc.changes import BatchChanges
from slackwater.engine.settings import Scope
from slackwater.pipeline.source import markers, planner
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position, TopicPosition
from slackwater.pipeline.source.segments import Segments
from slackwater.protocol import AheadMarkers, CommittedTransaction, Cut, Marker
from slackwater_lab.debezium.records import change_value, snapshot_value
from slackwater_lab.fakes.memory import InMemoryCutLog

TABLES = ("s.a", "s.b")
GROUPS = 3
OPTIONS = {"source": "inv", "bootstrap": "b:9092", "tables": ",".join(TABLES)}
Place = tuple[str, int]
"""Table and partition."""
PLACES = tuple((table, number) for table in TABLES for number in range(GROUPS))


@dataclass(frozen=True)
class Row:
    """A change, as often as it may be in its partition; or a row of an incremental snapshot."""

    commit_lsn: int
    """0 for a row of a snapshot."""
    lsn: int
    place: Place


@dataclass
class Kafka:
    """Partitions and their records; transaction number n commits at LSN 100 (n + 1)."""

    records: dict[Place, list[Row]] = field(default_factory=lambda: {place: [] for place in PLACES})
    rows: list[list[Row]] = field(default_factory=list)
    """Of each transaction."""
    snapshot_rows: list[Row] = field(default_factory=list)

    def commit(self, places: list[Place]) -> None:
        commit_lsn = 100 * (len(self.rows) + 1)
        rows = [Row(commit_lsn, commit_lsn - 50 + n, place) for n, place in enumerate(places)]
        self.rows.append(rows)
        for row in rows:
            self.records[row.place].append(row)

    def repeat(self, transaction: int) -> None:
        """The connector starts again and writes a transaction once more, behind all the others."""
        for row in self.rows[transaction]:
            self.records[row.place].append(row)

    def snapshot(self, place: Place) -> None:
        """A row of an incremental snapshot."""
        self.snapshot_rows.append(Row(0, 10**6 + len(self.snapshot_rows), place))
        self.records[place].append(self.snapshot_rows[-1])

    def table(self, after_lsn: int, up_to_lsn: int) -> tuple[CommittedTransaction, ...]:
        lsns = (rows[0].commit_lsn for rows in self.rows if rows)
        return tuple(
            CommittedTransaction(lsn // 100, lsn, 1000 + lsn) for lsn in lsns if after_lsn < lsn <= up_to_lsn
        )


class Sidecar:
    """Reads each partition as far as it is let, and appends what follows to the log."""

    def __init__(self, kafka: Kafka, log: InMemoryCutLog) -> None:
        self._kafka, self._log = kafka, log
        self._read = dict.fromkeys(PLACES, 0)
        self._shown = dict.fromkeys(PLACES, 0)
        self._lsn = self._ahead_lsn = 0
        self._repeated: set[int] = set()
        self._untold_repeated: frozenset[int] = frozenset()
        self._has_untold_rows = False

    def read(self, place: Place, count: int) -> None:
        records = self._kafka.records[place]
        before, after = self._read[place], min(len(records), self._read[place] + count)
        seen = set(records[:before])
        for row in records[before:after]:
            if row in seen:
                self._repeated.add(row.commit_lsn)
            seen.add(row)
        self._read[place] = after

    def publish(self) -> None:
        lsn = self._frontier()
        if lsn == self._lsn and self._has_hidden_snapshot_rows(lsn):
            lsn += 1
        if lsn > self._lsn:
            self._append(self._cut(lsn))
            self._lsn = self._ahead_lsn = lsn
        elif markers := self._markers_ahead():
            self._log.append_records([self._ahead(markers)])

    def _append(self, cut: Cut) -> None:
        """What another sidecar has written is not written again; what it may not have seen follows later."""
        self._untold_repeated |= cut.repeated
        self._has_untold_rows |= cut.has_incremental_rows
        newest = self._log.newest()
        if newest is None or newest.cut.lsn < cut.lsn:
            told = replace(cut, repeated=self._untold_repeated, has_incremental_rows=self._has_untold_rows)
            self._log.append([told])
            self._untold_repeated, self._has_untold_rows = frozenset(), False

    def _frontier(self) -> int:
        visible = {row for place, n in self._read.items() for row in self._kafka.records[place][:n]}
        lsn = self._lsn
        for rows in self._kafka.rows[lsn // 100 :]:
            if not visible.issuperset(rows):
                break
            lsn = rows[0].commit_lsn
        return lsn

    def _has_hidden_snapshot_rows(self, lsn: int) -> bool:
        """Whether rows of snapshots would be shown by a cut that the newest one does not show."""
        return any(
            row.commit_lsn == 0
            for place in PLACES
            for row in self._kafka.records[place][self._shown[place] : self._end(place, lsn)]
        )

    def _cut(self, lsn: int) -> Cut:
        repeated = {commit_lsn for commit_lsn in self._repeated if commit_lsn <= lsn}
        self._repeated -= repeated
        has_incremental_rows = self._has_hidden_snapshot_rows(lsn)
        self._shown = {place: self._end(place, lsn) for place in PLACES}
        return Cut(
            source="inv",
            timeline=1,
            lsn=lsn,
            previous_lsn=self._lsn,
            commit_ts_ms=1000 + lsn,
            event_count=lsn,
            transactions=self._kafka.table(self._lsn, lsn),
            end_offsets={
                f"inv.{table}": tuple(self._end((table, n), lsn) for n in range(GROUPS)) for table in TABLES
            },
            transaction_offset=0,
            repeated=frozenset(repeated),
            has_incremental_rows=has_incremental_rows,
        )

    def _end(self, place: Place, lsn: int) -> int:
        """The first offset that belongs to a later commit, or where reading is."""
        records = self._kafka.records[place][: self._read[place]]
        return next((n for n, row in enumerate(records) if row.commit_lsn > lsn), len(records))

    def _markers_ahead(self) -> dict[tuple[str, int], Marker]:
        """All before the newest transaction seen in a partition is complete there."""
        markers = {}
        for (table, number), count in self._read.items():
            records = self._kafka.records[table, number][:count]
            newest = max((r.commit_lsn for r in records), default=0)
            end = self._end((table, number), newest - 100)
            hidden = records[self._shown[table, number] : end]
            if newest - 100 > self._lsn and all(row.commit_lsn for row in hidden):
                markers[f"inv.{table}", number] = Marker(newest - 100, end)
        return markers

    def _ahead(self, markers: dict[tuple[str, int], Marker]) -> AheadMarkers:
        previous, newest = self._ahead_lsn, max(m.safe_commit_lsn for m in markers.values())
        self._ahead_lsn = max(previous, newest)
        return AheadMarkers(
            source="inv",
            timeline=1,
            previous_lsn=previous,
            lsn=self._ahead_lsn,
            transactions=self._kafka.table(previous, self._ahead_lsn),
            markers=markers,
            repeated=frozenset(lsn for lsn in self._repeated if lsn <= self._ahead_lsn),
        )


class Reader:
    """A query that may be started again at any time, and checks every batch."""

    def __init__(self, kafka: Kafka, log: InMemoryCutLog, **options: str) -> None:
        self._kafka, self._log, self._options = kafka, log, options
        self.delivered: list[Row] = []
        self.snapshot_rows: list[Row] = []
        """With the LSN that each was given."""
        self._is_strict = options["scope"] == Scope.STRICT
        self.offset = Position(source="inv", timeline=1, scope=Scope(options["scope"])).to_json()
        self.start_again()

    def start_again(self) -> None:
        options = SourceOptions.parse(OPTIONS | self._options)
        feed = Feed(options, store=None, log=self._log, monotonic=iter(range(10**9)).__next__)
        self.planner = Planner(options, feed)
        self.offset = json.loads(json.dumps(self.offset))

    def batch(self, max_events: int | None = None) -> bool:
        """Takes a batch; whether there was one."""
        start = self.planner.offset(self.offset)
        end = self.planner.next(start, max_events, None)
        if end is start:
            return False
        self.offset = json.loads(json.dumps(end.to_json()))
        end = self.planner.offset(self.offset)
        self._check(start, end, list(self._rows(self.planner.tasks(start, end))))
        return True

    def everything(self) -> None:
        while self.batch():
            pass

    def _rows(self, tasks: list[BatchTask]) -> Iterator[Row]:
        for task in tasks:
            portions = [(span, self._messages(span)) for span in task.spans]
            changes = BatchChanges(task, "inv", TABLES).look_ahead(portions.copy)
            for span, messages in portions:
                for found, _, commit_lsn in changes.find(span, messages):
                    lsn = json.loads(found.key() or b"")["id"]
                    yield Row(commit_lsn, lsn, (span.topic.removeprefix("inv."), span.partition))

    def _messages(self, span: OffsetSpan) -> list[Message]:
        place = span.topic.removeprefix("inv."), span.partition
        records = self._kafka.records[place][span.from_offset : span.to_offset]
        assert len(records) == span.size
        return [message(row, span.from_offset + n) for n, row in enumerate(records)]

    def _check(self, start: Position, end: Position, rows: list[Row]) -> None:
        """Each group goes from its LSN to its next one: all of the commits in between, nothing else."""
        assert all(old <= new for old, new in zip(start.lsns, end.lsns, strict=False))
        if self._is_strict:
            assert end.lsns == (end.lsn,)
            before, after = ((each.lsn,) * GROUPS for each in (start, end))
        else:
            before, after = start.lsns or (0,) * GROUPS, end.lsns
        expected = [
            row
            for transaction in self._kafka.rows
            for row in transaction
            if before[row.place[1]] < row.commit_lsn <= after[row.place[1]]
        ]
        commits = [row for row in rows if row.lsn < 10**6]
        assert sorted(commits, key=repr) == sorted(expected, key=repr)
        self.delivered += commits
        for row in (row for row in rows if row.lsn >= 10**6):
            assert before[row.place[1]] < row.commit_lsn <= after[row.place[1]]
            self.snapshot_rows.append(row)


def message(row: Row, offset: int) -> Message:
    table, partition = row.place
    position = row.commit_lsn // 100, row.lsn
    value = change_value(table, "c", position=position, orders=(1, 1), after={"id": row.lsn})
    if not row.commit_lsn:
        value = snapshot_value(table, 0, {"id": row.lsn}, snapshot="incremental")
    return Message(
        topic=f"inv.{table}", partition=partition, offset=offset, key=b'{"id":%d}' % row.lsn, value=value
    )


class World:
    """Kafka, two sidecars and a reader; a step is the name of a method and its argument."""

    def __init__(self, parallelism: int, scope: Scope) -> None:
        self._kafka, log = Kafka(), InMemoryCutLog("inv")
        self._sidecars = [Sidecar(self._kafka, log), Sidecar(self._kafka, log)]
        self._reader = Reader(
            self._kafka, log, parallelism=str(parallelism), min_task_events="1", scope=scope.value
        )

    def commit(self, transactions: list[list[Place]]) -> None:
        for places in transactions:
            self._kafka.commit(places)

    def repeat(self, number: int) -> None:
        if self._kafka.rows:
            self._kafka.repeat(number % len(self._kafka.rows))

    def snapshot(self, place: Place) -> None:
        self._kafka.snapshot(place)

    def read(self, what: tuple[Place, int]) -> None:
        self._sidecars[what[1] % 2].read(*what)

    def read_all_but(self, stalled: frozenset[Place]) -> None:
        for sidecar in self._sidecars:
            for place in PLACES:
                if place not in stalled:
                    sidecar.read(place, 10**6)

    def publish(self, number: int) -> None:
        self._sidecars[number].publish()

    def batch(self, limit: int | None) -> None:
        self._reader.batch(limit)

    def start_again(self, _: None) -> None:
        self._reader.start_again()

    def check_the_end(self) -> None:
        """Nothing stalls any more: then every row has been delivered once."""
        self.read_all_but(frozenset())
        for number in (0, 1, 0, 1):
            self.publish(number)
        self._reader.everything()
        rows = (row for transaction in self._kafka.rows for row in transaction)
        assert sorted(self._reader.delivered, key=repr) == sorted(rows, key=repr)
        self._check_snapshot_rows()

    def _check_snapshot_rows(self) -> None:
        """Each was delivered once, between the changes before it and those behind it in its partition."""
        given = {row.lsn: row.commit_lsn for row in self._reader.snapshot_rows}
        assert len(given) == len(self._reader.snapshot_rows)
        for row in self._kafka.snapshot_rows:
            records = self._kafka.records[row.place]
            place, firsts = records.index(row), list(dict.fromkeys(r for r in records if r.commit_lsn))
            before = [r.commit_lsn for r in firsts if records.index(r) < place]
            behind = [r.commit_lsn for r in firsts if records.index(r) > place]
            assert max(before, default=0) <= given[row.lsn] <= min(behind, default=10**9)


Step = tuple[str, object]

TRANSACTION = st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)
STEP = st.one_of(
    st.tuples(st.just("commit"), st.lists(TRANSACTION, min_size=1, max_size=3)),
    st.tuples(st.just("repeat"), st.integers(0, 1000)),
    st.tuples(st.just("snapshot"), st.sampled_from(PLACES)),
    st.tuples(st.just("read"), st.tuples(st.sampled_from(PLACES), st.integers(1, 6))),
    st.tuples(st.just("read_all_but"), st.frozensets(st.sampled_from(PLACES), max_size=2)),
    st.tuples(st.just("publish"), st.integers(0, 1)),
    st.tuples(st.just("batch"), st.one_of(st.none(), st.integers(1, 12))),
    st.tuples(st.just("start_again"), st.none()),
)


def play(histories: list[list[Step]], scope: Scope, parallelism: int = 1) -> None:
    for steps in histories:
        world = World(parallelism, scope)
        for name, argument in steps:
            getattr(world, name)(argument)
        world.check_the_end()


@given(st.lists(STEP, max_size=60), st.integers(1, 3))
@example(
    [
        ("commit", [[("s.a", 1)]]),
        ("read_all_but", frozenset()),
        ("repeat", 0),
        ("publish", 1),
        ("commit", [[("s.a", 0)]]),
        ("read_all_but", frozenset([("s.a", 0)])),
        ("publish", 0),
    ],
    1,
)
@settings(max_examples=300, deadline=None)
def test_each_group_gets_every_row_once_in_the_order_of_commits(steps: list[Step], parallelism: int) -> None:
    for scope in Scope:
        play([steps], scope, parallelism)


def random_steps(seed: int) -> list[Step]:
    """A history with stalls, for faults that need one."""
    chance = random.Random(seed)
    stalled = frozenset(chance.sample(PLACES, 1))
    steps: list[Step] = []
    for number in range(25):
        held = stalled if number % 8 < 6 else frozenset[Place]()
        transactions = [chance.choices(PLACES, k=chance.randint(1, 4)) for _ in range(chance.randint(1, 4))]
        steps += [("commit", transactions), ("read_all_but", held)]
        steps += [("repeat", chance.randrange(1000))] if chance.random() < 0.3 else []
        steps += [("snapshot", chance.choice(PLACES))] if chance.random() < 0.3 else []
        steps += [("publish", 0), ("batch", chance.choice([None, 3, 9]))]
    return steps


def no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_group_span", lambda span, window, end: span)


def the_fastest_partition_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "min", max, raising=False)


def go_on_where_reading_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = markers.move_position

    def wrong(position: TopicPosition, history: markers.MarkerHistory, lsn: int) -> TopicPosition:
        right = moved(position, history, lsn)
        return TopicPosition(right.read_to, right.lsn, right.read_to)

    monkeypatch.setattr(markers, "move_position", wrong)


def repetitions_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Feed.content
    monkeypatch.setattr(Feed, "content", lambda *args: replace(content(*args), repeated=frozenset()))


def groups_stop_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segments, "exact_up_to_lsn", property(lambda _: 0, lambda *_: None), raising=False)


FAULTS = {
    no_windows: [Scope.AGGREGATE],
    the_fastest_partition_decides: [Scope.AGGREGATE],
    go_on_where_reading_ended: [Scope.AGGREGATE],
    repetitions_are_not_compared: [Scope.STRICT, Scope.AGGREGATE],
    groups_stop_anywhere: [Scope.AGGREGATE],
}
"""With the scopes whose promise depends on the rule."""


@pytest.mark.parametrize(("fault", "scope"), [(fault, scope) for fault in FAULTS for scope in FAULTS[fault]])
def test_the_oracle_complains_when_a_rule_is_taken_out(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], scope: Scope
) -> None:
    histories = [random_steps(seed) for seed in range(20)]
    play(histories, scope)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        play(histories, scope)
