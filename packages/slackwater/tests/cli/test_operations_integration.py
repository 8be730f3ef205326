"""A sidecar as a process: its pages, its log, what the doctor says of it, and decisions it obeys."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from slackwater.cli import main
from slackwater.cli.examination import KafkaProbe, SourceFacts
from slackwater.command.listening import Role, new_token
from slackwater.cuts import FrontierState
from slackwater.dev import DevStack, KafkaBroker, RedisServer
from slackwater.protocol import KafkaSettings, SourceTopics, SystemClock, format_position
from slackwater.protocol.metrics import SIDECAR_METRICS
from slackwater_lab.debezium.records import transaction_values
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_lab.programs import Program, slackwater_command
from slackwater_lab.topics import make_topics
from slackwater_lab.workloads.workload import repository_pipeline

pytestmark = pytest.mark.integration

MINUTE_MS = 60_000
START_SECONDS = 600


def wait_until(condition: Callable[[], object]) -> None:
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + 900
    while not condition():
        if clock.monotonic() > deadline:
            pytest.fail("the condition did not come true within a quarter of an hour")
        pause.wait(0.05)


def said_at(line: str, what: str) -> str:
    assert line.startswith(what), line
    return line.strip().removeprefix(what)


@dataclass
class SidecarProcess:
    process: subprocess.Popen[str]
    address: str
    log: Path
    control: str
    """Where the control plane answers; empty: there is none."""

    def page(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection(self.address, timeout=120)
        connection.request("GET", path)
        response = connection.getresponse()
        result = response.status, response.read().decode()
        connection.close()
        return result

    def shown(self, source: str) -> dict[str, Any]:
        """A source on the page ``/status``."""
        sources: list[dict[str, Any]] = json.loads(self.page("/status")[1])["sources"]
        return next(s for s in sources if s["source"] == source)

    def is_in(self, source: str, state: FrontierState) -> bool:
        return bool(self.shown(source)["state"] == state)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def running(folder: Path, *sources: str, tokens: Path | None = None) -> Iterator[SidecarProcess]:
    """Runs a sidecar; with a file of tokens it has a control plane."""
    log = folder / "sidecar.log"
    flags = [flag for source in sources for flag in ("--source", source)]
    environment = {"SLACKWATER_SIDECAR_HTTP": "127.0.0.1:0", "SLACKWATER_SIDECAR_OPEN_AFTER": "0.5"}
    if tokens is not None:
        environment |= {"SLACKWATER_CONTROL_LISTEN": "127.0.0.1:0", "SLACKWATER_CONTROL_TOKENS": str(tokens)}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "slackwater",
            "--log-format",
            "json",
            "--log-file",
            str(log),
            "sidecar",
            *flags,
        ],
        env=os.environ | environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        reader = threading.Thread(target=lines.read)
        try:
            control = "" if tokens is None else said_at(lines.readline(), "control plane: http://")
            address = said_at(lines.readline(), "answering at http://")
            reader.start()
            yield SidecarProcess(process, address, log, control)
        finally:
            process.kill()
            process.wait(300)
            reader.join(300)


@pytest.fixture
def make_source(
    kafka_broker: KafkaBroker, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], SyntheticSource]]:
    """Makes sources; commands and processes find their servers in the environment."""
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", kafka_broker.bootstrap)
    monkeypatch.setenv("SLACKWATER_REDIS_URL", redis_server.url)
    made: list[SyntheticSource] = []

    def make() -> SyntheticSource:
        source = SyntheticSource(kafka_broker.bootstrap, redis_server.url)
        source.create_all()
        made.append(source)
        return source

    yield make
    for source in made:
        source.close()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and everything that was shown."""
    capsys.readouterr()
    code = main.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def examined(capsys: pytest.CaptureFixture[str], source: str) -> tuple[int, dict[str, Any]]:
    """What the doctor says."""
    capsys.readouterr()
    code = main.run(["doctor", "--source", source, "--json"])
    return code, json.loads(capsys.readouterr().out)


def commit_without_a_row(source: SyntheticSource, xid: int) -> str:
    """A transaction of two rows, the second of which never comes; returns its commit LSN."""
    table = source.tables[0]
    begin, rows, end = transaction_values(xid, xid * 100, [(table, {"id": n}) for n in range(2)], xid)
    source.put("transaction", 0, begin)
    source.put(table, 0, rows[0][1])
    source.put("transaction", 0, end)
    source.flush()
    return str(xid * 100 + 2)


@pytest.mark.full
def test_missing_rows_are_found_explained_and_skipped_while_another_source_goes_on(
    make_source: Callable[[], SyntheticSource], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inv, crm = make_source(), make_source()
    with running(tmp_path, inv.name, crm.name) as sidecar:
        for source in (inv, crm):
            source.commit(1, 50)
            wait_until(source.is_published)
        wait_until(lambda: sidecar.page("/readyz")[0] == 200)
        assert examined(capsys, inv.name)[0] == 0

        lsn = commit_without_a_row(inv, 50)
        inv.commit(51, 80)
        crm.commit(50, 60)
        wait_until(lambda: sidecar.is_in(inv.name, FrontierState.STALLED))
        wait_until(crm.is_published)
        code, said = examined(capsys, inv.name)
        assert (code, examined(capsys, crm.name)[0]) == (1, 0)
        assert said["findings"][0]["cause"] == "dropped"
        (missing, *_) = said["open_transactions"]
        assert (missing["xid"], missing["expected"], missing["received"]) == (
            50,
            {inv.tables[0]: 2},
            {inv.tables[0]: 1},
        )
        place = missing["partitions"][f"{inv.name}.{inv.tables[0]}/0"]
        assert place["first"] is not None
        assert place["next"] == place["end"]
        assert sidecar.page("/healthz")[0] == 200
        assert sidecar.shown(inv.name)["open_transactions"][0]["xid"] == 50

        flags = ("--source", inv.name, "--to", lsn, "--reason", "lost", "--yes")
        assert command(capsys, "source", "skip", *flags)[0] == 0
        wait_until(inv.is_published)
        wait_until(lambda: sidecar.is_in(inv.name, FrontierState.RUNNING))
        assert [x for cut in inv.logged() for x in cut.skipped] == [50]
        assert "skip to" in command(capsys, "source", "show", "--source", inv.name)[1]

        families = list(text_string_to_metric_families(sidecar.page("/metrics")[1]))
        assert [f.name for f in families] == [m.name.removesuffix("_total") for m in SIDECAR_METRICS]
        skipped = next(f for f in families if f.name == "slackwater_skipped_transactions")
        assert {s.labels["source"]: s.value for s in skipped.samples} == {inv.name: 1, crm.name: 0}
        about = [e for e in sidecar.events() if e.get("xid") == 50]
        assert [e["event"] for e in about] == ["waiting for %s", "waiting no longer for %s"]
        assert any(e.get("reason") == "lost" for e in sidecar.events())


@pytest.mark.full
def test_lsns_that_go_back_are_gone_on_from_on_a_new_timeline_by_decision(
    make_source: Callable[[], SyntheticSource], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_source()
    table = source.tables[0]
    with running(tmp_path, source.name) as sidecar:
        source.commit(100, 150)
        wait_until(source.is_published)
        for xid in (7, 8):
            rows = [(table, {"id": n}) for n in range(2)]
            begin, values, end = transaction_values(xid, xid * 100, rows, 10 * MINUTE_MS)
            source.put("transaction", 0, begin)
            for _, value in values:
                source.put(table, 0, value)
            source.put("transaction", 0, end)
        source.flush()
        wait_until(lambda: sidecar.is_in(source.name, FrontierState.REGRESSED))
        assert sidecar.page("/readyz")[0] == 503
        code, said = examined(capsys, source.name)
        assert (code, said["findings"][0]["cause"]) == (1, "regressed")
        name = ("--source", source.name, "--yes")
        code, text = command(capsys, "source", "new-timeline", *name)
        assert (code, "--without-snapshot" in text) == (1, True)
        code, text = command(capsys, "source", "new-timeline", *name, "--without-snapshot")
        assert (code, "new --checkpoint" in text) == (0, True)

        wait_until(lambda: source.logged()[-1].timeline == 2 and source.logged()[-1].lsn == 802)
        wait_until(lambda: sidecar.is_in(source.name, FrontierState.RUNNING))

        assert sidecar.shown(source.name)["timeline"] == 2
        newest = source.logged()[-1]
        assert newest.end_offsets[f"{source.name}.{table}"][0] == source.offsets[table, 0]


@pytest.mark.full
@pytest.mark.spark
def test_a_run_says_why_the_sidecar_publishes_no_further_cut(
    make_source: Callable[[], SyntheticSource], tmp_path: Path
) -> None:
    source = make_source()
    source.put("transaction", 0, b"{")
    source.flush()
    folder = shutil.copytree(repository_pipeline("orders"), tmp_path / "orders")
    definition = folder / "pipeline.toml"
    text = definition.read_text().replace('source = "inv"', f'source = "{source.name}"')
    definition.write_text(text.replace('name = "orders"', f'name = "{source.name}"'))
    line = ("run", str(folder), "--checkpoint", "state", "--master", "local[1]", "--allow-missing-tables")
    run = Program("run", lambda: slackwater_command(*line), tmp_path)
    with running(tmp_path, source.name) as sidecar:
        wait_until(lambda: sidecar.is_in(source.name, FrontierState.BAD_INPUT))
        reason = sidecar.shown(source.name)["detail"]
        run.start(folder=tmp_path)
        try:
            said = f"the sidecar publishes no further cut of {source.name}: {reason}"
            wait_until(lambda: said in run.output() or not run.is_well)
            assert said in run.output()
        finally:
            run.kill()


def test_a_sidecar_that_is_asked_to_stop_publishes_what_is_ready_and_says_so(
    make_source: Callable[[], SyntheticSource], tmp_path: Path
) -> None:
    source = make_source()
    with running(tmp_path, source.name) as sidecar:
        source.commit(1, 50)
        wait_until(source.is_published)
        source.commit(50, 60)
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(300) == 0

    status = source.store.status(source.name)
    assert status is not None
    assert status.state is FrontierState.STOPPED
    assert source.oracle.complaints(source.logged()) == []
    assert not any("in time" in e["event"] for e in sidecar.events())


def test_what_an_open_kafka_transaction_hides_is_told_from_one_that_is_at_work(
    make_source: Callable[[], SyntheticSource],
) -> None:
    source = make_source()
    topic = f"{source.name}.{source.tables[0]}"
    source.commit(1, 3)
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": source.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"{}", partition=2)
    producer.flush(30)
    seen, later = (SourceFacts(topics=SourceTopics(source.name), now_ms=0) for _ in range(2))
    with KafkaProbe(KafkaSettings(source.bootstrap), frozenset({topic}).__contains__) as probe:
        probe.read_topics(seen)
        hidden = {place for place, facts in seen.partitions.items() if facts.hangs}
        assert hidden == {(topic, 2)}
        assert probe.still_hanging(seen.partitions) == seen.partitions
        producer.commit_transaction(30)
        wait_until(lambda: not any(facts.hangs for facts in probe.still_hanging(seen.partitions).values()))
        probe.read_topics(later)
        rows = probe.with_newest_rows(later.partitions)

    assert [end.xid for _, end in seen.ends] == [1, 2]
    assert seen.data_topics == {topic}
    assert max(facts.newest_row_lsn or 0 for facts in rows.values()) == source.newest_lsn - 1


DROPS_LINES = {
    "transforms": "drop",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "lines",
    "predicates": "lines",
    "predicates.lines.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
    "predicates.lines.pattern": "inv[.]public[.]lines",
}


@pytest.mark.slow
def test_a_transform_of_the_real_connector_that_drops_rows_is_found_and_what_it_dropped_can_be_skipped(
    dev_stack: Callable[..., DevStack],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stack = dev_stack(tables=("public.orders", "public.lines"), connector_overrides=DROPS_LINES)
    monkeypatch.setenv("SLACKWATER_BOOTSTRAP", stack.kafka.bootstrap)
    monkeypatch.setenv("SLACKWATER_REDIS_URL", stack.redis.url)

    def cause() -> str:
        code, said = examined(capsys, "inv")
        return str(said["findings"][0]["cause"]) if code else "healthy"

    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as database:
        for table in ("orders", "lines"):
            database.execute(f"create table {table} (id int primary key)")
        stack.start_connector(("public.orders", "public.lines"))
        stack.wait_until_streaming()
        database.execute("insert into orders values (1)")
        with running(tmp_path, "inv") as sidecar:
            wait_until(lambda: cause() == "healthy")
            with database.transaction():
                database.execute("insert into orders values (2)")
                database.execute("insert into lines values (2)")
            database.execute("insert into orders values (3)")
            wait_until(lambda: cause() == "topic_missing")

            make_topics(stack.kafka.bootstrap, ["inv.public.lines"], 1)
            wait_until(lambda: cause() == "dropped")
            (lost, *_) = sidecar.shown("inv")["open_transactions"]
            assert lost["expected"] == {"public.orders": 1, "public.lines": 1}
            assert lost["received"] == {"public.orders": 1, "public.lines": 0}

            flags = ("--source", "inv", "--to", lost["commit_lsn"], "--yes")
            assert command(capsys, "source", "skip", *flags)[0] == 0
            wait_until(lambda: cause() == "healthy")


class ControlPlane:
    """Asks the control plane of a sidecar."""

    def __init__(self, sidecar: SidecarProcess, token: str) -> None:
        self._address = sidecar.control
        self._token = token

    def ask(self, path: str, content: object = None, token: str | None = None) -> tuple[int, Any]:
        connection = HTTPConnection(self._address, timeout=120)
        headers = {"Authorization": f"Bearer {token or self._token}", "Content-Type": "application/json"}
        body = None if content is None else json.dumps(content)
        try:
            connection.request("GET" if body is None else "POST", f"/api/v1{path}", body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.ask("/topology")[0] == 200
        except OSError:
            return False

    def cut_of(self, source: str) -> str | None:
        sources = self.ask("/sources")[1]
        (cut,) = (each["cut"] for each in sources if each["name"] == source)
        return None if cut is None else str(cut["commit_lsn"])


@pytest.mark.full
def test_the_control_plane_says_what_the_doctor_says_and_decides_what_an_operator_asks(
    make_source: Callable[[], SyntheticSource], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = {role: new_token(f"the {role}", role) for role in Role}
    path = tmp_path / "tokens.toml"
    path.write_text("".join(entry for _, entry in tokens.values()))
    operator, viewer = tokens[Role.OPERATOR][0], tokens[Role.VIEWER][0]
    inv = make_source()
    with running(tmp_path, inv.name, tokens=path) as sidecar:
        control = ControlPlane(sidecar, viewer)
        inv.commit(1, 50)
        wait_until(lambda: control.cut_of(inv.name) is not None)
        commit_without_a_row(inv, 50)
        inv.commit(51, 60)
        wait_until(lambda: control.ask(f"/sources/{inv.name}")[1]["state"] == FrontierState.STALLED)
        _, said = control.ask(f"/sources/{inv.name}")
        _, told = examined(capsys, inv.name)
        assert [each["cause"] for each in said["findings"]] == ["dropped"]
        for both in (
            "source",
            "state",
            "frontier",
            "timeline",
            "is_healthy",
            "open_transactions",
            "newest_end",
        ):
            assert said[both] == told[both], both
        assert said["findings"][0]["what"] == told["findings"][0]["what"]

        lsn = said["open_transactions"][0]["commit_lsn"]
        where, decision = f"/sources/{inv.name}/decisions", {"kind": "skip", "to_lsn": lsn}
        assert control.ask(where, decision)[0] == 403
        assert control.ask(where, decision | {"to_lsn": "0/FFFFFFFF"}, operator)[0] == 409
        status, would = control.ask(where, decision | {"dry_run": True}, operator)
        assert (status, would["cut_log_offset"]) == (200, None)
        assert command(capsys, "source", "show", "--source", inv.name)[1].endswith("decisions: none\n")
        assert control.ask(where, decision | {"reason": "dropped by hand"}, operator)[0] == 200
        wait_until(lambda: control.cut_of(inv.name) == format_position(inv.newest_lsn))
        shown = command(capsys, "source", "show", "--source", inv.name)[1]
        assert "the operator" in shown
        assert "dropped by hand" in shown


def control_process(sidecar: SidecarProcess) -> psutil.Process:
    children = psutil.Process(sidecar.process.pid).children()
    (found,) = (each for each in children if any("spawn_main" in word for word in each.cmdline()))
    return found


@pytest.mark.full
def test_a_control_plane_that_is_killed_comes_back_and_ends_with_its_sidecar(
    make_source: Callable[[], SyntheticSource], tmp_path: Path
) -> None:
    token, entry = new_token("me", Role.VIEWER)
    path = tmp_path / "tokens.toml"
    path.write_text(entry)
    inv = make_source()
    with running(tmp_path, inv.name, tokens=path) as sidecar:
        inv.commit(1, 10)
        wait_until(inv.is_published)
        control = ControlPlane(sidecar, token)
        wait_until(lambda: control.answers() and control.cut_of(inv.name) is not None)
        cut = control.cut_of(inv.name)
        child = control_process(sidecar)
        child.terminate()  # as when all processes of a service are asked to stop: its parent decides
        child.send_signal(signal.SIGINT)
        assert control.answers()
        assert child.is_running()
        child.kill()
        child.wait(300)
        wait_until(control.answers)
        assert control.cut_of(inv.name) == cut
        inv.commit(10, 20)
        wait_until(inv.is_published)  # which the sidecar did all the time
        child = control_process(sidecar)
        sidecar.process.kill()
        child.wait(300)
    with running(tmp_path, inv.name, tokens=path) as sidecar:
        control = ControlPlane(sidecar, token)
        wait_until(lambda: control.cut_of(inv.name) not in (None, cut))
        sidecar.process.terminate()
        assert sidecar.process.wait(300) == 0
    with pytest.raises(OSError, match=r"."):
        control.ask("/topology")
