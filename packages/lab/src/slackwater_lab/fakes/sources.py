"""Offers tests a source without database and connector, logs and stores that fail, and their planner."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from slackwater.cdc.batch import BatchTask
from slackwater.cuts import (
    CutLog,
    FrontierState,
    FrontierStatus,
    LoggedRecord,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
    StoredPosition,
    StoreFault,
    TopicUnavailableError,
)
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.protocol import (
    AheadMarkers,
    CommittedTransaction,
    Cut,
    KafkaSettings,
    LogRecord,
    Marker,
    PublishedCut,
    SystemClock,
)
from slackwater_lab.debezium.recording import Oracle
from slackwater_lab.debezium.records import (
    RUN_HEADER,
    partition_of,
    snapshot_notifications,
    transaction_values,
)
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore
from slackwater_lab.fakes.topics import make_cut
from slackwater_lab.topics import make_topics
from slackwater_sidecar.mirror import MARKERS_INTERVAL
from slackwater_sidecar.publisher import Publisher

SOURCE = "inv"
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="me")
OTHER = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="other")
_ANSWER_SECONDS = 300


class SyntheticSource:
    """Writes transactions to Kafka, knows which cuts are right, and reads those that were published.

    Rows go to its tables, ``schema.table``, in turn.
    """

    def __init__(
        self,
        bootstrap: str,
        redis_url: str,
        *,
        tables: tuple[str, ...] = ("shop.orders", "shop.lines"),
        partitions: int = 4,
    ) -> None:
        self.name = f"s{uuid.uuid4().hex[:10]}"
        self.bootstrap = bootstrap
        self.redis_url = redis_url
        self.tables = tables
        self.partitions = partitions
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.log = CutLog(self.name, KafkaSettings(bootstrap))
        self.store = RedisMarkerStore.connect(redis_url)
        self.oracle = Oracle()
        self.offsets: dict[tuple[str, int], int] = {}
        """End offsets of what was written, by topic without the source's name, and partition."""
        self.newest_lsn = 0
        self._lsn_base = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )

    def create(self, *topics: str, partitions: int | None = None) -> None:
        """Makes topics, named without the source's name."""
        count = self.partitions if partitions is None else partitions
        make_topics(self.bootstrap, [f"{self.name}.{topic}" for topic in topics], count)

    def create_all(self) -> None:
        """Makes all topics of the source; its notifications say that the tables were empty."""
        self.create_silent()
        self.announce_empty_tables()

    def create_silent(self) -> None:
        """Makes all topics of the source, whose connector has said nothing yet."""
        self.create(*self.tables)
        self.create("transaction", "notifications", partitions=1)

    def announce_empty_tables(self) -> None:
        """Writes the notifications of a first snapshot that has found no row."""
        for value in snapshot_notifications(dict.fromkeys(self.tables, 0)):
            self.put("notifications", 0, value)
        self.flush()

    def put(self, topic: str, partition: int, value: bytes | None, key: bytes = b"k") -> int:
        headers: list[tuple[str, str | bytes | None]] = [(RUN_HEADER, b"run1")]
        self._producer.produce(f"{self.name}.{topic}", value, key=key, partition=partition, headers=headers)
        spot = topic, partition
        self.offsets[spot] = self.offsets.get(spot, 0) + 1
        return self.offsets[spot] - 1

    def flush(self) -> None:
        self._producer.flush(_ANSWER_SECONDS)

    def commit(self, first: int, last: int) -> None:
        """Commits transactions with the xids in ``[first, last)``, of three rows each."""
        for xid in range(first, last):
            keys = [(self.tables[n % len(self.tables)], xid * 7 + n) for n in range(3)]
            lsn = self._lsn_base + xid * 100
            begin, rows, end = transaction_values(xid, lsn, [(t, {"id": k}) for t, k in keys], xid)
            self.newest_lsn = lsn + 3
            self.oracle.add_commit(xid, self.newest_lsn)
            self.put("transaction", 0, begin)
            for (table, value), (_, key) in zip(rows, keys, strict=True):
                number = partition_of(str(key).encode(), self.partitions)
                offset = self.put(table, number, value)
                self.oracle.add_row(self.newest_lsn, key, (f"{self.name}.{table}", number, offset))
            self.put("transaction", 0, end)
        self.flush()

    def start_lsns_over(self, next_xid: int) -> None:
        """Gives low LSNs to what is committed from now on, and judges it alone: a database restored."""
        self._lsn_base = 50 - next_xid * 100
        self.oracle = Oracle()

    def logged(self) -> list[Cut]:
        """Returns the cuts of the log that rise; the others are repeats of a second sidecar."""
        cuts: list[Cut] = []
        for published in self.log.tail(-1):
            if not cuts or published.cut.position > cuts[-1].position:
                cuts.append(published.cut)
        return cuts

    def in_redis(self) -> int:
        held = self.store.position(self.name)
        return held.position.lsn if held else 0

    def has_moved_beyond(self, lsn: int) -> bool:
        return self.in_redis() > lsn

    def is_published(self) -> bool:
        return self.in_redis() == self.newest_lsn

    def close(self) -> None:
        self.flush()
        self.log.close()
        self.store.close()


class StillClock(SystemClock):
    """Keeps a monotonic time that moves only when told to."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


class FailingStore(InMemoryMarkerStore):
    """Can be away, and slow to say so, or hold what somebody else wrote until it is cleared."""

    is_away = False
    answers_after = 0.0
    clock: StillClock | None = None
    questions = 0
    clears_after = 0.0
    refuses = False
    is_damaged = False
    forged_position: tuple[StoredPosition | None, ...] = ()
    forged_newest: tuple[PublishedCut | None, ...] = ()

    def position(self, source: str) -> StoredPosition | None:
        self._answer()
        return self.forged_position[0] if self.forged_position else super().position(source)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        self._answer()
        return self.forged_newest[0] if self.forged_newest else super().newest(source, timeline)

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        return not self.refuses and super().put_cut(cut, status)

    def clear(self, source: str, timeline: int) -> None:
        """Ends all damage; takes its time."""
        self.refuses = self.is_damaged = False
        self.forged_position = self.forged_newest = ()
        if self.clock is not None:
            self.clock.seconds += self.clears_after
        super().clear(source, timeline)

    def set_status(self, source: str, status: FrontierStatus) -> None:
        self._answer()
        super().set_status(source, status)

    def _answer(self) -> None:
        self.questions += 1
        if self.clock is not None:
            self.clock.seconds += self.answers_after
        if self.is_away:
            raise MarkerStoreUnavailableError("ask", "h:1", "refused")
        if self.is_damaged:
            raise MarkerStoreUnavailableError("ask", "h:1", "WRONGTYPE", StoreFault.CONTENT)


class WatchedLog(InMemoryCutLog):
    """Can be away, and counts the looks at its end."""

    is_away = False
    looks = 0

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        """Fails while it is away."""
        if self.is_away:
            raise TopicUnavailableError("append", "inv.slackwater.cuts", "refused")
        return super()._append(records)

    def records(
        self, after_offset: int, *, limit: int | None = None, with_cuts: bool = True
    ) -> list[LoggedRecord]:
        self.looks += 1
        return super().records(after_offset, limit=limit, with_cuts=with_cuts)


def cut(lsn: int, source: str = SOURCE) -> Cut:
    """Returns a cut of one transaction; the cut before it is at the LSN before."""
    return replace(
        make_cut(source, lsn, 5),
        previous_lsn=lsn - 1,
        event_count=lsn,
        transactions=(CommittedTransaction(700 + lsn, lsn, 5),),
        end_offsets={f"{source}.s.a": (lsn, 2 * lsn)},
        transaction_offset=lsn,
    )


def ahead(lsn: int, partition: int = 0) -> AheadMarkers:
    """Returns a marker of one partition."""
    return AheadMarkers(
        source=SOURCE,
        timeline=1,
        previous_lsn=lsn - 1,
        lsn=lsn,
        transactions=(),
        markers={("inv.s.a", partition): Marker(lsn, lsn)},
    )


def held(store: InMemoryMarkerStore) -> list[int]:
    """Returns the LSNs of the cuts of the first timeline in a store."""
    return [c.cut.lsn for c in store.cuts_after(SOURCE, 1, 0, limit=1000)]


def logged(log: InMemoryCutLog) -> list[int]:
    """Returns the LSNs of the cuts in a log."""
    return [c.cut.lsn for c in log.tail(-1)]


def shown(
    publisher: Publisher, store: InMemoryMarkerStore, clock: StillClock
) -> dict[tuple[str, int], Marker]:
    """Returns the markers in the store when they are due again."""
    clock.seconds += MARKERS_INTERVAL.total_seconds()
    publisher.show_markers()
    return store.markers(SOURCE)


class World:
    """A cut log, a store, a clock, and a planner over them, for the tables ``s.a`` and ``s.b``."""

    def __init__(self, published: Callable[..., PublishedCut], scope: Scope, **options: str) -> None:
        self._published = published
        required = {"source": "inv", "bootstrap": "b:9092", "tables": "s.a,s.b", "scope": scope.value}
        self.options = SourceOptions.parse(required | options)
        self.scope = scope
        self.log = WatchedLog("inv")
        self.store = FailingStore()
        self.clock = StillClock()
        self.beginning = Position(source="inv", timeline=self.options.timeline, scope=scope)
        self.planner = self.new_planner()

    def new_planner(self, *, has_store: bool = True) -> Planner:
        """The planner of a query that was started again."""
        store = self.store if has_store else None
        feed = Feed(self.options, store=store, log=self.log, monotonic=self.clock.monotonic)
        return Planner(self.options, feed)

    @property
    def feed(self) -> Feed:
        return self.planner.feed

    def cut(
        self,
        lsn: int,
        previous: int,
        a: Sequence[int] | None = None,
        b: Sequence[int] = (),
        *,
        to_store: bool = True,
        **fields: object,
    ) -> PublishedCut:
        """Appends a cut with the ends of the tables' partitions; without them ``s.a`` ends at the LSN."""
        ends = {"inv.s.a": tuple(a if a is not None else (lsn,))} | ({"inv.s.b": tuple(b)} if b else {})
        [appended] = self.log.append([self._published(lsn, previous, **{"end_offsets": ends, **fields}).cut])
        if to_store:
            self.to_store(appended)
        return appended

    def ahead(
        self,
        lsn: int,
        previous: int,
        markers: Mapping[tuple[str, int], tuple[int, int]],
        *,
        timeline: int = 1,
    ) -> None:
        """Appends markers ahead of the frontier, by the last letter of the table and partition.

        Redis does not report them; a second later the log is read all the same.
        """
        record = AheadMarkers(
            source="inv",
            timeline=timeline,
            previous_lsn=previous,
            lsn=lsn,
            transactions=tuple(CommittedTransaction(x, x, x) for x in range(previous + 1, lsn + 1)),
            markers={(f"inv.s.{table}", n): Marker(*m) for (table, n), m in markers.items()},
        )
        self.log.append_records([record])
        self.clock.seconds += 1

    def forge(self, lsn: int, previous: int, *, log: int, **fields: object) -> None:
        """Makes the store say what no sidecar published."""
        self.store.clear("inv", 9)
        self.to_store(replace(self._published(lsn, previous, **fields), log_offset=log))

    def to_store(self, cut: PublishedCut) -> None:
        """Publishes a cut in Redis alone."""
        self.store.put_cut(cut, STATUS)

    def at(self, cut: PublishedCut, log_id: str = "") -> Position:
        return Position.at_cut(cut, ["inv.s.a", "inv.s.b"], self.scope, log_id)

    def next(
        self, start: Position | None = None, max_events: int | None = None, target: int | None = None
    ) -> Position:
        return self.planner.next(start or self.beginning, max_events, target)

    def after(self, start: Position | None = None, max_events: int | None = None) -> list[int]:
        """The LSNs of the cuts that are known beyond a position."""
        start = start or self.beginning
        self.planner.next(start, max_events, None)
        known = self.feed.known_markers
        histories = known.histories.get("inv.s.a")
        return histories[0].lsns(start.lsn, known.covered_lsn) if histories else []

    def listed(self, start: Position, end: Position) -> list[int]:
        return [t.commit_lsn for t in self.planner.content(start, end).transactions]

    def tasks(self, start: Position, end: Position) -> list[BatchTask]:
        return self.planner.tasks(start, end)
