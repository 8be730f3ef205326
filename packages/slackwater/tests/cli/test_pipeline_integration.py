"""``slackwater pipeline reset`` and ``delete`` over real topics, tables and checkpoints."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.cli.commands import pipeline as removal
from slackwater.cli.revisions import Registered, switch_readers
from slackwater.client import open_leases
from slackwater.cuts import PipelineLog
from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.outputs.search.server import SearchServer
from slackwater.protocol import (
    KafkaSettings,
    Lease,
    PipelineReport,
    PostgresSettings,
    RunEnd,
    SearchSettings,
    Servers,
    StateError,
    SystemClock,
    epoch_ms,
)
from slackwater.settings.model import KafkaSection, PostgresSection, Settings
from slackwater_lab.fakes.topics import REGISTRATION
from slackwater_lab.publishing import publishing_pipeline

pytestmark = pytest.mark.integration

OUTPUTS = {
    "kafka": 'topic = "{name}.one"',
    "postgres": 'kind = "postgres"\ntable = "{name}.one"',
    "opensearch": 'kind = "opensearch"\nindex = "i-{name}.one"',
}


@dataclass(frozen=True, slots=True)
class World:
    """A pipeline that has run, and has registered with a checkpoint."""

    kind: str
    name: str
    folder: Path
    servers: Servers
    log: PipelineLog

    def publish(self, *batches: Mapping[int, int | None]) -> None:
        """Publishes batches, as a new run with a new checkpoint does."""
        place = self.folder / uuid.uuid4().hex / self.name
        output = OUTPUTS[self.kind].format(name=self.name)
        with publishing_pipeline(place, view="one", output=output, servers=self.servers) as pipeline:
            for batch in batches:
                pipeline.publish(batch)

    def register(self, *, ended: bool) -> None:
        """Tells the cluster of a run."""
        view = replace(
            REGISTRATION.views[0],
            name="one",
            output=f"{'i-' * (self.kind == 'opensearch')}{self.name}.one",
            kind=self.kind,
            format="",
            output_source="",
        )
        run = replace(
            REGISTRATION,
            pipeline=self.name,
            base_name=self.name,
            views=(view, replace(view, name="two")) if self.kind == "kafka" else (view,),
            checkpoint=str(self.checkpoint),
        )
        self.log.register(run)
        if ended:
            end = RunEnd(ended_ms=1, failure="")
            self.log.report(
                PipelineReport(
                    pipeline=self.name, run=run.run, batch_id=0, timeline=1, commit_lsn=100, end=end
                )
            )
            self.log.read()

    @property
    def checkpoint(self) -> Path:
        """Its checkpoint."""
        return self.folder / "checkpoint"

    def make_checkpoint(self, query_id: str = REGISTRATION.query_id) -> None:
        """Writes files as a run does, and one of somebody else."""
        names = (
            "manifests/1",
            "segments/1",
            ".drafts/1",
            "spark-home/conf/x",
            "published",
            "spark.log",
            "mine",
        )
        for name in names:
            (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / name).touch()
        (self.checkpoint / "slackwater.json").write_text(json.dumps({"query_id": query_id, "buckets": 1}))

    def run(self, *arguments: str) -> int:
        return main.run(["--config", str(self.folder / "slackwater.toml"), *arguments])

    def documents(self, capsys: pytest.CaptureFixture[str]) -> list[dict[str, int]]:
        """Reads the view."""
        capsys.readouterr()
        if self.servers.search is not None:
            body = {"size": 9, "query": {"match_all": {}}}
            hits = SearchServer(self.servers.search).ask("POST", f"/i-{self.name}.one/_search", body)["hits"]
            return [{"id": hit["_source"]["id"], "value": hit["_source"]["value"]} for hit in hits["hits"]]
        assert self.run("read", "--pipeline", self.name, "--kind", self.kind, "--json") == 0
        (found,) = json.loads(capsys.readouterr().out)["views"].values()
        return [found] if isinstance(found, dict) else found

    def has_output(self) -> bool:
        if self.servers.search is None:
            return self.run("read", "--pipeline", self.name, "--kind", self.kind) == 0
        server = SearchServer(self.servers.search)
        path = f"/i-{self.name}.one-versions,slackwater.{self.name}-versions?ignore_unavailable=true"
        return bool(server.ask("GET", path))


@pytest.fixture(params=OUTPUTS)
def world(
    request: pytest.FixtureRequest,
    kafka_broker: KafkaBroker,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> Iterator[World]:
    kafka, postgres = KafkaSettings(kafka_broker.bootstrap), PostgresSettings(postgres_server.dsn())
    search = None
    if request.param == "opensearch":
        search = SearchSettings(url=request.getfixturevalue("search_node").address)
    (tmp_path / "slackwater.toml").write_text(
        f'[kafka]\nbootstrap = "{kafka.bootstrap}"\n[postgres]\noutput_url = "{postgres.url}"\n'
        + (f'[opensearch]\nurl = "{search.url}"\n' if search else "")
    )
    servers = Servers(kafka, postgres=postgres, search=search)
    with closing(PipelineLog(servers.kafka)) as log:
        log.ensure()
        yield World(request.param, f"p{uuid.uuid4().hex[:10]}", tmp_path, servers, log)


@pytest.mark.full
def test_a_pipeline_starts_over_with_nothing_left_of_what_it_has_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish({1: 1, 2: 2}, {3: 3})
    world.make_checkpoint()
    world.register(ended=True)
    assert world.run("pipeline", "reset", world.name) == 0
    told = capsys.readouterr().out
    assert f"nothing was removed; --yes removes what is left of {world.name}" in told
    assert f"checkpoint  {world.checkpoint}" in told
    assert len(world.documents(capsys)) == 3
    assert world.run("pipeline", "reset", world.name, "--yes") == 0
    assert f"starts over: {world.name}" in capsys.readouterr().out
    assert [each.name for each in world.checkpoint.iterdir()] == ["mine"]
    world.publish({1: 10})  # at a commit before the newest one that was shown
    assert world.documents(capsys) == [{"id": 1, "value": 10}]
    assert world.run("pipeline", "reset", world.name) == 1
    assert f"unknown pipeline '{world.name}'" in capsys.readouterr().err


def test_a_pipeline_is_refused_while_only_part_of_it_is_gone(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the command is killed; asked again, it continues with what is left."""
    world.publish({1: 1}, {2: 2})
    world.make_checkpoint()
    world.register(ended=True)
    whole = removal.find_remains

    def part(*arguments: object) -> removal.Remains:
        return replace(whole(*arguments), topics=(), tables=(), indexes=())  # type: ignore[arg-type]

    def fail(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(removal, "find_remains", part)
        patched.setattr(PipelineLog, "forget", fail)
        assert world.run("pipeline", "reset", world.name, "--yes") == 1
    assert not (world.checkpoint / "slackwater.json").exists()
    with pytest.raises(StateError):
        world.publish({1: 10})
    world.register(ended=True)
    assert world.run("pipeline", "reset", world.name, "--yes") == 1
    assert "try again after a minute" in capsys.readouterr().err  # the command's own name


def test_what_is_deleted_without_its_outputs_can_still_be_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish({1: 1})
    world.make_checkpoint()
    world.register(ended=False)
    assert world.run("pipeline", "delete", world.name) == 1
    assert "is running on host-7" in capsys.readouterr().err
    world.register(ended=True)
    assert world.run("pipeline", "delete", world.name) == 0
    assert capsys.readouterr().out == f"deleted: {world.name}\n"
    assert world.documents(capsys) == [{"id": 1, "value": 1}]
    assert (world.checkpoint / "manifests" / "1").exists()


def test_outputs_are_deleted_when_nobody_needs_them_any_more(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    delete = ("pipeline", "delete", world.name, "--outputs", "--yes")
    world.publish({1: 1})
    world.make_checkpoint(query_id="of another pipeline")
    world.register(ended=True)
    now_ms = epoch_ms(SystemClock().now())
    lease = Lease(
        id=uuid.uuid4().hex,
        source="inv",
        timeline=1,
        commit_lsn=100,
        pipelines=(world.name,),
        holder="report",
        taken_ms=now_ms,
        expires_ms=now_ms + 3_600_000,
    )
    with open_leases(world.servers.kafka) as leases:
        leases.ensure()
        leases.write(lease)
        assert world.run(*delete) == 1
        assert f"lease {lease.id} of report needs" in capsys.readouterr().err
        leases.remove([lease])
    assert world.run(*delete) == 0
    told = capsys.readouterr().out
    assert f"by hand     the checkpoint {world.checkpoint}, which is not found from here" in told
    assert not world.has_output()
    assert (world.checkpoint / "slackwater.json").exists()


def test_an_output_that_readers_were_switched_to_stays(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish({1: 1})
    world.register(ended=True)
    schema = f"readers_{world.name}" if world.kind == "postgres" else None
    settings = Settings(
        kafka=KafkaSection(bootstrap=world.servers.kafka.bootstrap),
        postgres=PostgresSection(output_url=world.servers.postgres.url if world.servers.postgres else None),
        opensearch=world.servers.search or SearchSettings(),
    )
    registered = Registered(world.log.read(), 0)
    switch_readers(
        settings, registered, world.name, 1, schema, accept_earlier=False, timeout=timedelta(seconds=60)
    )
    for command in (("delete", "--outputs"), ("reset",)):
        assert world.run("pipeline", *command, world.name, "--yes") == 1
        assert f"readers are switched to '{world.name}'" in capsys.readouterr().err
    assert world.documents(capsys) == [{"id": 1, "value": 1}]
