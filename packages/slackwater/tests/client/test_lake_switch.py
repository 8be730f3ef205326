"""Readers of lakes are switched between revisions; and switches of every kind are killed at every step."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slackwater.client import NotVisibleError, read_views
from slackwater.client.lake_views import LakeReaders
from slackwater.client.readers import Switched
from slackwater.client.topic_views import TopicReaders
from slackwater.dev import KafkaBroker
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.table import Lake, LakeTable, Properties
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    LakeSettings,
    ReaderSwitch,
    Servers,
    UnavailableError,
)
from slackwater_lab.publishing import PublishingPipeline, publishing_pipeline

pytestmark = pytest.mark.integration

NOW = timedelta(0)
CHILD = Path(__file__).parent / "dying_switch.py"


class World:
    """Two revisions of a pipeline in a lake. A batch sets row 1 to its LSN."""

    def __init__(self, kind: str, folder: Path, opened: ExitStack) -> None:
        self.kind, self.folder, self.opened = kind, folder, opened
        self.name = f"p{uuid.uuid4().hex[:10]}"
        folder.mkdir(exist_ok=True)
        self.place = [str(folder)]
        if kind == "iceberg":
            self.place = ["test", f"sqlite:///{folder / 'catalogue.db'}", f"file://{folder}"]
        options = dict(zip(("uri", "warehouse"), self.place[1:], strict=False))
        self.lake = LakeSettings(place=self.place[0], options={"type": "sql", **options} if options else {})
        self.tables = self.open_tables()
        self.pipelines = {1: self.pipeline(self.name), 2: self.pipeline(f"{self.name}.v2")}

    def open_tables(self) -> Lake:
        tables: Lake = DeltaLake(self.lake) if self.kind == "delta" else IcebergLake(self.lake)
        self.opened.enter_context(closing(tables))
        return tables

    def views(self, name: str) -> dict[str, str]:
        return {"one": f"{name.replace('.', '_')}.one"}

    def pipeline(self, name: str, *views: str) -> PublishingPipeline:
        of_kind: dict[str, Any] = {self.kind: self.lake}
        servers = Servers(KafkaSettings(""), **of_kind)
        table = f'kind = "{self.kind}"\ntable = "{name.replace(".", "_")}.{{}}"'
        (view, output), *more = ((each, table.format(each)) for each in views or ("one",))
        folder = self.folder / "pipelines" / name
        made = publishing_pipeline(folder, view=view, output=output, servers=servers, more=dict(more))
        return self.opened.enter_context(made)

    def publish(self, *revisions: int) -> None:
        for each in revisions:
            self.pipelines[each].publish({1: self.pipelines[each].lsn + 100})

    def switch(self, revision: int, **options: Any) -> Switched:
        name = self.pipelines[revision].folder.name
        views = options.pop("views", self.views(name))
        return LakeReaders(self.tables, name).switch(name, revision, views, timeout=NOW, **options)

    def seen(self) -> tuple[str, int, int]:
        """Returns what a reader sees: the pipeline, its commit, and the value of the row."""
        output = LakeReaders(self.tables, self.name).open_current()
        snapshot = read_views([output])
        ((document,),) = snapshot.documents.values()
        return output.pipeline, snapshot.position.lsn, json.loads(document)["value"]

    def newest(self) -> ReaderSwitch | None:
        return LakeReaders(self.tables, self.name).newest_switch()


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as opened:
        yield World(request.param, tmp_path / "lake", opened)


def test_readers_are_switched_and_switched_back(world: World) -> None:
    with pytest.raises(ConfigError, match=f"slackwater revise switch {world.name} --to 1"):
        world.seen()
    world.publish(1)
    assert world.switch(1) == Switched(None, None, CommitPosition(1, 100))
    world.publish(2)
    assert world.switch(2) == Switched(world.name, CommitPosition(1, 100), CommitPosition(1, 100))
    world.publish(2, 2)
    assert world.seen() == (f"{world.name}.v2", 300, 300)
    assert world.switch(2) == Switched(f"{world.name}.v2", CommitPosition(1, 300), CommitPosition(1, 300))
    with pytest.raises(NotVisibleError, match=r"is at 1/0/64, but readers are at 1/0/12C"):
        world.switch(1)
    assert world.seen() == (f"{world.name}.v2", 300, 300)
    assert world.switch(1, accept_earlier=True).position == CommitPosition(1, 100)
    assert world.seen() == (world.name, 100, 100)
    with pytest.raises(ConfigError, match="lacks view 'one'"):
        world.switch(2, views={})


def test_readers_of_two_pipelines_that_become_one_see_only_their_own_views(world: World) -> None:
    """Seen to fail if ``Readers.open_current`` opens all views of the joined pipeline."""
    joint = world.pipeline(f"both{world.name}.v2", "one", "two")
    name, other = joint.folder.name, world.pipeline(f"q{world.name}", "two")
    parts = {world.name: (world.pipelines[1], "one"), other.folder.name: (other, "two")}

    def switch(part: str, pipeline: str) -> Switched:
        view, revision = parts[part][1], 2 if pipeline == name else 1
        views = {view: f"{pipeline.replace('.', '_')}.{view}"}
        return LakeReaders(world.tables, part).switch(pipeline, revision, views, timeout=NOW)

    def seen(part: str) -> tuple[str, dict[str, int]]:
        output = LakeReaders(world.tables, part).open_current()
        found = read_views([output]).documents.items()
        return output.pipeline, {view: json.loads(document)["value"] for view, (document,) in found}

    for each in (world.pipelines[1], other, joint):
        each.publish({1: 100})
    for part, (_, view) in parts.items():
        assert switch(part, part).before is None
        assert seen(part) == (part, {f"{part}.{view}": 100})
    at = CommitPosition(1, 100)
    assert switch(world.name, name) == Switched(world.name, at, at)
    assert seen(other.folder.name)[0] == other.folder.name, "of one of them"
    assert switch(other.folder.name, name) == Switched(other.folder.name, at, at)
    joint.publish({1: 200})
    for part, (_, view) in parts.items():
        assert seen(part) == (name, {f"{name.replace('.', '_')}.{view}": 200})
        with pytest.raises(NotVisibleError, match="is at 1/0/64, but readers are at 1/0/C8"):
            switch(part, part)
    for part, (pipeline, view) in parts.items():
        pipeline.publish({1: 200})
        assert switch(part, part).before == name
        assert seen(part) == (part, {f"{part}.{view}": 200})


def test_of_two_who_switch_at_once_one_is_refused(world: World) -> None:
    world.publish(1, 2)
    world.switch(1)
    table, other = world.tables.table, world.open_tables()

    with pytest.MonkeyPatch.context() as patch:

        def late(name: str) -> LakeTable:
            found = table(name)
            replace = found.replace

            def after_the_other(rows: Any, properties: Properties) -> int:
                name = f"{world.name}.v2"
                LakeReaders(other, name).switch(name, 2, world.views(name), timeout=NOW)
                return replace(rows, properties)

            patch.setattr(found, "replace", after_the_other)
            return found

        patch.setattr(world.tables, "table", late)
        with pytest.raises(UnavailableError, match="another process is switching readers"):
            world.switch(2)
    assert world.seen() == (f"{world.name}.v2", 100, 100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kafka", "delta", "iceberg"])
def test_a_switch_that_is_killed_at_any_step_has_happened_or_not(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The first one, the one to revision 2, and the way back; each time the same command continues."""
    with ExitStack() as opened:
        name, place = f"p{uuid.uuid4().hex[:10]}", list[str]()
        if kind == "kafka":
            broker: KafkaBroker = request.getfixturevalue("kafka_broker")
            place, kafka = [broker.bootstrap], KafkaSettings(broker.bootstrap)
            views = {number: {"one": f"{name}.{number}"} for number in (1, 2)}
            for number in (1, 2):
                folder = tmp_path / (name if number == 1 else f"{name}.v2")
                output = f'topic = "{name}.{number}"'
                made = publishing_pipeline(folder, view="one", output=output, servers=Servers(kafka))
                opened.enter_context(made).publish({1: 1})
            newest = TopicReaders(kafka, name).newest_switch
        else:
            world = World(kind, tmp_path / "lake", opened)
            name, place, newest = world.name, world.place, world.newest
            views = {number: world.views(f"{name}.v2" if number == 2 else name) for number in (1, 2)}
            world.publish(1, 2)

        def killed(step: int, revision: int) -> bool:
            pipeline = name if revision == 1 else f"{name}.v2"
            arguments = [kind, str(step), pipeline, str(revision), json.dumps(views[revision]), *place]
            found = subprocess.run([sys.executable, str(CHILD), *arguments], check=False, timeout=120)
            assert found.returncode in (0, -signal.SIGKILL)
            return found.returncode != 0

        before: int | None = None
        for revision in (1, 2, 1):
            step, read = 0, before
            while killed(step, revision):
                found = newest() if kind != "kafka" or step > 1 or before else None
                read = None if found is None else found.revision
                assert read in (before, revision)
                step += 1
            assert step >= 2
            last = newest()
            assert last is not None
            assert (last.revision, last.commit_lsn, last.views) == (revision, 100, views[revision])
            before = revision
