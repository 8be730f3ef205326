# ruff: noqa: S608 - statements are put together from constants of this module
"""``slackwater share`` over pipelines that have registered in Kafka."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.cli.revisions import Registered
from slackwater.cuts import PipelineLog
from slackwater.dev import KafkaBroker
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.progress import make_registration, with_checkpoint
from slackwater.protocol import InputError, KafkaSettings, PipelineReport, SystemClock, epoch_ms

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[4] / "docs" / "sharing-state.md"
SCHEMA = (
    "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);\n"
)
SCHEMA += "ALTER TABLE shop.orders REPLICA IDENTITY FULL;\n"
SPENT = "(SELECT o.customer, sum(o.total) AS spent FROM shop.orders o GROUP BY o.customer)"
VIEW = (
    f"SELECT TRANSACTIONALLY o.id, s.spent, {{}} FROM shop.orders o JOIN {SPENT} s ON s.customer = o.customer"
)


class World:
    """Folders of pipelines, and what they have registered."""

    def __init__(self, folder: Path, log: PipelineLog, bootstrap: str) -> None:
        self.folder, self.log, self.bootstrap = folder, log, bootstrap
        self.prefix = f"p{folder.name[-12:]}".replace("_", "")

    def write(self, name: str, column: str, toml: str = "") -> Path:
        folder = self.folder / f"{self.prefix}{name}"
        (folder / "views").mkdir(parents=True)
        (folder / "pipeline.toml").write_text(f'name = "{folder.name}"\nsource = "inv"\n{toml}')
        (folder / "schema.sql").write_text(SCHEMA)
        (folder / "views" / f"{name}.sql").write_text(VIEW.format(column))
        return folder

    def register(self, folder: Path, state_bytes: int = 1_000) -> None:
        given = {"timeline": 1, "checkpoint": "/c", "calls_function": False, "clock": SystemClock()}
        own = make_registration(load_pipeline(folder), **given)  # type: ignore[arg-type]
        self.log.register(with_checkpoint(own, f"id of {own.pipeline}"))
        report = PipelineReport(pipeline=own.pipeline, run=own.run, batch_id=1, timeline=1, commit_lsn=7)
        self.log.report(replace(report, state_bytes={"1": state_bytes, "2": 10}))

    def share(self, *words: object) -> int:
        return main.run(["share", *map(str, words), "--bootstrap", self.bootstrap])

    def registered(self) -> Registered:
        return Registered(self.log.read(), epoch_ms(SystemClock().now()))


@pytest.fixture
def world(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[World]:
    with closing(PipelineLog(KafkaSettings(kafka_broker.bootstrap))) as log:
        log.ensure()
        yield World(tmp_path, log, kafka_broker.bootstrap)


def test_the_plan_is_shown_and_a_folder_is_written_that_is_a_revision_of_both(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [world.write("offers", "o.total AS n"), world.write("reminders", "o.total + 1 AS first")]
    both = world.folder / f"{world.prefix}both"
    for size, part in enumerate(parts, 1):
        world.register(part, size * 9_216)
    names = [part.name for part in parts]

    assert world.share(*parts, "--into", both) == 0
    told = capsys.readouterr().out
    assert told.replace(world.prefix, "") in PAGE.read_text()
    assert told.endswith("nothing was written; --yes writes it\n")
    assert not both.exists()

    assert world.share(*parts, "--into", both, "--yes") == 0
    assert f"written: {both}; start it beside the others" in capsys.readouterr().out
    world.register(both)
    registered = world.registered()
    for name, view in zip(names, ("offers", "reminders"), strict=True):
        found = registered.revisions(name)
        assert [run.registration.pipeline for run in found.values()] == [name, f"{both.name}.v2"]
        assert [each.name for each in found[2].registration.views] == [view]
        assert registered.pair(name, None).views == [view]

    assert world.share(*parts, "--into", both) == 0, "unchanged, although revision 2 is registered now"
    changed = parts[1] / "views" / "reminders.sql"
    changed.write_text(changed.read_text().replace("+ 1", "+ 4"))
    world.register(parts[1])
    capsys.readouterr()
    assert world.share(*parts, "--into", both) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[0] == f"changed: {both / 'views' / 'reminders.sql'}"

    other = world.write(
        "other", "o.total + 2 AS last", f"revision = 2\n[revision_of]\n{names[0]} = ['other']\n"
    )
    world.register(other)
    with pytest.raises(InputError, match=f"are both revision 2 of '{names[0]}'"):
        world.registered().revisions(names[0])


def test_pipelines_that_do_not_run_as_their_folders_are_refused(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [world.write("offers", "o.total AS n"), world.write("reminders", "o.total + 1 AS first")]
    both = world.folder / "both"
    world.register(parts[0])
    assert world.share(*parts, "--into", both, "--yes") == 1
    assert f"pipeline '{parts[1].name}'" in capsys.readouterr().err
    world.register(parts[1])
    (parts[1] / "views" / "reminders.sql").write_text(VIEW.format("o.total + 3 AS first"))
    assert world.share(*parts, "--into", both, "--yes") == 1
    assert f"{parts[1]} is not {parts[1].name} as it runs" in capsys.readouterr().err
    assert world.share(parts[0], "--into", both, "--yes") == 1
    assert "cannot become 'both'" in capsys.readouterr().err
    assert not both.exists()
