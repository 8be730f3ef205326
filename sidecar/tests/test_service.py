import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from slackwater.cdc import EndOffsets, Frontier
from slackwater.control.health import SIDECAR_AWAY_AFTER
from slackwater.cuts import FrontierState, FrontierStatus, TopicUnavailableError
from slackwater.protocol import (
    AheadMarkers,
    Clock,
    ConnectorReport,
    Cut,
    Finding,
    KafkaSettings,
    LogRecord,
    PublishedCut,
    Refusal,
    Servers,
    SkipDecision,
    TimelineDecision,
    Verdict,
    epoch_ms,
)
from slackwater_lab.debezium.records import snapshot_value, transaction_values
from slackwater_lab.fakes.memory import InMemoryMarkerStore
from slackwater_lab.fakes.sources import WatchedLog
from slackwater_sidecar import (
    Publisher,
    Sidecar,
    SidecarSettings,
    SidecarStatus,
    SidecarUnavailableError,
    SourceMonitor,
    SourceReader,
    format_status,
    run,
    service,
)
from slackwater_sidecar.resume import Decision, LoggedDecisions, resume
from slackwater_sidecar.watch import ConnectorWatch

SETTINGS = SidecarSettings(
    source="inv", servers=Servers(KafkaSettings("h:1")), sidecar_id="me", connect_url="http://h:2"
)
TABLE = "s.a"


class FakeReader(SourceReader):
    """One partition, fed by the test."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier
        self.rows: list[bytes] = []
        self.transactions: list[bytes] = []
        self.read = [0, 0]
        self.is_away = False
        self.has_topics = True
        self.needs_commits = False
        self.is_slow = False
        self.held_back_offsets = 0

    def discover(self) -> list[str]:
        self._answer()
        if self.has_topics:
            self._frontier.add_partition("inv.s.a", 0, self.read[0])
        return ["inv.s.a"] if self.has_topics else []

    def poll(self, timeout_seconds: float) -> int:
        self._answer()
        if self.is_slow:
            return 0
        begin, frontier = list(self.read), self._frontier
        self.read = [len(self.rows), len(self.transactions)]
        frontier.read_transactions((o, v, 0) for o, v in enumerate(self.transactions[begin[1] :], begin[1]))
        for partition in frontier.partitions:
            partition.read(enumerate(self.rows[begin[0] :], begin[0]), "r")
        return sum(self.read) - sum(begin)

    def end_offsets(self) -> EndOffsets:
        return {("inv.s.a", 0): len(self.rows), ("inv.transaction", 0): len(self.transactions)}

    def held_back(self) -> int:
        return self.held_back_offsets

    def balance(self, *, needs_commits: bool = False) -> None:
        self.needs_commits = needs_commits

    @property
    def paused_partitions(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.is_away:
            raise SidecarUnavailableError("reading", "h:1", "refused")


class SlowLog(WatchedLog):
    """A log that can be away, or take its time."""

    clock: Clock
    costs_seconds = 0.0

    def _append(self, records: Sequence[LogRecord]) -> list[tuple[int, int]]:
        self.clock.seconds += self.costs_seconds  # type: ignore[attr-defined]
        return super()._append(records)


SOUND = ConnectorReport(read_ms=1, since_ms=1, state="RUNNING", properties={"topic.prefix": "inv"})


class FixedWatch(ConnectorWatch):
    """Has seen what the test says."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("inv", (), clock)
        self.report = SOUND


class World:
    def __init__(self, clock: Clock, newest: Cut | None = None, watch: ConnectorWatch | None = None) -> None:
        self.clock = clock
        self.log = SlowLog("inv")
        self.log.clock = clock
        self.store = InMemoryMarkerStore()
        self.seen: list[SidecarStatus] = []
        self.decided: list[Decision] = []
        self.are_decisions_away = False
        self.monitor = SourceMonitor("inv", clock)
        self.watch = self.monitor.watch = watch or FixedWatch(clock)
        self.reader = FakeReader(Frontier("inv"))
        self.start(newest)

    def start(self, newest: Cut | None = None) -> None:
        """Starts a sidecar, which continues from the cut log."""
        found = resume(self.log, 1)
        frontier = found.frontier(replace(SETTINGS, complete_tables=frozenset({"s.a"})))
        before, self.reader = self.reader, FakeReader(frontier)
        self.reader.is_slow = before.is_slow
        self.reader.rows, self.reader.transactions = before.rows, before.transactions
        if found.newest is not None:
            cut = found.newest.cut
            self.reader.read = [cut.end_offsets["inv.s.a"][0], cut.transaction_offset]
            self.reader.discover()
        logged = LoggedDecisions(self.log, found.timeline, found.log_offset)
        publisher = Publisher("inv", self.log, self.store, restored_cuts=10, clock=self.clock)
        publisher.state.resume_from(PublishedCut(newest, 0) if newest else found.newest)
        self.sidecar = Sidecar(
            SETTINGS,
            frontier,
            self.reader,
            publisher,
            monitor=self.monitor,
            decisions=lambda: self.decide(logged),
            on_status=self.seen.append,
        )
        self.sidecar.turn()

    def decide(self, logged: LoggedDecisions) -> list[Decision]:
        if self.are_decisions_away:
            raise TopicUnavailableError("read", "inv.slackwater.cuts", "refused")
        decided, self.decided = self.decided, []
        return [*decided, *logged.new()]

    def commit(self, *xids: int, lost_rows: int = 0) -> None:
        for xid in xids:
            begin, rows, end = transaction_values(xid, xid * 100, [(TABLE, {"id": n}) for n in range(2)])
            self.reader.transactions += [begin, end]
            self.reader.rows += [value for _, value in rows][: 2 - lost_rows]

    def turn(self, seconds: float = 2.0) -> SidecarStatus:
        """Lets time pass, so that a turn publishes and reports."""
        for _ in range(3):
            self.clock.seconds += seconds / 3  # type: ignore[attr-defined]
            self.sidecar.turn()
        return self.seen[-1]

    def lsns(self) -> list[int]:
        return [t.commit_lsn for c in self.log.tail(-1) for t in c.cut.transactions]


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


def test_what_is_read_is_published(world: World) -> None:
    world.commit(7, 8)

    status = world.turn()

    assert world.lsns() == [702, 802]
    assert world.store.newest("inv", 1) == world.log.newest()
    assert (status.state, status.lsn, status.event_count) == (FrontierState.RUNNING, 802, 4)


def test_cuts_are_not_published_faster_than_the_interval(world: World) -> None:
    world.commit(7)
    world.turn()
    world.commit(8)
    world.sidecar.turn()
    world.commit(9)
    world.sidecar.turn()

    assert world.lsns() == [702, 802]

    world.turn(0.006)
    assert world.lsns() == [702, 802, 902]


def test_a_source_without_topics_is_waited_for(world: World) -> None:
    world.reader.has_topics = False

    status = world.turn()

    assert status.state is FrontierState.WAITING
    assert "inv.<schema>.<table>" in status.detail


@pytest.mark.parametrize("hours", [-7, 7])
def test_a_wall_clock_that_is_set_changes_nothing_about_when_a_transaction_is_named(
    world: World, hours: int
) -> None:
    world.commit(7, lost_rows=1)
    assert world.turn().state is FrontierState.RUNNING
    world.clock.offset = timedelta(hours=hours)  # type: ignore[attr-defined]

    assert world.turn().state is FrontierState.RUNNING
    assert world.turn(10).state is FrontierState.STALLED


def test_a_transaction_that_does_not_complete_is_named_after_a_while(world: World) -> None:
    world.commit(7, lost_rows=1)
    assert world.turn().state is FrontierState.RUNNING

    status = world.turn(10)

    assert status.state is FrontierState.STALLED
    assert [t.xid for t in world.store.open("inv")] == [7]
    assert "transaction 7" in format_status(status)
    assert "s.a 1/2" in format_status(status)


def test_complete_transactions_behind_it_are_not_named(world: World) -> None:
    world.commit(7, lost_rows=1)
    world.commit(8, 9)
    world.commit(10, lost_rows=1)
    world.turn(10)

    world.turn(10)

    assert [t.xid for t in world.store.open("inv")] == [7, 10]


def test_a_transaction_that_completes_is_named_no_longer(world: World) -> None:
    world.commit(7, lost_rows=1)
    world.turn(10)
    world.turn(10)
    _, rows, _ = transaction_values(7, 700, [(TABLE, {"id": n}) for n in range(2)])
    world.reader.rows.append(rows[1][1])

    status = world.turn()

    assert (status.state, status.open) == (FrontierState.RUNNING, ())
    assert world.store.open("inv") == []


def test_an_unfinished_snapshot_is_a_wait_not_a_stall(world: World) -> None:
    world.reader.rows.append(snapshot_value(TABLE, 500, {"id": 1}))
    world.turn(10)

    status = world.turn(10)

    assert status.state is FrontierState.WAITING
    assert "initial snapshot" in status.detail


def states_after(world: World, rows: Iterable[bytes]) -> SidecarStatus:
    world.reader.rows += rows
    return world.turn()


def test_bad_input_is_shown_with_its_place(world: World) -> None:
    status = states_after(world, [b"garbage"])

    assert status.state is FrontierState.BAD_INPUT
    assert "inv.s.a/0 offset 0" in status.detail


def test_a_fault_of_the_connector_holds_back_cuts_and_is_named(clock: Clock) -> None:
    world = World(clock, watch=FixedWatch(clock))
    world.watch.report = None
    world.commit(7)
    assert world.turn().state is FrontierState.RUNNING
    assert world.lsns() == []  # nobody has looked yet

    fault = Finding("time.precision.mode", Verdict.FAULT, "connect, but must be adaptive")
    world.watch.report = replace(SOUND, findings=(fault,))
    status = world.turn()
    assert (status.state, world.lsns()) == (FrontierState.MISCONFIGURED, [])
    assert "time.precision.mode" in status.detail
    reported = world.store.status("inv")
    assert reported is not None
    assert reported.connector == world.watch.report
    world.sidecar.finish()
    assert world.lsns() == []


def test_a_sidecar_whose_watch_has_ended_ends_too(clock: Clock) -> None:
    """Otherwise it would hold cuts for ever, or see no fault any more."""
    world = World(clock, watch=FixedWatch(clock))
    world.watch.failure = ZeroDivisionError("of the watch")
    world.commit(7)
    with pytest.raises(ZeroDivisionError, match="of the watch"):
        world.turn()
    assert world.lsns() == []


FAULT = Finding("replace.null.with.default", Verdict.FAULT, "true, but must be false")


def refuse(world: World) -> None:
    """Commits 7 and 8, of which the second is read while the connector has a fault."""
    world.commit(7)
    world.turn()
    world.watch.report = replace(SOUND, findings=(FAULT,))
    world.commit(8)
    assert world.turn().state is FrontierState.MISCONFIGURED
    world.watch.report = SOUND


def test_rows_of_a_snapshot_that_were_read_with_a_fault_may_be_wrong_though_no_commit_was_read(
    clock: Clock,
) -> None:
    world = World(clock)
    world.watch.report = replace(SOUND, findings=(FAULT,))
    assert "no cut is published" in world.turn().detail
    world.reader.rows.append(snapshot_value(TABLE, 500, {"id": 1}))
    world.turn()
    world.watch.report = SOUND

    status = world.turn()

    assert status.state is FrontierState.MISCONFIGURED
    assert "Values of all commits may be wrong" in status.detail


@pytest.mark.parametrize("was_corrected_before", [False, True])
def test_a_source_that_was_refused_stays_so_after_a_restart_until_an_operator_knows_better(
    clock: Clock, was_corrected_before: bool
) -> None:
    world = World(clock)
    refuse(world)
    if was_corrected_before:
        world.turn()
    world.sidecar.finish()

    world.start()
    status = world.turn()
    assert (status.state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])
    assert "replace.null.with.default: true" in status.detail
    assert "commits after 0/2BE may be wrong" in status.detail  # 702

    world.log.append_records([skip(802)])
    world.turn()
    assert (world.turn().state, world.lsns()) == (FrontierState.RUNNING, [702, 802])
    world.start()
    world.commit(9)
    world.turn()
    assert (world.turn().state, world.lsns()) == (FrontierState.RUNNING, [702, 802, 902])


def test_a_sidecar_that_is_killed_as_soon_as_it_has_seen_a_fault_leaves_the_refusal(clock: Clock) -> None:
    world = World(clock)
    world.commit(7)
    world.turn()
    world.watch.report = replace(SOUND, findings=(FAULT,))
    world.commit(8)
    world.sidecar.turn()  # no time passes, so it does not report its state
    world.watch.report = SOUND

    world.start()

    assert (world.turn().state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])


def test_what_one_sidecar_has_seen_holds_back_another_that_does_not_watch_the_connector(clock: Clock) -> None:
    world = World(clock)
    refuse(world)
    world.watch.report = replace(SOUND, properties={})

    world.start()

    assert (world.turn().state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])


@pytest.mark.parametrize("is_decided_before", [True, False])
def test_what_was_committed_while_no_sidecar_looked_may_have_the_fault_too(
    clock: Clock, is_decided_before: bool
) -> None:
    """It fails when ``FaultHold.skip_to`` does not wait for the newest commit of the topic."""
    world = World(clock)
    refuse(world)
    world.commit(9)  # with the fault, after the sidecar was killed
    if is_decided_before:
        world.log.append_records([skip(802)])

    world.reader.is_slow = True  # the commit is not read yet at the first look that finds no fault
    world.start()
    world.turn()
    assert world.reader.needs_commits
    if not is_decided_before:
        world.log.append_records([skip(802)])
    assert (world.turn().state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])
    world.reader.is_slow = False
    status = world.turn()

    assert (status.state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])
    assert "at least 0/386" in status.detail  # 902
    refusals = [r.record for r in world.log.records(-1) if isinstance(r.record, Refusal)]
    assert refusals[-1].newest_lsn == 902
    world.log.append_records([skip(902)])
    world.turn()
    assert (world.turn().state, world.lsns()) == (FrontierState.RUNNING, [702, 802, 902])
    world.start()
    world.commit(10)
    world.turn()
    assert (world.turn().state, world.lsns()) == (FrontierState.RUNNING, [702, 802, 902, 1002])


def test_a_word_about_values_is_not_taken_while_nobody_can_look_at_the_connector(clock: Clock) -> None:
    world = World(clock)
    refuse(world)
    world.watch.report = ConnectorReport(read_ms=1, since_ms=1, connect_error="refused")
    world.start()
    world.log.append_records([skip(802)])
    world.turn()
    assert (world.turn().state, world.lsns()) == (FrontierState.MISCONFIGURED, [702])

    world.watch.report = SOUND
    world.turn()

    assert (world.turn().state, world.lsns()) == (FrontierState.RUNNING, [702, 802])


def test_nothing_is_published_before_the_log_has_told_whether_the_source_is_refused(world: World) -> None:
    world.are_decisions_away = True
    world.start()
    world.commit(7)
    world.turn()
    assert world.lsns() == []

    world.are_decisions_away = False
    world.turn()
    assert world.lsns() == [702]


def test_a_refusal_that_cannot_be_written_is_written_later(clock: Clock) -> None:
    world = World(clock)
    world.commit(7)
    world.turn()
    world.watch.report = replace(SOUND, findings=(FAULT,))
    world.log.is_away = True
    world.turn()
    world.log.is_away = False
    world.turn()
    world.turn()

    refusals = [r.record for r in world.log.records(-1) if isinstance(r.record, Refusal)]
    assert [(r.since_lsn, r.newest_lsn) for r in refusals] == [(702, 702)]


def test_cuts_of_a_sound_connector_are_published(clock: Clock) -> None:
    world = World(clock, watch=FixedWatch(clock))
    world.commit(7)

    world.turn()

    assert world.lsns() == [702]


def test_missing_transaction_metadata_names_the_setting(world: World) -> None:
    value = transaction_values(7, 700, [(TABLE, {})])[1][0][1]
    block = value[value.index(b'"transaction":{') :]
    block = block[: block.index(b"}") + 1]

    status = states_after(world, [value.replace(block, b'"transaction":null')])

    assert status.state is FrontierState.MISCONFIGURED
    assert "provide.transaction.metadata=true" in status.detail


def test_a_source_that_is_away_is_waited_for(world: World) -> None:
    world.reader.is_away = True
    status = world.turn()
    assert status.state is FrontierState.WAITING
    assert "refused" in status.detail

    world.reader.is_away = False
    world.commit(7)

    assert world.turn().state is FrontierState.RUNNING
    assert world.lsns() == [702]


def test_at_the_end_everything_ready_is_published(world: World) -> None:
    world.commit(7)
    world.turn()
    world.commit(8)
    world.sidecar.turn()

    world.sidecar.finish()

    assert world.lsns() == [702, 802]
    status = world.store.status("inv")
    assert status is not None
    assert status.state is FrontierState.STOPPED


def skip(to_lsn: int) -> SkipDecision:
    return SkipDecision(source="inv", timeline=1, to_lsn=to_lsn, wall_ms=1, decided_by="ann", reason="lost")


def new_timeline(timeline: int) -> TimelineDecision:
    return TimelineDecision(
        source="inv", timeline=timeline, transaction_offset=4, wall_ms=1, decided_by="ann", reason="restored"
    )


def test_a_decision_to_skip_is_obeyed_and_names_what_was_skipped(world: World) -> None:
    world.commit(7, lost_rows=1)
    world.commit(8)
    assert world.turn(10).lsn == 0
    world.decided.append(skip(702))

    world.turn()
    world.turn()

    assert world.lsns() == [702, 802]
    assert [x for c in world.log.tail(-1) for x in c.cut.skipped] == [7]
    assert world.monitor.decisions["skip"] == 1
    assert world.monitor.skipped == 1


def test_sidecars_that_skip_at_different_moments_follow_the_one_that_wrote_first(world: World) -> None:
    """END of transaction 7 is lost, and the row of transaction 9 arrives after one of them has skipped it."""
    late, its_reader = world.sidecar, world.reader
    world.start()
    reader = world.reader
    its_reader.is_slow = True
    _, rows, _ = transaction_values(7, 700, [(TABLE, {"id": 7})])
    begin, rows_of_9, end = transaction_values(9, 900, [(TABLE, {"id": 9})])
    reader.rows += [value for _, value in rows]
    reader.transactions += [begin, end]
    world.log.append_records([skip(901)])
    world.turn(10)
    assert [c.cut.skipped for c in world.log.tail(-1)] == [(9,)]

    reader.rows += [value for _, value in rows_of_9]
    its_reader.is_slow = False
    world.commit(10)
    for _ in range(5):
        world.clock.seconds += 1  # type: ignore[attr-defined]
        late.turn()
        if late.is_over:
            break
    late.finish()

    assert late.is_over, "it gives up transaction 7 at the cut that names another one"
    assert [c.cut.skipped for c in world.log.tail(-1)] == [(9,)]
    status = world.store.status("inv")
    assert status is not None
    assert status.state is not FrontierState.STOPPED
    world.start()
    world.turn(10)
    assert [t.xid for t in world.seen[-1].open] == [10, 7], "the rows of 7 hold back what is behind them"
    world.log.append_records([skip(1002)])
    world.turn(10)
    assert [c.cut.skipped for c in world.log.tail(-1)] == [(9,), (7,)]


def test_without_a_decision_nothing_is_skipped(world: World) -> None:
    world.commit(7, lost_rows=1)
    world.commit(8)

    for _ in range(20):
        world.turn(60)

    assert world.lsns() == []


def test_lsns_that_go_back_are_a_state_that_says_what_to_do_and_where_the_timeline_would_begin(
    world: World,
) -> None:
    world.commit(7, 8)
    world.turn()
    begin, rows, end = transaction_values(9, 100, [(TABLE, {"id": 1})], 10_000_000)
    world.reader.transactions += [begin, end]
    world.reader.rows += [value for _, value in rows]

    status = world.turn()

    assert status.state is FrontierState.REGRESSED
    assert "slackwater source new-timeline --source inv" in status.detail
    published = world.store.status("inv")
    assert published is not None
    assert published.regression is not None
    assert (published.regression.transaction_offset, published.regression.newest_lsn) == (5, 802)
    assert world.lsns() == [702, 802]


def test_a_decision_for_a_new_timeline_ends_this_one_without_calling_it_stopped(world: World) -> None:
    world.commit(7)
    world.turn()
    world.decided.append(new_timeline(2))

    world.turn()
    world.sidecar.finish()

    assert world.sidecar.next_timeline == new_timeline(2)
    status = world.store.status("inv")
    assert status is not None
    assert (status.state, status.timeline) == (FrontierState.RUNNING, 1)


def test_each_open_transaction_is_logged_once_when_named_and_once_when_resolved(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slackwater_sidecar")
    world.commit(7, lost_rows=1)
    for _ in range(5):
        world.turn(10)
    _, rows, _ = transaction_values(7, 700, [(TABLE, {"id": n}) for n in range(2)])
    world.reader.rows.append(rows[1][1])
    for _ in range(3):
        world.turn()

    about = [r for r in caplog.records if getattr(r, "xid", None) == 7]
    assert [r.msg for r in about] == ["waiting for %s", "waiting no longer for %s"]
    assert about[0].__dict__["expected"] == {TABLE: 2}
    states = [r.__dict__["state"] for r in caplog.records if hasattr(r, "state")]
    assert states == ["stalled", "running"]


def test_decisions_obeyed_are_logged_with_who_took_them(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.decided.append(skip(702))
    world.turn()
    (record,) = [r for r in caplog.records if hasattr(r, "decided_by")]
    assert (record.__dict__["decided_by"], record.__dict__["reason"]) == ("ann", "lost")


def test_what_was_published_is_counted_and_measured(world: World) -> None:
    world.commit(7, 8)
    world.turn()
    world.commit(9)
    status = world.turn()

    monitor = world.monitor
    assert (monitor.events, monitor.transactions, monitor.cuts) == (6, 3, 2)
    assert monitor.newest is not None
    assert monitor.newest.lsn == 902
    assert monitor.publication_seconds.cumulative()[-1] == ("+Inf", 2)
    assert monitor.delay_seconds.cumulative()[-1] == ("+Inf", 2)
    assert status.partitions_read == 1


def test_what_open_kafka_transactions_hold_back_is_shown_and_looked_at_now_and_then(world: World) -> None:
    world.reader.held_back_offsets = 7
    assert world.turn(seconds=30.0).held_back_offsets == 7
    world.reader.held_back_offsets = 0
    assert world.turn().held_back_offsets == 7, "not every time"
    assert world.turn(seconds=30.0).held_back_offsets == 0


def test_markers_of_partitions_beyond_a_frontier_that_stands_still_are_published_after_a_while(
    world: World,
) -> None:
    world.commit(6)
    world.turn()
    world.commit(7, lost_rows=1)
    world.commit(8)
    world.sidecar.turn()
    assert world.monitor.ahead == 0

    world.turn()
    world.turn()

    assert world.lsns() == [602]
    assert world.store.markers("inv")["inv.s.a", 0].safe_commit_lsn == 702
    ahead = [r.record for r in world.log.records(-1) if isinstance(r.record, AheadMarkers)]
    assert [markers.lsn for markers in ahead] == [702]
    assert world.monitor.ahead == 1


def test_a_publication_that_took_long_is_followed_by_a_rest_only_while_much_is_to_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_MANY_RECORDS", 1)
    world.log.costs_seconds = 0.02
    world.commit(7)
    world.sidecar.turn()
    world.commit(8)
    world.clock.seconds += 0.07  # type: ignore[attr-defined]
    world.sidecar.turn()
    assert world.lsns() == [702]

    world.sidecar.turn()
    assert world.lsns() == [702, 802], "nothing more was read"


def test_markers_ahead_that_took_long_are_followed_by_a_rest(world: World) -> None:
    world.commit(6)
    world.turn()
    world.commit(7, lost_rows=1)
    world.commit(8)
    world.log.costs_seconds = 0.25
    world.clock.seconds += 1  # type: ignore[attr-defined]
    world.sidecar.turn()
    assert world.monitor.ahead == 1

    seen = []
    for xid in (9, 10):
        world.commit(xid)
        world.clock.seconds += 0.125  # type: ignore[attr-defined]
        world.sidecar.turn()
        seen.append(world.monitor.ahead)
    assert seen == [1, 2]


def test_cuts_that_the_log_does_not_take_are_counted_when_they_stand(world: World) -> None:
    world.log.is_away = True
    world.commit(7)
    world.turn()
    assert (world.monitor.cuts, world.monitor.newest) == (0, None)

    world.log.is_away = False
    world.commit(8)
    world.turn()
    assert (world.monitor.cuts, world.monitor.transactions) == (2, 2)


def test_cuts_that_are_left_to_another_sidecar_are_tried_again_and_counted_when_they_stand(
    world: World,
) -> None:
    other = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="other")
    world.commit(7)
    world.turn()
    (first,) = world.log.tail(-1)
    world.store.clear("inv", 1)
    world.store.put_cut(first, other)

    world.commit(8)
    world.sidecar.turn()
    assert (world.lsns(), world.monitor.cuts) == ([702], 1)
    for _ in range(2):
        world.clock.seconds += 0.25  # type: ignore[attr-defined]
        world.sidecar.turn()

    assert (world.lsns(), world.monitor.cuts) == ([702, 802], 2)


def test_markers_of_all_partitions_are_shown_between_two_reports(world: World) -> None:
    world.commit(7)
    world.turn(0.3)

    assert world.store.markers("inv")["inv.s.a", 0].safe_commit_lsn == 702


def test_counting_goes_on_from_the_cut_of_the_log(clock: Clock) -> None:
    newest = Cut(
        source="inv",
        timeline=1,
        lsn=2,
        previous_lsn=1,
        commit_ts_ms=5,
        event_count=10,
        transactions=(),
        end_offsets={},
        transaction_offset=0,
    )

    assert World(clock, newest).monitor.newest == newest


@pytest.mark.parametrize("answers", range(6))
def test_a_sidecar_reports_also_while_kafka_is_silent(
    world: World, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, reports = 0, list[float]()

    def silent(seconds: float, error: Exception) -> None:
        nonlocal asked
        asked += 1
        if asked > answers:
            world.clock.seconds += seconds  # type: ignore[attr-defined]
            raise error

    discover, identity = world.reader.discover, world.log.identity
    log_error = TopicUnavailableError("read", "inv.slackwater.cuts", "no answer")
    log_seconds = run.LOG_TIMEOUT.total_seconds()

    def looks() -> list[str]:
        silent(3, SidecarUnavailableError("listing topics", "h:1", "no answer"))
        return discover()

    def asks() -> str | None:
        silent(log_seconds, log_error)
        return identity()

    def decide() -> list[Decision]:
        silent(log_seconds, log_error)
        return []

    def told(source: str, status: FrontierStatus) -> None:
        reports.append(world.clock.monotonic())
        ages.append(epoch_ms(world.clock.now()) - status.wall_ms)

    ages = list[int]()
    monkeypatch.setattr(world.reader, "discover", looks)
    monkeypatch.setattr(world.log, "identity", asks)
    monkeypatch.setattr(world.sidecar, "_decisions", decide)
    monkeypatch.setattr(world.store, "set_status", told)
    for _ in range(30):
        world.clock.seconds += 0.5  # type: ignore[attr-defined]
        world.sidecar.turn()
    gaps = [later - earlier for earlier, later in pairwise(reports)]
    written_late = [gap + age / 1000 for gap, age in zip(gaps, ages, strict=False)]
    assert max(written_late) < SIDECAR_AWAY_AFTER.total_seconds()
