"""What a sidecar learns of its connector, and when that forbids cuts."""

import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from slackwater.cdc.connector import reading_properties
from slackwater.command.connect_rest import ConnectRest
from slackwater.control import SourceSigns, faults_of_connector
from slackwater.protocol import (
    Clock,
    ConnectorReport,
    Finding,
    Refusal,
    SlotReport,
    SystemClock,
    TaskReport,
    Verdict,
    epoch_ms,
)
from slackwater_sidecar import watch
from slackwater_sidecar.status import FaultHold
from slackwater_sidecar.watch import (
    ConnectorWatch,
    ConnectWitness,
    DatabaseWitness,
    HeartbeatWitness,
    TopicsWitness,
    Watched,
    Witness,
)

if TYPE_CHECKING:
    from slackwater.dev.postgres import PostgresServer

NAME = "the connector"
LOOK = ConnectorReport(read_ms=0, since_ms=0)


class Connect:
    """Kafka Connect, as far as a watch asks it."""

    def __init__(self) -> None:
        self.properties = {**reading_properties("inv"), "database.password": "open sesame"}
        self.state = "RUNNING"
        self.task: dict[str, Any] = {"id": 0, "state": "RUNNING"}
        self.has_connector = True

    def answer(self, path: str) -> Any:
        if path == "/connectors?expand=info":
            return {NAME: {"info": {"config": self.properties}}} if self.has_connector else {}
        if not self.has_connector:
            return None
        if path.endswith("/status"):
            return {"connector": {"state": self.state}, "tasks": [self.task]}
        return self.properties


@contextmanager
def served(connect: Connect) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = connect.answer(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(found))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def connect() -> Connect:
    return Connect()


@pytest.fixture
def witness(connect: Connect) -> Iterator[ConnectWitness]:
    with served(connect) as url:
        yield ConnectWitness("inv", ConnectRest(url, timedelta(seconds=60)))


def test_the_connector_of_a_source_is_found_by_its_prefix(witness: ConnectWitness) -> None:
    seen = witness.look(LOOK)

    assert (seen["name"], seen["state"], seen["tasks"][0].state) == (NAME, "RUNNING", "RUNNING")
    assert [each.verdict for each in seen["findings"]] == [Verdict.OK]


def test_a_report_holds_no_secret(connect: Connect, witness: ConnectWitness) -> None:
    connect.task = {"id": 0, "state": "FAILED", "trace": "Refused: open sesame\n\tat java"}

    seen = witness.look(LOOK)

    assert "open sesame" not in repr(seen)
    assert seen["tasks"][0].error == "Refused: ********"
    assert seen["properties"]["slot.name"] == "inv"


def test_a_connector_that_was_deleted_is_absent_and_found_again(
    connect: Connect, witness: ConnectWitness
) -> None:
    witness.look(LOOK)
    connect.has_connector = False

    assert witness.look(LOOK) == {"state": "ABSENT"}
    assert witness.look(LOOK) == {"state": "ABSENT"}

    connect.has_connector = True
    assert witness.look(LOOK)["state"] == "RUNNING"


def test_a_source_that_never_had_a_connector_misses_none(connect: Connect, witness: ConnectWitness) -> None:
    connect.has_connector = False

    assert witness.look(LOOK) == {}
    assert witness.look(replace(LOOK, heartbeat_ms=1)) == {"state": "ABSENT"}


def test_a_cluster_that_does_not_answer_is_an_error() -> None:
    witness = ConnectWitness("inv", ConnectRest("http://127.0.0.1:1", timedelta(seconds=60)))

    assert "Kafka Connect does not answer" in witness.look(LOOK)["connect_error"]


def test_a_setting_that_changes_values_is_a_fault(connect: Connect, witness: ConnectWitness) -> None:
    connect.properties["time.precision.mode"] = "connect"

    findings = witness.look(LOOK)["findings"]

    assert [(each.subject, each.verdict) for each in findings] == [("time.precision.mode", Verdict.FAULT)]


class Scripted(Witness):
    """Says what the test wants."""

    def __init__(self) -> None:
        self.seen: Watched = {}

    def look(self, report: ConnectorReport) -> Watched:
        return self.seen


def test_a_report_says_since_when_it_has_been_so(clock: Clock) -> None:
    scripted = Scripted()
    watch = ConnectorWatch("inv", [scripted], clock)

    def look(**seen: object) -> ConnectorReport:
        scripted.seen = seen
        clock.seconds += 2  # type: ignore[attr-defined]
        watch.look()
        assert watch.report is not None
        return watch.report

    first, second = look(state="RUNNING"), look(state="RUNNING", heartbeat_ms=5)
    assert (second.since_ms, second.read_ms) == (first.since_ms, first.read_ms + 2000)
    slot = SlotReport(name="inv", exists=True)
    assert look(state="RUNNING", slot=slot).since_ms == second.read_ms + 2000


def test_no_fault_began_after_it_was_seen_even_if_the_clock_is_set_back(clock: Clock) -> None:
    watch = ConnectorWatch("inv", [Scripted()], clock)
    began = watch.look()
    clock.seconds -= 60  # type: ignore[attr-defined]
    for _ in range(2):
        clock.seconds += 2  # type: ignore[attr-defined]
        seen = watch.look()
    assert (seen.since_ms, seen.read_ms) == (began.read_ms - 58_000, began.read_ms - 56_000)


REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
ABSENT = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
SOUND = ConnectorReport(read_ms=1, since_ms=1, properties={"topic.prefix": "inv"})
FAULTY = ConnectorReport(
    read_ms=2,
    since_ms=2,
    properties={"topic.prefix": "inv"},
    findings=(Finding("time.precision.mode", Verdict.FAULT, "connect, but must be adaptive"),),
)


def hold_after(*looks: tuple[ConnectorReport | None, int], has_read: bool = True) -> FaultHold:
    hold = FaultHold("inv", 3, 0)
    for report, newest_lsn in looks:
        hold.update(report, newest_lsn, has_read=has_read)
    return hold


def reason_after(*looks: tuple[ConnectorReport | None, int]) -> str:
    return hold_after(*looks).reason


def refusal(since_lsn: int, newest_lsn: int, reason: str = "time.precision.mode: wrong") -> Refusal:
    return Refusal(source="inv", timeline=3, since_lsn=since_lsn, newest_lsn=newest_lsn, reason=reason)


def test_what_ends_a_watch_is_kept(clock: Clock) -> None:
    class Broken(Witness):
        def look(self, report: ConnectorReport) -> Watched:
            raise ZeroDivisionError

        def close(self) -> None:
            raise AssertionError

    watch = ConnectorWatch("inv", (Broken(),), clock)
    with pytest.raises(ZeroDivisionError):
        watch.run()
    assert isinstance(watch.failure, ZeroDivisionError)


def test_a_fault_that_was_gone_before_anything_was_read_leaves_nothing_behind() -> None:
    assert reason_after((SOUND, 10)) == ""
    assert "time.precision.mode" in hold_after((SOUND, 0), (FAULTY, 0), has_read=False).reason
    assert hold_after((SOUND, 0), (FAULTY, 0), (SOUND, 0), has_read=False).reason == ""
    assert hold_after((SOUND, 0), (FAULTY, 0), has_read=False).unrecorded is None


def test_commits_that_may_be_written_with_a_fault_are_not_shown_and_the_reason_says_what_to_do() -> None:
    reason = reason_after((SOUND, 10), (FAULTY, 20), (SOUND, 30), (SOUND, 40))

    assert reason == (
        "time.precision.mode: connect, but must be adaptive; it was seen earlier. Values of commits after "
        "0/A may be wrong, so no cut is published. Let the connector take a new snapshot, and start the "
        "sidecars with timeline 4; or, if you know that the values are right, `slackwater source skip "
        "--source inv --to LSN` with the newest commit before the correction, at least 0/1E"
    )


def test_rows_of_a_snapshot_may_have_been_written_with_the_fault() -> None:
    assert "Values of all commits may be wrong" in reason_after((SOUND, 0), (FAULTY, 0), (SOUND, 0))


def test_a_refusal_is_recorded_when_it_begins_and_when_the_fault_is_gone() -> None:
    text = "time.precision.mode: connect, but must be adaptive"
    hold = hold_after((SOUND, 10))
    unrecorded = []
    for report, newest_lsn in ((FAULTY, 20), (FAULTY, 25), (SOUND, 30), (SOUND, 40)):
        hold.update(report, newest_lsn, has_read=True)
        unrecorded.append(hold.unrecorded)
        if unrecorded[-1] is not None:
            hold.take(unrecorded[-1])

    assert unrecorded == [refusal(10, 20, text), None, refusal(10, 30, text), None]


def test_a_refusal_in_the_log_holds_until_a_skip_to_its_newest_commit() -> None:
    hold = hold_after((SOUND, 10))
    hold.take(refusal(5, 20))
    hold.update(SOUND, 40, has_read=True)
    assert "time.precision.mode: wrong; it was seen earlier. Values of commits after 0/5" in hold.reason
    hold.skip_to(19)
    assert hold.reason != ""
    hold.skip_to(20)
    assert (hold.reason, hold.unrecorded) == ("", None)


def test_a_word_that_reaches_the_newest_commit_counts_as_soon_as_that_one_is_known() -> None:
    hold = FaultHold("inv", 3, 0, sees_connector=True)
    hold.take(refusal(5, 20))
    assert [hold.needs_bound] == [False], "nobody has looked"
    hold.skip_to(30)
    hold.skip_to(20)
    hold.update(SOUND, 15, has_read=True)
    assert (hold.reason != "", hold.needs_bound) == (True, True)
    hold.bound(30)
    assert (hold.reason, hold.needs_bound) == ("", False)
    hold.take(refusal(30, 40))
    assert hold.needs_bound, "a later fault is another one"
    hold.bound(40)
    assert "at least 0/28" in hold.reason


def test_a_fault_that_comes_back_may_have_more_commits() -> None:
    hold = FaultHold("inv", 3, 0, sees_connector=True)
    hold.update(FAULTY, 20, has_read=True)
    hold.update(SOUND, 20, has_read=True)
    hold.bound(20)
    hold.update(FAULTY, 25, has_read=True)
    hold.update(SOUND, 25, has_read=True)
    hold.skip_to(25)
    assert hold.needs_bound
    hold.bound(28)
    assert "at least 0/1C" in hold.reason


def test_a_fault_that_is_still_seen_begins_a_new_refusal_after_a_skip() -> None:
    hold = hold_after((SOUND, 10), (FAULTY, 20))
    hold.take(refusal(10, 20))
    hold.skip_to(20)
    hold.update(FAULTY, 20, has_read=True)
    recorded = hold.unrecorded
    assert recorded is not None
    assert (recorded.since_lsn, recorded.newest_lsn) == (20, 20)


def test_a_fault_is_not_forgotten_while_nobody_can_look() -> None:
    blind = ConnectorReport(read_ms=3, since_ms=3, connect_error="refused")

    assert "time.precision.mode" in reason_after((FAULTY, 20), (blind, 20), (None, 20))
    assert reason_after((blind, 10)) == ""


def test_a_fault_that_is_seen_without_the_connector_s_properties_counts_and_ends() -> None:
    blind = ConnectorReport(read_ms=3, since_ms=3)
    compacted = replace(blind, findings=(Finding("topic inv.a", Verdict.FAULT, "is compacted"),))

    assert reason_after((blind, 10), (compacted, 20)).startswith("topic inv.a: is compacted; correct it")
    assert "it was seen earlier" in reason_after((blind, 10), (compacted, 20), (blind, 30))
    assert hold_after((blind, 0), (compacted, 0), (blind, 0), has_read=False).reason == ""


# --- topics


class Topics:
    """Knows the cleanup policies of topics; an error instead of a policy is raised."""

    def __init__(self, policies: Mapping[str, str | KafkaError | TimeoutError]) -> None:
        self.policies = dict(policies)

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics=self.policies)

    def describe_configs(self, resources: Sequence[Any], request_timeout: float) -> dict[Any, Any]:
        def result(name: str) -> dict[str, SimpleNamespace]:
            policy = self.policies[name]
            if isinstance(policy, KafkaError):
                raise KafkaException(policy)
            if isinstance(policy, TimeoutError):
                raise policy
            return {"cleanup.policy": SimpleNamespace(value=policy)}

        return {each: SimpleNamespace(result=lambda _, name=each.name: result(name)) for each in resources}


def compacted(witness: TopicsWitness) -> list[str]:
    """The topics that it calls compacted, at the look at which it asks next."""
    for _ in range(4):
        witness.look(LOOK)
    return [finding.subject for finding in witness.look(LOOK)["findings"]]


def test_compacted_topics_of_the_source_are_faults() -> None:
    topics = Topics({"inv.a": "delete", "inv.b": "compact", "inv.c": "compact,delete", "other": "compact"})
    witness = TopicsWitness(lambda topic: topic.startswith("inv."), topics)  # type: ignore[arg-type]

    (first, second) = witness.look(LOOK)["findings"]
    assert (first.subject, second.subject) == ("topic inv.b", "topic inv.c")
    assert first.verdict is Verdict.FAULT
    assert "cleanup.policy is compact, but has to be delete" in first.text
    assert witness.look(replace(LOOK, findings=(first,)))["findings"][0] is first, "others' findings stay"

    topics.policies |= {"inv.b": "delete", "inv.c": "delete", "inv.a": "compact"}
    assert compacted(witness) == ["topic inv.a"]


def test_topics_that_do_not_answer_in_time_leave_what_was_seen() -> None:
    topics = Topics({"inv.a": "compact"})
    witness = TopicsWitness(lambda _: True, topics)  # type: ignore[arg-type]
    assert compacted(witness) == ["topic inv.a"]
    topics.policies["inv.a"] = TimeoutError()
    assert compacted(witness) == ["topic inv.a"]
    topics.policies["inv.a"] = "delete"
    assert compacted(witness) == []


def test_topics_that_may_not_be_looked_at_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    topics = Topics({"inv.a": REFUSED, "inv.b": ABSENT, "inv.c": "compact"})
    witness = TopicsWitness(lambda _: True, topics)  # type: ignore[arg-type]

    assert compacted(witness) == ["topic inv.c"]
    assert compacted(witness) == ["topic inv.c"]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "Grant DescribeConfigs on topic inv.a" in line


def test_what_was_seen_of_topics_stays_while_kafka_is_away() -> None:
    topics = Topics({"inv.a": "compact"})
    witness = TopicsWitness(lambda _: True, topics)  # type: ignore[arg-type]
    assert compacted(witness) == ["topic inv.a"]

    topics.policies["inv.a"] = KafkaError(KafkaError._TRANSPORT)  # noqa: SLF001
    assert compacted(witness) == ["topic inv.a"]


def test_a_source_that_begins_with_a_fault_shows_nothing() -> None:
    assert reason_after((FAULTY, 0)) != ""


# --- heartbeats


class Heartbeats:
    """A reader of their topic, which is absent or may not be read, or has some."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.records: list[SimpleNamespace] = []

    def write(self, written_ms: int = 5) -> None:
        offset = len(self.records)
        self.records.append(SimpleNamespace(offset=lambda: offset, timestamp=lambda: (1, written_ms)))

    def newest(self, place: tuple[str, int], count: int) -> list[SimpleNamespace]:
        assert place == ("__debezium-heartbeat.inv", 0)
        if self.error is not None:
            raise KafkaException(self.error)
        return self.records[-count:]


def heard(reader: Heartbeats, clock: Clock | None = None) -> HeartbeatWitness:
    return HeartbeatWitness("inv", reader, clock or SystemClock())  # type: ignore[arg-type]  # as far as it is used


def test_heartbeats_that_may_not_be_read_are_one_line_in_the_log_and_no_silence_of_the_connector(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = Heartbeats()
    witness = heard(reader)
    reader.error = REFUSED
    assert [witness.look(LOOK), witness.look(LOOK)] == [{}, {}]
    assert caplog.text.count("Grant Read on topic __debezium-heartbeat.inv") == len(caplog.records) == 1
    reader.error = None
    reader.write()
    assert witness.look(LOOK) == {"heartbeat_ms": 5}
    reader.error = REFUSED
    assert witness.look(LOOK) == {}
    reader.error = None
    reader.write(7)
    assert witness.look(LOOK) == {"heartbeat_ms": 7}
    assert len(caplog.records) == 1


def test_a_heartbeat_that_comes_while_it_is_watched_was_written_now_whatever_its_writer_says(
    clock: Clock,
) -> None:
    reader = Heartbeats()
    witness = heard(reader, clock)
    for written_ms in (5, 6):
        reader.write(written_ms)
        seen = witness.look(LOOK)
    assert seen == {"heartbeat_ms": epoch_ms(clock.now())}
    clock.seconds += 2  # type: ignore[attr-defined]
    assert witness.look(LOOK) == seen


def test_a_source_without_heartbeats_is_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    reader = Heartbeats()
    reader.error = ABSENT
    assert heard(reader).look(LOOK) == {}
    assert not caplog.records


def test_a_broker_that_does_not_answer_is_reported_until_it_does() -> None:
    reader = Heartbeats()
    witness = heard(reader)
    reader.write()
    assert witness.look(LOOK) == {"heartbeat_ms": 5}
    reader.error = KafkaError(KafkaError._ALL_BROKERS_DOWN, "no broker")  # noqa: SLF001
    assert witness.look(LOOK) == {"heartbeat_ms": 5, "kafka_error": "no broker"}
    reader.error = None
    assert witness.look(LOOK) == {"heartbeat_ms": 5}


@pytest.mark.integration
def test_a_slot_is_in_use_while_a_connector_takes_the_snapshot_before(
    postgres_server: "PostgresServer",
) -> None:
    name = f"watched_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = postgres_server.dsn(name)
    witness = DatabaseWitness(name, url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        connection.execute("SET application_name = 'Debezium General'")
        assert not witness.look(LOOK)["slot"].is_active
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT FROM pg_class")
        assert witness.look(LOOK)["slot"].is_active
        connection.execute("COMMIT")
        assert not witness.look(LOOK)["slot"].is_active
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    witness.close()


@pytest.mark.integration
@pytest.mark.parametrize("stops_in_look", [False, True])
def test_a_database_that_hangs_is_an_error(
    postgres_server: "PostgresServer", monkeypatch: pytest.MonkeyPatch, stops_in_look: bool
) -> None:
    """A stopped process keeps its connections, and no time-out of its own."""
    monkeypatch.setattr(watch, "_LONGEST_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(watch, "_SIGN_OF_LIFE_SECONDS", 0.5)
    processes: list[int] = []

    def note(connection: "psycopg.Connection", _: ConnectorReport) -> list[Finding]:
        if not processes:
            processes.append(connection.info.backend_pid)
            if stops_in_look:
                os.kill(processes[0], signal.SIGSTOP)
                connection.execute("SELECT 1")
        return []

    witness = DatabaseWitness("inv", postgres_server.dsn(), note)
    try:
        if not stops_in_look:
            assert not witness.look(LOOK)["slot"].exists
            os.kill(processes[0], signal.SIGSTOP)
        assert witness.look(LOOK)["database_error"]
    finally:
        os.kill(processes[0], signal.SIGCONT)
    assert not witness.look(LOOK)["slot"].exists, "it is asked again"
    witness.close()


class InTurn(Witness):
    """Sees one state after the other, two seconds apart, and the last one for good."""

    def __init__(self, clock: Clock, *states: str) -> None:
        self._clock = clock
        self._states = states
        self.looks = 0

    def look(self, report: ConnectorReport) -> Watched:
        self.looks += 1
        self._clock.seconds += 2  # type: ignore[attr-defined]
        return {"state": self._states[min(self.looks, len(self._states)) - 1]}


@pytest.mark.parametrize(
    ("states", "lasts_ms", "looks"),
    [
        (["FAILED", "RUNNING"], 0, 2),
        (["PAUSED"], 0, 3),
        (["FAILED", "PAUSED"], 0, 4),
        (["PAUSED"], 13_000, 7),
        (["PAUSED"], 60_000, 10),
    ],
)
def test_what_passes_by_itself_is_waited_for_and_what_stays_until_it_counts_as_wrong(
    clock: Clock, states: list[str], lasts_ms: int, looks: int
) -> None:
    witness = InTurn(clock, *states)
    watch = ConnectorWatch("inv", [witness], clock)
    watch.close()  # nothing is waited for

    def is_wrong(report: ConnectorReport) -> bool:
        return report.state != "RUNNING" and report.read_ms - report.since_ms >= lasts_ms

    assert watch.settled(is_wrong).state == states[-1]
    assert witness.looks == looks


def test_a_slot_that_nobody_reads_is_looked_at_until_it_is_named(clock: Clock) -> None:
    witness = InTurn(clock, "RUNNING")
    tasks, slot = (TaskReport(number=0, state="RUNNING"),), SlotReport(name="inv", exists=True)
    others = Scripted()
    others.seen = {"name": NAME, "tasks": tasks, "slot": slot}
    watch = ConnectorWatch("inv", [witness, others], clock)
    watch.close()  # nothing is waited for

    def faults(report: ConnectorReport) -> list[str]:
        signs = SourceSigns(source="inv")
        return [found.evidence for found in faults_of_connector(signs, report, report.read_ms)]

    (found,) = faults(watch.settled(lambda report: bool(faults(report))))
    assert found.startswith("no connector reads the replication slot inv")


class Passing:
    """Time that passes while a watch waits, until the given number of seconds is over."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._end = clock, clock.monotonic() + seconds

    def wait(self, seconds: float) -> bool:
        self._clock.seconds += seconds  # type: ignore[attr-defined]
        return self._clock.monotonic() >= self._end

    def set(self) -> None:
        raise AssertionError


class Breaking(Witness):
    """Sees a sound connector until it breaks; an answer that does not come is waited for."""

    def __init__(self, clock: Clock, breaks_after: float, seen: Watched) -> None:
        self._clock, self._seen = clock, seen
        self.is_silent = "kafka_error" in seen or "connect_error" in seen
        self.breaks_at = clock.monotonic() + breaks_after

    def look(self, report: ConnectorReport) -> Watched:
        if self._clock.monotonic() < self.breaks_at:
            slot = SlotReport(name="inv", exists=True, is_active=True)
            return {"name": NAME, "state": "RUNNING", "tasks": TASKS, "slot": slot}
        if self.is_silent:
            self._clock.seconds += 2  # type: ignore[attr-defined]
        return self._seen


TASKS = (TaskReport(number=0, state="RUNNING"),)
RUNNING: Watched = {"name": NAME, "state": "RUNNING", "tasks": TASKS}


@pytest.mark.parametrize("breaks_after", [20, 20.5, 21, 21.5])
@pytest.mark.parametrize(
    "seen",
    [
        {"kafka_error": "timed out"},
        {"connect_error": "timed out"},
        {"database_error": "refused", **RUNNING},
        {"slot": SlotReport(name="inv", exists=False), **RUNNING},
        {"slot": SlotReport(name="inv", exists=True, wal_status="lost"), **RUNNING},
        {"slot": SlotReport(name="inv", exists=True, is_active=False), **RUNNING},
    ],
)
def test_what_breaks_is_named_within_six_seconds_and_published_in_another_one(
    clock: Clock, seen: Watched, breaks_after: float
) -> None:
    witness, named_at = Breaking(clock, breaks_after, seen), list[float]()

    class Judging(ConnectorWatch):
        def look(self) -> ConnectorReport:
            report = super().look()
            if any(faults_of_connector(SourceSigns(source="inv"), report, report.read_ms)):
                named_at.append(clock.monotonic())
            return report

    watch = Judging("inv", [witness], clock)
    watch._over = Passing(clock, 60)  # type: ignore[assignment]  # noqa: SLF001 - the only wait of a watch
    watch.run()
    assert 0 <= named_at[0] - witness.breaks_at <= (6 if witness.is_silent else 5)
