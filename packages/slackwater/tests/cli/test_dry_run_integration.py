"""``slackwater run --dry-run`` over real servers: everything is found, at once, and nothing is written."""

import json
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from slackwater.cli import main
from slackwater.cuts import CutLog, LeaseLog, PipelineLog
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import KafkaSettings, Lease
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.fakes.topics import REGISTRATION, make_cut
from slackwater_lab.topics import make_topics

pytestmark = pytest.mark.integration
SECONDS = 120


@dataclass(frozen=True, slots=True)
class World:
    """A pipeline of a source of its own, and the servers."""

    source: str
    folder: Path
    bootstrap: str
    arguments: list[str]

    def make_topic(self) -> None:
        make_topics(self.bootstrap, [f"{self.source}.public.invoice"], 1)

    def publish_cut(self) -> None:
        log = CutLog(self.source, KafkaSettings(self.bootstrap))
        log.ensure_topic()
        log.append([make_cut(self.source, 0x600, 1)])
        log.close()

    def topics(self) -> set[str]:
        """All but the broker's own."""
        known = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=SECONDS)
        return {name for name in known.topics if not name.startswith("__")}


@pytest.fixture
def world(kafka_broker: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> World:
    source = f"s{uuid.uuid4().hex[:8]}"
    folder = tmp_path / "late"
    assert main.run(["new", str(folder), "--source", source, "--name", f"late-{source}"]) == 0
    servers = ["--bootstrap", kafka_broker.bootstrap, "--redis-url", redis_server.url]
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint")]
    return World(
        source, folder, kafka_broker.bootstrap, ["run", str(folder), *servers, *checkpoint, "--dry-run"]
    )


Findings = Callable[[], dict[str, str]]


@pytest.fixture
def findings(capsys: pytest.CaptureFixture[str]) -> Findings:
    """Verdict and text of what was printed, by what it is about."""

    def read() -> dict[str, str]:
        lines = [line for line in capsys.readouterr().out.splitlines() if ": " in line]
        named = [line.split(maxsplit=1) for line in lines if not line.startswith(" ")]
        return {rest.partition(": ")[0]: f"{verdict} {rest.partition(': ')[2]}" for verdict, rest in named}

    return read


def test_all_that_is_missing_is_listed_at_once(world: World, findings: Findings) -> None:
    findings()
    before = world.topics()
    assert main.run(world.arguments) == 1
    found = findings()
    assert found["brokers"] == "ok 1 broker answers"
    assert found["redis"] == f"warning it answers, but has no cut of source {world.source}"
    assert found[f"source {world.source}"] == "problem no sidecar has published a cut"
    assert found["table public.invoice"] == f"problem there is no topic {world.source}.public.invoice"
    assert found["checkpoint"].startswith("ok ")
    assert found["outputs"].startswith(f"ok late-{world.source}.revenue in Kafka at ")
    assert found["rights"].startswith("ok the brokers allow what a run does; it creates ")
    assert world.topics() == before
    assert not (world.folder.parent / "checkpoint").exists()


def test_a_run_that_can_begin_is_told_so(world: World, findings: Findings) -> None:
    world.make_topic()
    world.publish_cut()
    assert main.run(world.arguments) == 0
    found = findings()
    assert found[f"source {world.source}"] == "ok newest cut 0/600 on timeline 1"
    assert found["table public.invoice"] == f"ok topic {world.source}.public.invoice"
    assert {text.split()[0] for text in found.values()} == {"ok", "warning"}


def test_a_table_that_may_be_missing_is_a_warning(world: World, findings: Findings) -> None:
    world.publish_cut()
    assert main.run([*world.arguments, "--allow-missing-tables"]) == 0
    assert findings()["table public.invoice"].startswith("warning there is no topic")


def test_a_registry_that_would_refuse_the_schema_of_commit_records_is_found(
    world: World, findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_topic()
    world.publish_cut()
    file = world.folder / "pipeline.toml"
    file.write_text(f'{file.read_text()}\ncommit_format = "avro"\n')
    assert main.run(world.arguments) == 1
    assert "no schema registry is configured" in findings()["outputs"]
    with RegistryServer() as registry:
        monkeypatch.setenv("SLACKWATER_REGISTRY_URL", registry.url)
        assert main.run(world.arguments) == 0
        assert findings()["outputs"].startswith("ok ")
        assert not registry.subjects
        registry.incompatible[f"late-{world.source}.revenue.commits-avro-value"] = "a field is missing"
        assert main.run(world.arguments) == 1
        assert "a field is missing" in findings()["outputs"]


def test_a_checkpoint_of_another_pipeline_is_found(world: World, findings: Findings) -> None:
    world.make_topic()
    world.publish_cut()
    checkpoint = world.folder.parent / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "slackwater.json").write_text('{"query_id": "q", "buckets": 4, "pipeline": "other"}')
    assert main.run(world.arguments) == 1
    assert findings()["checkpoint"].startswith("problem ")


def test_a_plan_tells_what_a_run_will_do_and_the_run_does_nothing_else(
    world: World, findings: Findings, capsys: pytest.CaptureFixture[str]
) -> None:
    words, file = world.arguments[1:-1], world.folder.parent / "late.plan"
    assert main.run(["plan", *words, "--out", str(file)]) == 1
    assert "problem  source" in capsys.readouterr().out
    world.make_topic()
    world.publish_cut()
    name, kafka = f"late-{world.source}", KafkaSettings(world.bootstrap)
    view = replace(REGISTRATION.views[0], name="revenue", output="elsewhere", kind="kafka", output_source="")
    earlier = replace(REGISTRATION, pipeline=f"{name}.v9", base_name=name, revision=9, views=(view,))
    with closing(PipelineLog(kafka)) as pipelines, closing(LeaseLog(kafka)) as leases:
        pipelines.ensure()
        pipelines.register(earlier)
        leases.ensure()
        leases.write(
            Lease(
                id="l1",
                source=world.source,
                timeline=1,
                commit_lsn=5,
                pipelines=(f"{name}.v9",),
                holder="audit",
                taken_ms=1,
                expires_ms=2**41,
            )
        )
    assert main.run(["plan", *words, "--out", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"pipeline {name}: the run builds its views from the beginning of the source's topics"
    assert f"output    added       kafka {name}.revenue of {name}" in lines
    assert f"output    left alone  kafka elsewhere of {name}.v9; read by lease l1 of audit" in lines
    assert "to read   0 records" in lines
    assert any(line.startswith(f"command   slackwater run {world.folder} --checkpoint ") for line in lines)
    assert main.run(["plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    planned = [*world.arguments, "--plan", str(file)]
    assert main.run(planned) == 0
    assert findings()["plan"] == f"ok {file} holds"
    (path,) = (world.folder / "views").glob("*.sql")
    path.write_text(path.read_text() + " HAVING count(*) > 1")
    assert main.run(planned) == 1
    assert "does not hold: view revenue has another" in findings()["plan"]
