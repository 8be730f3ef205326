"""What a run learns about the connector of its source, from Kafka Connect or from the sidecar."""

import json
import re
import tomllib
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slackwater.cdc.connector import property_findings, reading_properties
from slackwater.cuts import FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.engine.settings import FormProof
from slackwater.pipeline import source_check
from slackwater.pipeline.definition import needed_columns
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source_check import ConnectorCheck, prove_forms, refuse_unknown_connector
from slackwater.protocol import (
    ConfigError,
    ConnectorReport,
    Finding,
    InputError,
    RedisSettings,
    SlackwaterError,
    Verdict,
)
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.fakes.memory import InMemoryMarkerStore

if TYPE_CHECKING:
    from slackwater.dev import RedisServer

RIGHT = reading_properties("inv")
WRONG = RIGHT | {"time.precision.mode": "connect", "binary.handling.mode": "hex"}


class Connect:
    """Kafka Connect, with a configuration that may change; an error: it does not answer."""

    def __init__(self, properties: Mapping[str, str] | SlackwaterError | None) -> None:
        self.properties = properties

    def __call__(self, source: str) -> Mapping[str, str] | None:
        assert source == "inv"
        if isinstance(self.properties, SlackwaterError):
            raise self.properties
        return self.properties


def test_another_form_of_values_is_refused_by_name() -> None:
    check = ConnectorCheck("inv", Connect(WRONG), None)
    check.look()
    with pytest.raises(InputError, match=r"source inv .* time\.precision\.mode: connect.*1 more") as caught:
        check.check()
    assert "new snapshot" in caught.value.hint


def test_a_connector_that_is_right_is_read() -> None:
    check = ConnectorCheck("inv", Connect(RIGHT), None)
    assert check.look() == []
    assert check.is_known
    check.check()


def test_what_only_costs_the_database_ends_no_run() -> None:
    check = ConnectorCheck("inv", Connect(RIGHT | {"heartbeat.interval.ms": "0"}), None)
    assert check.look() == []


def test_a_table_that_the_connector_leaves_out_is_refused() -> None:
    used = {"inventory.orders": ("id",)}
    check = ConnectorCheck("inv", Connect(RIGHT | {"table.include.list": r"inventory\.lines"}), None, used)
    check.look()
    with pytest.raises(InputError, match=r"table inventory\.orders: .* table\.include\.list leaves it out"):
        check.check()


@pytest.mark.parametrize("answer", [None, SlackwaterError("away")])
def test_without_an_answer_nothing_is_known(answer: SlackwaterError | None) -> None:
    check = ConnectorCheck("inv", Connect(answer), None)
    assert check.look() == []
    assert not check.is_known
    check.check()


def test_a_fault_that_was_seen_is_not_forgotten_while_nobody_answers() -> None:
    connect = Connect(WRONG)
    check = ConnectorCheck("inv", connect, None)
    check.look()
    connect.properties = SlackwaterError("away")
    check.look()
    with pytest.raises(InputError):
        check.check()


def test_a_configuration_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_check, "CONNECTOR_SECONDS", 0.01)
    connect = Connect(RIGHT)
    check = ConnectorCheck("inv", connect, None)
    check.look()
    check.begin()
    try:
        connect.properties = WRONG
        check_until_refused = iter(check.check, check)
        with pytest.raises(InputError):
            all(each is None for each in check_until_refused)
    finally:
        check.close()


def test_columns_whose_default_may_stand_for_null_are_known() -> None:
    columns = "id int PRIMARY KEY, a int DEFAULT 1, b int, c int NOT NULL DEFAULT 2, d int DEFAULT 3"
    ddl = f"CREATE TABLE s.t ({columns});"
    view = "SELECT TRANSACTIONALLY id, a, b, c FROM s.t"  # not d
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"": ddl}))
    with pytest.raises(
        ConfigError, match=r"known: column s\.t\.a has a DEFAULT, [^;]*; set"
    ):  # no view needs d
        refuse_unknown_connector(needed_columns(plan))


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_columns_that_may_be_out_of_line_are_refused_if_nobody_knows_the_connector(identity: str) -> None:
    columns = (
        "id varchar(9) PRIMARY KEY, n int, note text, doc jsonb, raw bytea, tags text[], kind s.mood, "
        "ref uuid, made timestamptz, left_out text"
    )
    ddl = f"CREATE TYPE s.mood AS ENUM ('a'); CREATE TABLE s.t ({columns});"
    ddl += f"ALTER TABLE s.t REPLICA IDENTITY {identity};"
    view = "SELECT TRANSACTIONALLY id, n, note, doc, to_base64(raw) AS raw, tags, kind, ref, made FROM s.t"
    plan = compile_pipeline([("v.sql", view)], parse_catalog({"": ddl}))
    if identity == "FULL":
        refuse_unknown_connector(needed_columns(plan))
        return
    with pytest.raises(ConfigError) as caught:
        refuse_unknown_connector(needed_columns(plan))
    assert "columns s.t.id, s.t.note, s.t.doc, s.t.raw, s.t.tags may be stored" in caught.value.problem
    assert "unavailable.value.placeholder" in caught.value.problem
    for remedy in ("connect.url", "[connect.properties]"):
        assert remedy in caught.value.hint


def test_a_plan_without_such_columns_runs_without_a_known_connector() -> None:
    ddl = "CREATE TABLE s.t (id int PRIMARY KEY, n int DEFAULT 1, m int NOT NULL DEFAULT 1, note text);"
    catalog = parse_catalog({"": ddl})
    one = compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id, m FROM s.t")], catalog)
    refuse_unknown_connector(needed_columns(one))
    both = compile_pipeline([("v.sql", "SELECT TRANSACTIONALLY id, n, note FROM s.t")], catalog)
    with pytest.raises(ConfigError, match=r"column s\.t\.n has a DEFAULT.*; column s\.t\.note may be stored"):
        refuse_unknown_connector(needed_columns(both))


FROM_CONNECTOR = b'{"op":"c","after":{},"source":{"version":"3.7.0.Final","schema":"s","table":"t"}}'
OWN = FROM_CONNECTOR.replace(b"3.7.0.Final", b"slackwater")


@pytest.mark.parametrize(
    ("stated", "first", "sees_writers", "proof"),
    [
        (RIGHT, [FROM_CONNECTOR], True, FormProof.CONFIGURATION),
        ({}, [OWN, OWN], True, FormProof.WRITER),
        ({}, [OWN], False, FormProof.WRITER),
        ({}, [], True, FormProof.WRITER),
        ({}, [], False, FormProof.VALUES),
        ({}, [OWN, FROM_CONNECTOR], True, FormProof.VALUES),
    ],
)
def test_the_forms_of_typed_rows_are_proven_as_those_of_views(
    monkeypatch: pytest.MonkeyPatch,
    stated: Mapping[str, str],
    first: list[bytes],
    sees_writers: bool,
    proof: FormProof,
) -> None:
    asked: list[object] = []

    def first_values(_: object, topics: list[str], *__: object) -> list[bytes]:
        asked.append(topics)
        return first

    monkeypatch.setattr(source_check, "first_values", first_values)
    options = {"source": "inv", "bootstrap": "b:1", "tables": "s.t,s.u", "topics": '{"s.t": "routed"}'}
    options["connect_properties"] = json.dumps(stated)
    parsed = SourceOptions.parse(options)
    plain = parse_catalog({"": "CREATE TABLE s.t (id int PRIMARY KEY, made timestamptz);"}).tables[0]
    assert prove_forms(parsed, plain, sees_writers=sees_writers) is proof
    assert asked == ([] if stated else [["routed"]])
    text = parse_catalog({"": "CREATE TABLE s.t (id int PRIMARY KEY, note text);"}).tables[0]
    if proof is FormProof.VALUES:
        with pytest.raises(ConfigError, match=r"column s\.t\.note may be stored out of line") as caught:
            prove_forms(parsed, text, sees_writers=sees_writers)
        assert "connect_properties" in caught.value.hint
    else:
        assert prove_forms(parsed, text, sees_writers=sees_writers) is proof


def test_typed_rows_of_a_connector_that_writes_other_values_are_refused() -> None:
    options = {"source": "inv", "bootstrap": "b:1", "tables": "s.t", "connect_properties": json.dumps(WRONG)}
    table = parse_catalog({"": "CREATE TABLE s.t (id int PRIMARY KEY);"}).tables[0]
    with pytest.raises(InputError, match=r"time\.precision\.mode"):
        prove_forms(SourceOptions.parse(options), table, sees_writers=True)


def test_what_is_stated_of_the_connector_counts_if_nobody_can_be_asked() -> None:
    check = ConnectorCheck("inv", None, None, declared=RIGHT)
    assert (check.look(), check.is_known) == ([], True)
    wrong = ConnectorCheck("inv", None, None, declared=RIGHT | {"unavailable.value.placeholder": "gone"})
    wrong.look()
    with pytest.raises(InputError, match=r"unavailable\.value\.placeholder: gone, but must be __debezium"):
        wrong.check()
    other = ConnectorCheck("inv", None, None, declared=reading_properties("shop"))
    assert (other.look(), other.is_known) == ([], False), "it is the connector of another source"


def test_the_documented_statement_of_a_connector_is_one_with_which_views_are_right() -> None:
    page = (Path(__file__).parents[4] / "docs" / "connector.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"```toml\n(\[connect\.properties\].*?)```", page, re.DOTALL)
    check = ConnectorCheck("inv", None, None, declared=tomllib.loads(stated)["connect"]["properties"])
    assert (check.look(), check.is_known) == ([], True)


def test_what_kafka_connect_has_said_outweighs_what_is_stated() -> None:
    connect = Connect(WRONG)
    check = ConnectorCheck("inv", connect, None, declared=RIGHT)
    check.look()
    connect.properties = SlackwaterError("away")
    check.look()
    with pytest.raises(InputError, match=r"time\.precision\.mode"):
        check.check()


def test_why_the_sidecar_publishes_no_cut_is_known_until_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = InMemoryMarkerStore()
    monkeypatch.setattr(store, "close", lambda: None, raising=False)
    monkeypatch.setattr(RedisMarkerStore, "connect", lambda *_, **__: store)
    check = ConnectorCheck("inv", Connect(RIGHT), RedisSettings("redis://h:1"))

    def refusal(state: FrontierState) -> str:
        store.set_status("inv", FrontierStatus(state=state, detail="a fault", wall_ms=1, sidecar="a"))
        assert check.look() == []
        return check.refusal

    assert refusal(FrontierState.MISCONFIGURED) == "a fault"
    assert refusal(FrontierState.WAITING) == ""
    assert refusal(FrontierState.REGRESSED) == refusal(FrontierState.BAD_INPUT) == "a fault"

    def away(*_: object, **__: object) -> None:
        raise SlackwaterError("away")

    monkeypatch.setattr(RedisMarkerStore, "connect", away)
    assert refusal(FrontierState.RUNNING) == "a fault"


@pytest.mark.integration
def test_what_the_sidecar_has_learnt_counts_if_connect_is_not_asked(redis_server: "RedisServer") -> None:
    source = f"s{uuid.uuid4().hex}"
    with closing(RedisMarkerStore.connect(redis_server.url)) as store:
        for properties in (RIGHT, WRONG):
            report = ConnectorReport(
                read_ms=1, since_ms=1, properties=properties, findings=tuple(property_findings(properties))
            )
            status = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="a", connector=report)
            store.set_status(source, status)
            found = ConnectorCheck(source, None, RedisSettings(redis_server.url)).look()
            assert [finding.subject for finding in found] == (
                [] if properties is RIGHT else ["time.precision.mode", "binary.handling.mode"]
            )


@pytest.mark.integration
def test_a_table_that_the_sidecar_has_a_finding_about_is_refused(redis_server: "RedisServer") -> None:
    source, redis = f"s{uuid.uuid4().hex}", RedisSettings(redis_server.url)
    finding = Finding("table s.t", Verdict.PROBLEM, "the publication does not contain it")
    with closing(RedisMarkerStore.connect(redis_server.url)) as store:
        report = ConnectorReport(read_ms=1, since_ms=1, findings=(finding,))
        status = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="a", connector=report)
        store.set_status(source, status)
        assert ConnectorCheck(source, None, redis, {"s.t": ("id",)}).look() == [finding]
        other = ConnectorCheck(source, None, redis, {"s.other": ("id",)})
        assert other.look() == []
        assert not other.is_known, "a sidecar that sees only the database does not know the connector"
