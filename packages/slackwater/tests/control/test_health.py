"""Who is blamed: one cause from the facts, and nobody else."""

from dataclasses import replace

import pytest

from slackwater.control import (
    ComponentKind,
    DelayCause,
    PipelineNode,
    SourceSigns,
    fault_of_run,
    faults_of_source,
    make_topology,
)
from slackwater.protocol import (
    ConnectorReport,
    FrontierState,
    FrontierStatus,
    PipelineEntry,
    SlotReport,
    TaskReport,
)
from slackwater_lab.fakes.topics import REGISTRATION

NOW_MS = 1_000_000
SLOT = SlotReport(name="inv", exists=True, is_active=True, wal_status="reserved", retained_bytes=100)
CONNECTOR = ConnectorReport(
    read_ms=NOW_MS - 1_000,
    since_ms=NOW_MS - 5_000,
    name="inv",
    state="RUNNING",
    tasks=(TaskReport(number=0, state="RUNNING"),),
    properties={"heartbeat.interval.ms": "3000"},
    heartbeat_ms=NOW_MS - 4_000,
    slot=SLOT,
)
STATUS = FrontierStatus(
    state=FrontierState.RUNNING, wall_ms=NOW_MS - 1_000, sidecar="host-7", connector=CONNECTOR
)
SIGNS = SourceSigns(source="inv", status=STATUS)
UNKNOWN = ConnectorReport(read_ms=NOW_MS - 1_000, since_ms=NOW_MS - 5_000)


def blamed(signs: SourceSigns) -> DelayCause | None:
    found = list(faults_of_source(signs, NOW_MS))
    assert len(found) <= 1
    return found[0] if found else None


def pipeline(heard_ms: int) -> PipelineNode:
    entries = [PipelineEntry(offset=0, written_ms=heard_ms, record=REGISTRATION)]
    (found,) = make_topology(entries, {}, NOW_MS).pipelines
    return found


def said(**changes: object) -> SourceSigns:
    return replace(SIGNS, status=replace(STATUS, **changes))  # type: ignore[arg-type]


def of(report: ConnectorReport = CONNECTOR, **changes: object) -> DelayCause | None:
    return blamed(said(connector=replace(report, **changes)))  # type: ignore[arg-type]


def test_nobody_is_blamed_in_an_idle_source() -> None:
    assert blamed(SIGNS) is None
    assert blamed(said(connector=None)) is None
    assert of(UNKNOWN) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": FrontierState.STOPPED}, "has stopped"),
        ({"state": FrontierState.FAILED, "detail": "no right"}, "has failed: no right"),
        ({"wall_ms": NOW_MS - 8_000}, "last reported 8 s ago"),
    ],
)
def test_a_sidecar_that_is_away_is_blamed_and_what_it_last_said_is_not_believed(
    changes: dict[str, object], words: str
) -> None:
    paused = replace(CONNECTOR, state="PAUSED")
    found = blamed(said(connector=paused, **changes))
    assert found is not None
    assert found.kind is ComponentKind.SIDECAR
    assert words in found.evidence


def test_a_source_whose_sidecar_has_never_reported_has_none() -> None:
    found = blamed(SourceSigns(source="inv"))
    assert found is not None
    assert "no sidecar of source inv has reported" in found.evidence


def test_a_sidecar_is_silent_only_after_more_than_six_seconds() -> None:
    assert blamed(said(wall_ms=NOW_MS - 6_000)) is None
    assert blamed(said(wall_ms=NOW_MS - 6_001)) is not None


def test_of_several_faults_the_most_fundamental_is_named_and_the_next_one_when_it_is_gone() -> None:
    report = replace(
        CONNECTOR,
        since_ms=NOW_MS - 60_000,
        kafka_error="refused",
        database_error="refused",
        connect_error="refused",
        state="FAILED",
        error="broken",
        tasks=(TaskReport(number=0, state="FAILED", error="broken, too"),),
        slot=replace(SLOT, wal_status="lost", is_active=False),
        heartbeat_ms=NOW_MS - 60_000,
    )
    there = said(state=FrontierState.MISCONFIGURED, connector=report)
    signs = SourceSigns(source="inv", redis_error="away")
    named: list[tuple[ComponentKind, str]] = []
    for healed in (replace(signs, redis_error=""), there):
        found = blamed(signs)
        assert found is not None
        named.append((found.kind, found.evidence))
        signs = healed
    heals_connector: list[dict[str, object]] = [
        {"kafka_error": ""},
        {"database_error": ""},
        {"connect_error": ""},
        {"slot": replace(SLOT, is_active=False)},
        {"state": "RUNNING", "error": ""},
        {"tasks": CONNECTOR.tasks},
        {"slot": SLOT},
        {"heartbeat_ms": NOW_MS},
        {},
    ]
    for changes in heals_connector:
        found = blamed(signs)
        assert found is not None
        named.append((found.kind, found.evidence))
        report = replace(report, **changes)  # type: ignore[arg-type]
        signs = said(state=FrontierState.MISCONFIGURED, connector=report)
    kinds = [
        ComponentKind.REDIS,
        ComponentKind.SIDECAR,
        ComponentKind.KAFKA,
        ComponentKind.DATABASE,
        ComponentKind.CONNECT,
    ]
    assert [kind for kind, _ in named] == kinds + 6 * [ComponentKind.CONNECTOR]
    words = ["away", "no sidecar", "Kafka does not", "the database of", "Kafka Connect", "is lost"]
    words += ["connector inv has failed", "task 0 of", "no connector reads", "no heartbeat", "is refused"]
    assert [word for word, (_, evidence) in zip(words, named, strict=True) if word not in evidence] == []


def test_while_redis_is_away_nobody_else_is_blamed() -> None:
    found = blamed(SourceSigns(source="inv", redis_error="Redis does not answer"))
    assert found is not None
    assert found.kind is ComponentKind.REDIS


@pytest.mark.parametrize("state", ["PAUSED", "STOPPED", "FAILED", "ABSENT"])
def test_a_connector_that_does_not_run_is_blamed_with_its_slot(state: str) -> None:
    found = of(state=state, tasks=(), heartbeat_ms=NOW_MS - 60_000, slot=replace(SLOT, is_active=False))
    assert found is not None
    assert found.kind is ComponentKind.CONNECTOR
    assert (state == "ABSENT") == ("has no connector" in found.evidence)


def test_a_task_that_failed_is_blamed_with_its_error() -> None:
    found = of(tasks=(TaskReport(number=0, state="FAILED", error="no such slot"),))
    assert found is not None
    assert "task 0 of connector inv has failed: no such slot" in found.evidence


@pytest.mark.parametrize("tasks", [(), (TaskReport(number=0, state="UNASSIGNED"),)])
@pytest.mark.parametrize(("since_ms", "is_blamed"), [(NOW_MS - 2_000, False), (NOW_MS - 9_000, True)])
def test_a_task_that_starts_is_blamed_only_when_it_takes_long(
    tasks: tuple[TaskReport, ...], since_ms: int, is_blamed: bool
) -> None:
    assert bool(of(tasks=tasks, since_ms=since_ms)) == is_blamed


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"connect_error": "refused", "state": "", "tasks": ()}, ComponentKind.CONNECT),
        ({"database_error": "refused", "slot": None}, ComponentKind.DATABASE),
    ],
)
def test_a_server_that_does_not_answer_is_blamed_instead_of_the_connector(
    changes: dict[str, object], kind: ComponentKind
) -> None:
    away = replace(CONNECTOR, heartbeat_ms=NOW_MS - 60_000, **changes)  # type: ignore[arg-type]
    found = of(away)
    assert found is not None
    assert found.kind is kind
    assert of(replace(away, heartbeat_ms=NOW_MS), since_ms=NOW_MS - 2_000) is None  # one question may be lost


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (replace(SLOT, exists=False), "does not exist"),
        (replace(SLOT, is_active=False), "no connector reads the replication slot inv"),
        (replace(SLOT, is_active=False, wal_status="lost"), "is lost"),
        (replace(SLOT, wal_status="unreserved"), "does not advance"),
        (replace(SLOT, retained_bytes=2 << 30), "keeps 2,048.0 MiB of WAL"),
    ],
)
def test_a_slot_that_nobody_reads_is_evidence(slot: SlotReport, words: str) -> None:
    found = of(slot=slot, since_ms=NOW_MS - 20_000)
    assert found is not None
    assert words in found.evidence


@pytest.mark.parametrize(
    "slot",
    [
        replace(SLOT, retained_bytes=1 << 30),
        replace(SLOT, exists=False),
        replace(SLOT, is_active=False),
    ],
)
def test_a_slot_that_a_restart_may_explain_or_that_keeps_little_is_no_evidence(slot: SlotReport) -> None:
    assert of(slot=slot, since_ms=NOW_MS - 2_000) is None


@pytest.mark.parametrize("slot", [None, replace(SLOT, exists=False)])
def test_no_wal_is_kept_for_a_slot_that_is_not_there_or_not_known(slot: SlotReport | None) -> None:
    found = of(state="PAUSED", slot=slot)
    assert found is not None
    assert found.evidence == "connector inv is paused"


def test_a_slot_is_not_missed_before_there_was_a_connector() -> None:
    assert of(UNKNOWN, slot=SlotReport(name="inv", exists=False)) is None


@pytest.mark.parametrize(
    ("properties", "seen_ms", "silent_ms", "is_blamed"),
    [
        ({"heartbeat.interval.ms": "3000"}, None, 9_000, False),
        ({"heartbeat.interval.ms": "3000"}, None, 9_001, True),
        ({}, 3_000, 9_001, True),
        ({}, 500, 9_000, False),
        ({}, None, 30_000, False),
        ({}, None, 30_001, True),
    ],
)
def test_heartbeats_that_do_not_come_are_evidence(
    properties: dict[str, str], seen_ms: int | None, silent_ms: int, is_blamed: bool
) -> None:
    report = replace(UNKNOWN, since_ms=0, properties=properties, heartbeat_interval_ms=seen_ms)
    found = of(report, heartbeat_ms=NOW_MS - silent_ms)
    assert bool(found) == is_blamed


def test_a_snapshot_writes_no_heartbeats_and_is_not_blamed() -> None:
    report = replace(UNKNOWN, heartbeat_ms=NOW_MS - 600_000)
    assert blamed(said(state=FrontierState.WAITING, connector=report)) is None


def test_a_source_that_is_refused_is_the_connectors_fault() -> None:
    found = blamed(said(state=FrontierState.MISCONFIGURED, detail="time.precision.mode: connect"))
    assert found is not None
    assert "time.precision.mode" in found.evidence


def test_while_kafka_is_away_neither_connector_nor_run_is_blamed_for_what_only_kafka_could_tell() -> None:
    long_ago = NOW_MS - 60_000
    away = replace(CONNECTOR, kafka_error="no broker", heartbeat_ms=long_ago)
    found = blamed(said(connector=away))
    assert found is not None
    assert found.kind is ComponentKind.KAFKA
    assert "no broker" in found.evidence
    assert of(away, since_ms=away.read_ms - 1_000) is None, "it may pass by itself"
    run = pipeline(heard_ms=long_ago)
    assert fault_of_run(run, said(connector=away), NOW_MS) is None

    back = replace(away, kafka_error="")
    assert of(back) is None
    assert fault_of_run(run, said(connector=back), NOW_MS) is None
    later = NOW_MS + 60_000
    assert fault_of_run(run, said(connector=back), later) is not None
    assert [each.kind for each in faults_of_source(said(wall_ms=later, connector=back), later)] == [
        ComponentKind.CONNECTOR
    ]


def test_without_a_sidecar_that_is_known_a_silent_run_is_blamed() -> None:
    assert fault_of_run(pipeline(heard_ms=NOW_MS - 8_000), None, NOW_MS) is not None
    assert fault_of_run(pipeline(heard_ms=NOW_MS - 6_000), None, NOW_MS) is None


def test_a_connector_that_waits_before_it_connects_to_its_database_again_is_not_blamed() -> None:
    idle = replace(SLOT, is_active=False)
    away_until_ms = NOW_MS - 13_000
    assert of(slot=idle, database_since_ms=away_until_ms, heartbeat_ms=NOW_MS - 60_000) is None
    assert of(slot=idle, database_since_ms=away_until_ms - 1_000) is not None
    assert of(slot=idle) is not None, "the database was not away"
    assert of(UNKNOWN, heartbeat_ms=NOW_MS - 60_000, slot=idle) is not None, "it may be stopped"
