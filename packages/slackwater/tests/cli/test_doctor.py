"""Every cause a doctor names, from facts alone."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.cdc.envelope import End
from slackwater.cli.commands.status import check_source, make_report, report_lines
from slackwater.cli.diagnosis import Cause, Finding, diagnose
from slackwater.cli.examination import PartitionFacts, PartitionId, SourceFacts, Sources, examine
from slackwater.command.invocation import ANSWERS_WITHIN
from slackwater.cuts import (
    CutLog,
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    PipelineLog,
    RedisMarkerStore,
    StoredPosition,
    StoreFault,
    TopicUnavailableError,
)
from slackwater.protocol import (
    Clock,
    ConnectorReport,
    Cut,
    Evidence,
    InputError,
    OpenTransaction,
    PublishedCut,
    SourceTopics,
    SystemClock,
    Verdict,
)
from slackwater.protocol import Finding as Examined
from slackwater.settings.errors import unreachable
from slackwater_lab.fakes.memory import InMemoryCutLog, InMemoryMarkerStore, InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

NOW_MS = 1_000_000
TABLE, TOPIC = "s.a", "inv.s.a"
LSN = 0x700


def status(
    state: FrontierState = FrontierState.STALLED, *, ago_ms: int = 500, detail: str = "d"
) -> FrontierStatus:
    return FrontierStatus(state=state, detail=detail, wall_ms=NOW_MS - ago_ms, sidecar="host-1", timeline=1)


def partition(readable: int = 10, **changes: Any) -> PartitionFacts:
    return replace(PartitionFacts(low=0, stable_end=readable, end=readable), **changes)


def waiting(**changes: Any) -> OpenTransaction:
    """Rows are missing; two partitions, read to offset 10 each."""
    transaction = OpenTransaction(
        xid=77,
        commit_lsn=LSN,
        since_ms=NOW_MS - 60_000,
        expected={TABLE: 3},
        received={TABLE: 2},
        hint="rows are missing",
        places={f"{TOPIC}/0": (4, 10), f"{TOPIC}/1": (-1, 10)},
    )
    return replace(transaction, **changes)


def cut(lsn: int = 0x600) -> Cut:
    return Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=NOW_MS - 2_000,
        event_count=5,
        transactions=(),
        end_offsets={},
        transaction_offset=8,
    )


def facts(*open_: OpenTransaction, **changes: Any) -> SourceFacts:
    """A source whose topics were all read to their ends and where nothing is later than the transaction."""
    partitions: Mapping[PartitionId, PartitionFacts] = {(TOPIC, 0): partition(), (TOPIC, 1): partition()}
    known = SourceFacts(
        topics=SourceTopics("inv"),
        now_ms=NOW_MS,
        status=status(FrontierState.STALLED if open_ else FrontierState.RUNNING, detail=""),
        cut=cut(),
        open=open_,
        data_topics=frozenset({TOPIC}),
        transactions=partition(20),
        ends=((19, End(xid=77, commit_lsn=LSN, commit_ts_ms=NOW_MS - 61_000, counts={})),),
        partitions=partitions,
    )
    return replace(known, **changes)


def only(known: SourceFacts) -> Finding:
    (finding,) = diagnose(known)
    return finding


def text(finding: Finding) -> str:
    return "\n".join([finding.what, *finding.evidence, *finding.advice])


LATER_END = ((19, End(xid=90, commit_lsn=LSN + 8, commit_ts_ms=NOW_MS - 1_000, counts={})),)


def test_a_source_that_moves_is_healthy() -> None:
    assert diagnose(facts()) == []


def test_a_table_whose_topic_cannot_have_all_rows_is_named() -> None:
    found = Examined("table s.a", Verdict.PROBLEM, "it is unlogged", "ALTER TABLE … SET LOGGED")
    fine = Examined("heartbeat.interval.ms", Verdict.PROBLEM, "0", "")
    report = ConnectorReport(read_ms=NOW_MS, since_ms=NOW_MS, findings=(found, fine))
    said = replace(status(FrontierState.RUNNING), connector=report)
    named = only(facts(status=said))
    assert named.cause is Cause.CATALOGUE
    assert (named.what, named.advice) == ("table s.a: it is unlogged", ("ALTER TABLE … SET LOGGED",))


def test_rows_are_dropped_on_the_way_when_all_was_read_and_later_transactions_came() -> None:
    known = facts(waiting(), ends=LATER_END)
    finding = only(
        replace(known, partitions={**known.partitions, (TOPIC, 0): partition(newest_row_lsn=LSN + 4)})
    )

    assert finding.cause is Cause.DROPPED
    assert "every partition has been read to its end" in finding.evidence[0]
    assert f"{TOPIC}/0: rows of later transactions arrived, up to 0/704" in text(finding)
    assert "slackwater source skip --source inv --to 0/700" in text(finding)
    assert "--evidence s.a=overtaken" in text(finding)
    assert "errors.tolerance" in text(finding)


def test_a_row_that_was_written_before_the_commit_shows_nothing_later() -> None:
    known = facts(waiting())
    known = replace(known, partitions={**known.partitions, (TOPIC, 0): partition(newest_row_lsn=LSN - 8)})
    assert only(known).cause is Cause.CONNECTOR_DOWN


def test_a_topic_that_is_gone_is_named_with_its_table() -> None:
    state = status(FrontierState.WAITING, detail="no topic found for s.a")
    finding = only(facts(waiting(places={}), data_topics=frozenset(), partitions={}, status=state))
    assert finding.cause is Cause.TOPIC_MISSING
    assert "topic inv.s.a for s.a does not exist" in text(finding)
    assert "--topics s.a=TOPIC" in text(finding)


def test_a_routed_table_is_looked_for_in_its_own_topic() -> None:
    known = facts(
        waiting(places={"else/0": (4, 10)}),
        topics=SourceTopics("inv", {TABLE: "else"}),
        data_topics=frozenset({"else"}),
        partitions={("else", 0): partition()},
        ends=LATER_END,
    )
    assert only(known).cause is Cause.DROPPED


def test_a_partition_that_is_not_read_to_its_end_only_needs_time() -> None:
    known = facts(waiting(), ends=LATER_END)
    finding = only(replace(known, partitions={**known.partitions, (TOPIC, 1): partition(5_000)}))
    assert finding.cause is Cause.SIDECAR_BEHIND
    assert f"{TOPIC}/1: read up to 10 of 5000" in text(finding)


def test_records_below_the_first_offset_are_gone_by_retention() -> None:
    known = facts(waiting(), ends=LATER_END)
    finding = only(replace(known, partitions={**known.partitions, (TOPIC, 1): partition(5_000, low=11)}))
    assert finding.cause is Cause.RETENTION
    assert f"{TOPIC}/1: offset 10 is needed, but the topic begins at 11" in text(finding)


def test_a_topic_that_ends_below_what_was_read_was_made_anew() -> None:
    known = facts(waiting(), ends=LATER_END)
    finding = only(replace(known, partitions={**known.partitions, (TOPIC, 0): partition(3)}))
    assert finding.cause is Cause.TOPIC_RECREATED


def test_an_open_kafka_transaction_hides_records() -> None:
    known = facts(waiting(), ends=LATER_END)
    finding = only(replace(known, partitions={**known.partitions, (TOPIC, 1): partition(10, end=15)}))
    assert finding.cause is Cause.HANGING
    assert f"{TOPIC}/1: readable up to 10 of 15" in text(finding)


def test_an_open_kafka_transaction_in_the_transaction_topic_hides_ends() -> None:
    finding = only(facts(waiting(commit_lsn=None, expected={}), transactions=partition(20, end=21)))
    assert finding.cause is Cause.HANGING
    assert "inv.transaction/0" in text(finding)


def test_nothing_newer_anywhere_means_the_connector_is_down() -> None:
    finding = only(facts(waiting()))
    assert finding.cause is Cause.CONNECTOR_DOWN
    assert "the newest END is that of xid 77, committed 61 s ago" in text(finding)
    assert "pg_replication_slots" in text(finding)


def test_rows_without_end_and_nothing_newer_mean_the_connector_is_down() -> None:
    assert only(facts(waiting(commit_lsn=None, expected={}))).cause is Cause.CONNECTOR_DOWN


def test_an_end_that_is_missing_between_later_ones_was_lost() -> None:
    finding = only(facts(waiting(commit_lsn=None, expected={}), ends=LATER_END))
    assert finding.cause is Cause.END_LOST
    assert "slackwater source skip --source inv --to 0/708" in text(finding)


def test_a_missing_transaction_topic_is_missed_only_when_it_must_be_there() -> None:
    known = facts(waiting(commit_lsn=None, expected={}), transactions=None, ends=())
    found = [f.cause for f in diagnose(known)]
    assert found == [Cause.TRANSACTION_TOPIC_MISSING, Cause.CONNECTOR_DOWN]
    before_the_first_commit = facts(cut=None, transactions=None, ends=())
    assert diagnose(before_the_first_commit) == []


def test_a_restart_within_the_transaction_is_waited_for_until_something_later_comes() -> None:
    hint = "rows were numbered again after a connector restart"
    known = facts(waiting(hint=hint), ends=LATER_END)
    assert only(known).cause is Cause.RENUMBERED
    known = replace(known, partitions={**known.partitions, (TOPIC, 0): partition(newest_row_lsn=LSN + 4)})
    assert only(known).cause is Cause.DROPPED


def test_a_table_judged_by_overtaking_waits_for_a_later_row_in_each_partition() -> None:
    known = facts(waiting(), ends=LATER_END, evidence={TABLE: Evidence.OVERTAKEN})
    known = replace(known, partitions={**known.partitions, (TOPIC, 0): partition(newest_row_lsn=LSN + 4)})
    finding = only(known)
    assert finding.cause is Cause.NOT_OVERTAKEN
    assert finding.evidence == (f"{TOPIC}/1: no row of a later transaction yet",)
    complete = replace(known, open=(waiting(received={TABLE: 3}),))
    assert only(complete).cause is Cause.NOT_OVERTAKEN


def test_rows_of_an_ad_hoc_snapshot_need_a_commit() -> None:
    finding = only(facts(waiting(xid=0, hint="rows of an ad hoc snapshot wait for a commit after it")))
    assert finding.cause is Cause.SNAPSHOT
    assert "heartbeat.action.query" in text(finding)


def test_an_initial_snapshot_is_no_lost_transaction() -> None:
    hint = "initial snapshot without notifications: the row that ends it was not read"
    finding = only(facts(waiting(xid=0, hint=hint)))
    assert finding.cause is Cause.SNAPSHOT
    assert "notification.enabled.channels=sink" in text(finding)


@pytest.mark.parametrize("problem", ["rows are missing", "a notification cannot be read: await"])
def test_a_snapshot_that_cannot_be_decided_has_a_way_out(problem: str) -> None:
    finding = only(
        facts(waiting(xid=0, hint=f"initial snapshot, its announcements do not match its rows: {problem}"))
    )
    assert finding.cause is Cause.SNAPSHOT
    assert "take the snapshot again" in text(finding)
    assert "Insert one first" in text(finding)


def test_a_record_that_cannot_be_read_has_a_way_out() -> None:
    finding = only(facts(status=status(FrontierState.BAD_INPUT, detail="why")))
    assert "slackwater source skip --source inv" in text(finding)
    assert "kafka-delete-records.sh" in text(finding)


def test_a_complete_transaction_waits_for_the_one_before() -> None:
    complete = waiting(xid=78, received={TABLE: 3}, hint="complete, waits for others")
    causes = [f.cause for f in diagnose(facts(waiting(), complete))]
    assert causes == [Cause.CONNECTOR_DOWN, Cause.WAITS_FOR_OTHERS]


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (FrontierState.REGRESSED, Cause.REGRESSED),
        (FrontierState.BAD_INPUT, Cause.BAD_INPUT),
        (FrontierState.MISCONFIGURED, Cause.MISCONFIGURED),
        (FrontierState.WAITING, Cause.WAITING),
    ],
)
def test_a_state_no_cut_passes_is_a_finding(state: FrontierState, cause: Cause) -> None:
    finding = only(facts(status=status(state, detail="why")))
    assert (finding.cause, finding.what) == (cause, "why")


def test_lsns_that_went_back_name_the_command() -> None:
    finding = only(facts(status=status(FrontierState.REGRESSED)))
    assert "slackwater source new-timeline --source inv" in finding.advice


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "no sidecar of source inv has reported"),
        (status(FrontierState.RUNNING, ago_ms=60_000, detail=""), "last reported 60 s ago"),
        (status(FrontierState.STOPPED, detail=""), "has stopped"),
        (status(FrontierState.FAILED, detail="offsets are gone"), "has failed: offsets are gone"),
    ],
)
def test_a_sidecar_that_does_not_run_is_found(said: FrontierStatus | None, words: str) -> None:
    finding = only(facts(status=said))
    assert finding.cause is Cause.NO_SIDECAR
    assert words in finding.what


def test_without_kafka_no_cause_is_guessed() -> None:
    known = facts(waiting(), kafka_error="refused", partitions={}, data_topics=frozenset(), transactions=None)
    assert [f.cause for f in diagnose(known)] == [Cause.KAFKA_AWAY]


def test_without_redis_the_sidecar_is_not_called_dead() -> None:
    assert only(facts(redis_error="refused", status=None)).cause is Cause.REDIS_AWAY


@pytest.mark.parametrize(
    ("said", "causes"),
    [(None, [Cause.REDIS_WRONG]), (status(FrontierState.RUNNING, detail=""), [Cause.REDIS_WRONG])],
)
def test_what_somebody_else_wrote_to_redis_is_found(said: FrontierStatus | None, causes: list[Cause]) -> None:
    known = facts(redis_wrong="Redis has a cut at 99/7", status=said)
    assert [f.cause for f in diagnose(known)] == causes
    assert "corrects Redis" in text(only(known))


class WrongStore(InMemoryMarkerStore):
    """Of which a part cannot be read."""

    wrong = ""
    unanswered = 0
    """This many questions find an earlier status: it starts over, or was silent."""
    earlier: FrontierStatus | None = None

    def status(self, source: str) -> FrontierStatus | None:
        self._answer("status")
        if self.unanswered:
            self.unanswered -= 1
            return self.earlier
        return super().status(source)

    def position(self, source: str) -> StoredPosition | None:
        self._answer("position")
        return super().position(source)

    def _answer(self, operation: str) -> None:
        if operation == self.wrong:
            raise MarkerStoreUnavailableError(operation, "h:1", "WRONGTYPE", StoreFault.CONTENT)


class Stepping(SystemClock):
    """A clock by which this many seconds pass whenever it is read."""

    def __init__(self, step: float = 10) -> None:
        self._step = step
        self._seconds = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(NOW_MS / 1000, UTC)

    def monotonic(self) -> float:
        self._seconds += self._step
        return self._seconds

    def pass_time(self, seconds: float) -> None:
        self._seconds += seconds


EMPTY_PROBE: Any = SimpleNamespace(
    read_topics=lambda known: None,
    still_hanging=lambda partitions: partitions,
    with_newest_rows=lambda partitions: partitions,
)


def sources_of(
    store: RedisMarkerStore,
    log: CutLog,
    clock: Clock,
    *,
    pipelines: PipelineLog | None = None,
    source: str = "inv",
) -> Sources:
    """What facts are read from, with a Kafka that answers and has no topics."""
    told = pipelines or InMemoryPipelineLog()
    return Sources(
        SourceTopics(source),
        {},
        store,
        log,
        told,
        lambda: nullcontext(EMPTY_PROBE),
        clock,
        pause=lambda _: None,
    )


def examined(store: InMemoryMarkerStore, log: InMemoryCutLog, step: float = 10) -> SourceFacts:
    return examine(sources_of(store, log, Stepping(step)))


class Silence:
    """Servers that do not answer any more after this many questions; a question takes its time-out then."""

    def __init__(self, server: str, answers: int, clock: Stepping) -> None:
        self._server, self._answers, self._clock = server, answers, clock
        self.began: float | None = None

    def of(self, server: str, asked: Any, error: Callable[[], Exception]) -> Any:
        """Returns something that answers as `asked` does until this server is silent."""

        def question(name: str) -> Any:
            answer = getattr(asked, name)

            def ask(*given: Any, **named: Any) -> Any:
                self._answers -= server == self._server
                if server != self._server or self._answers >= 0:
                    return answer(*given, **named)
                if self.began is None:
                    self.began = self._clock.monotonic()
                self._clock.pass_time(ANSWERS_WITHIN.total_seconds())
                raise error()

            return ask

        return type("Asked", (), {"__getattr__": lambda _, name: question(name)})()


def caused_by_silence(error: Exception) -> Exception:
    error.__cause__ = KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
    return error


@pytest.mark.parametrize("has_sidecar", [True, False])
@pytest.mark.parametrize("answers", range(12))
@pytest.mark.parametrize("server", ["Kafka", "Redis"])
def test_a_server_that_falls_silent_is_known_within_ten_seconds(
    server: str, answers: int, has_sidecar: bool
) -> None:
    clock, store, log = Stepping(0.5), InMemoryMarkerStore(), InMemoryCutLog("inv")
    if has_sidecar:
        store.put_cut(log.append([cut()])[0], status(FrontierState.RUNNING, detail=""))
    silence = Silence(server, answers, clock)
    silent_log = silence.of(
        "Kafka", log, lambda: caused_by_silence(TopicUnavailableError("read", "cuts", "late"))
    )
    known = sources_of(
        silence.of("Redis", store, lambda: MarkerStoreUnavailableError("status", "h:1", "late")),
        silent_log,
        clock,
        pipelines=silence.of(
            "Kafka",
            InMemoryPipelineLog(),
            lambda: caused_by_silence(TopicUnavailableError("read", "pipelines", "late")),
        ),
    )
    probe = silence.of("Kafka", EMPTY_PROBE, lambda: unreachable("Kafka", "which topics?", "late"))
    found = examine(replace(known, probe=lambda: nullcontext(probe)))
    if silence.began is not None:
        assert clock.monotonic() - silence.began < 10
        assert {"Kafka": found.kafka_error, "Redis": found.redis_error}[server] is not None
        assert (found.kafka_error is None) != (found.redis_error is None), "nobody else"


def test_the_frontier_that_is_shown_is_that_of_the_cut_log() -> None:
    store, log = WrongStore(), InMemoryCutLog("inv")
    [logged] = log.append([cut()])
    said = status(FrontierState.RUNNING, detail="")
    store.put_cut(logged, said)
    assert (examined(store, log).cut, examined(store, log).redis_wrong) == (cut(), None)
    store.put_cut(PublishedCut(replace(cut(), lsn=2**62), 0), said)
    found = examined(store, log)
    assert found.cut == cut()
    assert "has a cut at 1/40000000/0, but offset 0" in (found.redis_wrong or "")


def test_a_contradiction_that_passes_while_the_broker_recovers_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, log = WrongStore(), InMemoryCutLog("inv")
    [logged] = log.append([cut()])
    store.put_cut(logged, status(FrontierState.RUNNING, detail=""))
    ends = iter([0])
    whole = log.end
    monkeypatch.setattr(log, "end", lambda: next(ends, whole()))
    assert examined(store, log, step=0.5).redis_wrong is None
    assert next(ends, None) is None


def test_a_cut_log_that_does_not_have_the_record_accuses_no_redis() -> None:
    store, log, denied = WrongStore(), InMemoryCutLog("inv"), InMemoryCutLog("inv")
    logged = log.append([cut(0x600), replace(cut(0x700), previous_lsn=0x600)])
    store.put_cut(logged[0], status(FrontierState.RUNNING, detail=""))
    assert examined(store, denied).redis_wrong is None, "a broker that has just started may deny the topic"
    log.delete_before(1)
    assert examined(store, log).redis_wrong is None, "the record was deleted"


def test_a_cut_log_that_cannot_be_read_to_its_end_is_found() -> None:
    log = InMemoryCutLog("inv")
    at = log.append_bytes(b'{"v":2,"source":7}')
    found = examined(WrongStore(), log)
    assert f"pass-record --offset {at}" in (found.cut_log_error or "")
    known = facts(cut_log_error=found.cut_log_error)
    assert only(known).cause is Cause.CUT_LOG
    assert "docs/runbooks.md#cut-log" in text(only(known))


def test_a_cut_log_that_is_away_is_nothing_that_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> NoReturn:
        raise TopicUnavailableError("read", "inv.slackwater.cuts", "refused")

    log = InMemoryCutLog("inv")
    monkeypatch.setattr(log, "newest", away)
    assert examined(WrongStore(), log).cut_log_error is None


@pytest.mark.parametrize("wrong", ["status", "position"])
def test_what_cannot_be_read_in_redis_is_no_absence_of_redis(wrong: str) -> None:
    store, log = WrongStore(), InMemoryCutLog("inv")
    log.append([cut()])
    store.wrong = wrong
    found = examined(store, log)
    assert (found.redis_error, found.cut) == (None, cut())
    assert "found data that Slackwater did not write" in (found.redis_wrong or "")


def test_a_source_that_waits_for_kafka_is_not_said_to_wait_as_well() -> None:
    waiting = status(FrontierState.WAITING)
    assert only(facts(status=waiting)).cause is Cause.WAITING
    assert only(facts(status=waiting, kafka_error="refused")).cause is Cause.KAFKA_AWAY


@pytest.mark.parametrize("earlier", [None, status(FrontierState.RUNNING, ago_ms=9_000)])
def test_a_redis_that_starts_over_or_was_silent_is_asked_until_the_sidecar_has_reported(
    earlier: FrontierStatus | None,
) -> None:
    store = WrongStore()
    newest = status(FrontierState.RUNNING)
    store.set_status("inv", newest)
    store.unanswered, store.earlier = 2, earlier
    assert examined(store, InMemoryCutLog("inv"), step=0.5).status == newest


def test_a_source_of_which_nothing_is_found_is_an_error_if_there_are_others() -> None:
    nothing = SourceFacts(topics=SourceTopics("inw"), evidence={}, now_ms=0)
    check_source(nothing)
    with pytest.raises(InputError, match=r"unknown source 'inw'; did you mean inv\?"):
        check_source(replace(nothing, others=("inv",)))
    check_source(replace(nothing, others=("inv",), redis_error="away"))
    check_source(replace(nothing, others=("inv",), cut=cut()))


def test_the_other_sources_are_those_that_pipelines_read() -> None:
    log, pipelines = InMemoryCutLog("inw"), InMemoryPipelineLog()
    pipelines.register(REGISTRATION)
    found = examine(sources_of(WrongStore(), log, Stepping(), pipelines=pipelines, source="inw"))
    assert (found.others, found.is_known) == (("inv", "shop"), False)


def test_the_report_shows_expected_received_and_every_partition() -> None:
    known = facts(waiting(), ends=LATER_END)
    lines = "\n".join(report_lines(known, diagnose(known)))
    assert "transaction 77: commit 0/700, incomplete since" in lines
    assert [line.split() for line in lines.splitlines() if line.startswith("  s.a")] == [["s.a", "2", "3"]]
    rows = [line.split() for line in lines.splitlines() if line.startswith(f"  {TOPIC}/")]
    assert rows == [[f"{TOPIC}/0", "4", "10", "10"], [f"{TOPIC}/1", "-", "10", "10"]]
    assert lines.endswith("source inv needs attention: dropped")


def test_the_report_of_a_healthy_source_says_so() -> None:
    assert report_lines(facts(), [])[-1] == "source inv is healthy"


def test_the_report_warns_of_what_cannot_be_noticed_if_nobody_knows_the_connector() -> None:
    known = facts()
    (warning,) = (line for line in report_lines(known, diagnose(known)) if line.startswith("warning"))
    for named in ("out of line", "skipped.operations", "connect.url", "connect.properties"):
        assert named in warning
    assert known.status is not None
    report = ConnectorReport(read_ms=1, since_ms=1, properties={"name": "inv"})
    told = replace(known, status=replace(known.status, connector=report))
    assert not any(line.startswith("warning") for line in report_lines(told, []))


def test_tables_whose_topics_do_not_exist_are_told_of_a_healthy_source_too() -> None:
    known = replace(facts(), tables=frozenset({TABLE, "s.parted", "s.new"}))
    lines = report_lines(known, diagnose(known))
    (told,) = (line for line in lines if line.startswith("without topic"))
    assert "s.new, s.parted: empty until" in told
    assert "publish_via_partition_root" in told
    assert make_report(known, []).without_topic == ("s.new", "s.parted")
    away = replace(known, kafka_error="no answer")
    assert away.without_topic == ()
    assert not any(line.startswith("without topic") for line in report_lines(away, []))


def test_the_named_tables_are_among_the_facts() -> None:
    store, log = InMemoryMarkerStore(), InMemoryCutLog("inv")

    def away() -> NoReturn:
        raise unreachable("Kafka", "h:1", "no answer")

    pipelines = InMemoryPipelineLog()
    sources = Sources(SourceTopics("inv"), {}, store, log, pipelines, away, Stepping(), frozenset({TABLE}))
    assert examine(sources).tables == {TABLE}


def test_the_json_report_holds_the_same() -> None:
    known = facts(waiting(), ends=LATER_END)
    said = msgspec.json.decode(msgspec.json.encode(make_report(known, diagnose(known))))
    assert (said["is_healthy"], said["frontier"], said["delay_ms"]) == (False, "0/600", 2_000)
    assert said["findings"][0]["cause"] == "dropped"
    partitions = said["open_transactions"][0]["partitions"]
    assert partitions[f"{TOPIC}/1"] == {"first": None, "next": 10, "end": 10}


def test_the_newest_end_is_that_of_the_timeline_that_is_followed() -> None:
    def end(offset: int, lsn: int) -> tuple[int, End]:
        return offset, End(xid=1, commit_lsn=lsn, commit_ts_ms=1, counts={})

    of_an_earlier_timeline, newest, repeated = end(5, 0x900), end(8, 0x300), end(9, 0x200)
    ends = (of_an_earlier_timeline, end(7, 0x200), newest, repeated)
    assert facts(ends=ends).newest_end == newest[1]
    assert facts(ends=ends, cut=None).newest_end == of_an_earlier_timeline[1]
    assert facts(ends=ends[:1]).newest_end == of_an_earlier_timeline[1]
    assert facts(ends=()).newest_end is None


def test_tables_without_a_snapshot_are_named() -> None:
    finding = only(facts(cut=replace(cut(), without_snapshot=("inv.s.a",))))

    assert finding.cause is Cause.NO_SNAPSHOT
    assert "of inv.s.a: nothing of them is shown" in text(finding)
    assert "sidecar.complete_tables" in text(finding)


def test_a_sidecar_that_is_missed_while_the_doctor_looks_is_named_by_this_look() -> None:
    class Moving(Stepping):
        def now(self) -> datetime:
            return super().now() + timedelta(seconds=self.monotonic())

    store, log = InMemoryMarkerStore(), InMemoryCutLog("inv")
    store.put_cut(log.append([cut()])[0], status(FrontierState.RUNNING, ago_ms=5_400, detail=""))
    found = examine(sources_of(store, log, Moving(0.5)))
    assert Cause.NO_SIDECAR in {finding.cause for finding in diagnose(found)}
