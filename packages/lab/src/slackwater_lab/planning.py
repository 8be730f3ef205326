"""A query's driver over a cut log and a Redis in memory, for tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slackwater.cdc.batch import BatchTask
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.protocol import AheadMarkers, CommittedTransaction, Marker, PublishedCut
from slackwater_lab.fakes.sources import STATUS, FailingStore, StillClock, WatchedLog


class World:
    """A cut log, a store, a clock, and a planner over them, for the tables ``s.a`` and ``s.b``.

    Args:
        published: Makes cuts from an LSN and the one before, and fields.
        scope: Of the query.
        options: Further ones of the source.
    """

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
        """The planner's."""
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
        """The position of a query at a cut."""
        return Position.at_cut(cut, ["inv.s.a", "inv.s.b"], self.scope, log_id)

    def next(
        self, start: Position | None = None, max_events: int | None = None, target: int | None = None
    ) -> Position:
        """Where the next batch ends."""
        return self.planner.next(start or self.beginning, max_events, target)

    def after(self, start: Position | None = None, max_events: int | None = None) -> list[int]:
        """The LSNs of the cuts that are known beyond a position."""
        start = start or self.beginning
        self.planner.next(start, max_events, None)
        known = self.feed.known_markers
        histories = known.histories.get("inv.s.a")
        return histories[0].lsns(start.lsn, known.covered_lsn) if histories else []

    def listed(self, start: Position, end: Position) -> list[int]:
        """The commits of a planned batch."""
        return [t.commit_lsn for t in self.planner.content(start, end).transactions]

    def tasks(self, start: Position, end: Position) -> list[BatchTask]:
        """The tasks of a planned batch."""
        return self.planner.tasks(start, end)
