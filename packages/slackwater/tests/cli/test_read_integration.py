"""``slackwater read`` and ``slackwater wait`` over topics, tables and lakes that sinks have written."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slackwater.cli import main
from slackwater.client import TopicOutput
from slackwater.client.table_views import TableOutput
from slackwater.cuts import LeaseLog
from slackwater.dev import KafkaBroker, PostgresServer
from slackwater.pipeline.leases import LeaseHolder
from slackwater.protocol import KafkaSettings, LakeSettings, PostgresSettings, Servers, SystemClock
from slackwater_lab.publishing import PublishingPipeline, publishing_pipeline

pytestmark = pytest.mark.integration


OUTPUTS = {
    "kafka": 'topic = "{name}.{view}"\npartitions = 2',
    "postgres": 'kind = "postgres"\ntable = "{name}.{view}"\nhistory = true',
    "delta": 'kind = "delta"\ntable = "{name}.{view}"',
}
PAGE = (Path(__file__).parents[4] / "docs" / "reading.md").read_text()


class World:
    """Kafka, PostgreSQL and a lake, and pipelines that publish there."""

    def __init__(self, bootstrap: str, url: str, folder: Path) -> None:
        self.folder = folder
        lake = LakeSettings(place=str(folder / "lake"))
        self._servers = Servers(kafka=KafkaSettings(bootstrap), postgres=PostgresSettings(url), delta=lake)
        self.opened = ExitStack()
        self.settings_file = folder / "slackwater.toml"
        self.settings_file.write_text(
            f'[kafka]\nbootstrap = "{bootstrap}"\n'
            f'[postgres]\noutput_url = "{url}"\n[delta]\nlocation = "lake"\n'
        )

    def pipeline(self, kind: str, view: str = "one") -> PublishingPipeline:
        name = f"p{uuid.uuid4().hex[:10]}"
        output = OUTPUTS[kind].format(name=name, view=view)
        return self.opened.enter_context(
            publishing_pipeline(self.folder / name, view=view, output=output, servers=self._servers)
        )


@pytest.fixture
def world(kafka_broker: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    made = World(kafka_broker.bootstrap, postgres_server.dsn(), tmp_path)
    with made.opened:
        yield made


def asked(
    world: World, capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[str, str]:
    capsys.readouterr()
    done = main.run(["--config", str(world.settings_file), *map(str, arguments)])
    told = capsys.readouterr()
    assert done == code, told.err
    return told.out, told.err


def rows(text: str) -> dict[str, dict[int, int]]:
    found: dict[str, Any] = json.loads(text)
    return {
        view: {each["id"]: each["value"] for each in documents} for view, documents in found["views"].items()
    }


def test_one_commit_is_read_over_topics_tables_and_lakes(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, tables, lake = (world.pipeline(kind) for kind in OUTPUTS)
    for each in (topics, tables, lake):
        each.publish({1: 1, 2: 2})
        each.publish({1: 10})
    topics.publish({2: 20})
    folders = [topics.folder, tables.folder, lake.folder]
    read = asked(world, capsys, "read", *folders, "--json")[0]
    assert json.loads(read)["commit_lsn"] == 200
    names = [f"{topics.folder.name}.one", "one", f"{lake.folder.name}.one"]
    assert rows(read) == {name: {1: 10, 2: 2} for name in names}
    earlier = asked(world, capsys, "read", *folders, "--lsn", "0/64", "--json")[0]
    assert rows(earlier) == {name: {1: 1, 2: 2} for name in names}


@contextmanager
def running(bootstrap: str, *pipelines: PublishingPipeline) -> Iterator[None]:
    """Has pipelines answer leases, as their runs do between batches."""
    holders = [
        LeaseHolder(
            LeaseLog(KafkaSettings(bootstrap)),
            pipeline=each.folder.name,
            refusal="",
            longest=timedelta(days=1),
            sink=each.sink,
            clock=SystemClock(),
        )
        for each in pipelines
    ]
    is_over = threading.Event()

    def hold() -> None:
        while not is_over.wait(0.01):
            for holder in holders:
                holder.hold()

    thread = threading.Thread(target=hold)
    for holder in holders:
        holder.begin()
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for holder in holders:
            holder.close()


@pytest.mark.full
def test_a_lease_is_taken_listed_read_renewed_and_ended(
    world: World, kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, lake = world.pipeline("postgres"), world.pipeline("delta")
    both = [tables.folder, lake.folder]
    for each in (tables, lake):
        each.publish({1: 1})
    with running(kafka_broker.bootstrap, tables, lake):
        options = ("--level", "repeatable", "--for", 3600, "--timeout", 120)
        first = json.loads(asked(world, capsys, "read", *both, *options, "--json")[0])
        lease = first["lease"]["id"]
        for each in (tables, lake):
            each.publish({1: 2})
        again = json.loads(asked(world, capsys, "read", *both, "--lease", lease, "--json")[0])
        assert again == first
        shown = asked(world, capsys, "read", lake.folder, "--lease", lease)[0].splitlines()
        assert shown[2].startswith(f"lease   {lease}, until ")
        listed = asked(world, capsys, "lease", "list")[0]
        (line,) = (each for each in listed.splitlines() if each.startswith(lease))
        assert line.split()[1:4] == ["held", "inv", "00000001-0000000000000064"]
        renewed = asked(world, capsys, "lease", "renew", lease, "--for", 7200)[0]
        assert renewed.startswith(f"lease {lease} ends at ")
        _, told = asked(world, capsys, "lease", "renew", lease, "--for", 100_000, code=1)
        assert "it holds states for at most 86400 s (run.longest_lease)" in told
        assert asked(world, capsys, "lease", "end", lease)[0] == f"ended: {lease}\n"
    _, told = asked(world, capsys, "read", lake.folder, "--lease", lease, code=1)
    assert f"there is no lease '{lease}'" in told
    assert asked(world, capsys, "lease", "end", lease, code=1)[1].startswith("error: there is no lease")
    assert lease not in asked(world, capsys, "lease", "list", "--json")[0]
    _, told = asked(world, capsys, "read", lake.folder, "--level", "repeatable", "--timeout", 0, code=1)
    assert "only a running pipeline can hold a state" in told


def test_what_the_page_shows_reads_one_state_of_topics_tables_and_lakes(
    world: World,
    kafka_broker: KafkaBroker,
    postgres_server: PostgresServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Documents, SQL over both, and the plain SQL of a client of PostgreSQL."""
    orders, stock, lake = (
        world.pipeline("kafka", "orders"),
        world.pipeline("postgres", "stock"),
        world.pipeline("delta"),
    )
    all_three = [each.folder for each in (orders, stock, lake)]
    for value, each in enumerate((orders, stock, lake)):
        each.publish({17: value, 18: None if each is orders else 8})
    ((block,), (plain,)) = (re.findall(f"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "sql"))
    (query,) = re.findall(r"--sql \\\n +'(.*?)'", PAGE)
    with running(kafka_broker.bootstrap, orders, stock, lake), ExitStack() as opened:
        kafka = KafkaSettings(kafka_broker.bootstrap)
        names: dict[str, Any] = {
            "kafka": kafka,
            "orders": opened.enter_context(closing(TopicOutput(kafka, orders.folder.name))),
            "stock": opened.enter_context(closing(TableOutput(postgres_server.dsn(), stock.folder.name))),
        }
        exec(compile(block, "reading.md", "exec"), names)  # noqa: S102 - the page is ours
        assert names["found"].documents == {"stock": [b'{"id":17,"value":1}']}
        assert names["rows"] == [(17, 1)]

        options = ("--level", "repeatable", "--for", 3600, "--timeout", 120, "--json")
        joined = query.replace("USING (id) ", "USING (id) JOIN one USING (id) ")
        first = json.loads(asked(world, capsys, "read", *all_three, *options, "--sql", joined)[0])
        assert first["rows"] == [{"id": 17, "value": 0, "stock": 1}]
        lease = first["lease"]["id"]
        for each in (orders, stock, lake):
            each.publish({17: 100, 19: 100})
        held = ("--lease", lease, "--sql")
        again = json.loads(asked(world, capsys, "read", *all_three, *held, joined, "--json")[0])
        assert again == first
        shown = asked(world, capsys, "read", *all_three, *held, query)[0].splitlines()
        assert shown[2].startswith(f"lease   {lease}, until ")
        assert shown[3:] == ['{"id":17,"value":0,"stock":1}']
        plain = plain.replace("shop.stock", f"{stock.folder.name}.stock").replace("0/1962AB8", "0/64")
        with psycopg.connect(postgres_server.dsn()) as database:
            assert sorted(database.execute(plain).fetchall()) == [(17, 1), (18, 8)]
        newest = asked(world, capsys, "read", *all_three, "--json", "--sql", joined)[0]
        assert [row["stock"] for row in json.loads(newest)["rows"]] == [100, 100]
        for wrong, told in {
            "SELECT 1": "the query names no view of these pipelines",
            "SELECT nothing FROM stock": 'column "nothing" not found',
            "SELECT * FROM stock JOIN nobody USING (id)": "Table with name nobody does not exist",
            "DROP VIEW stock": "the query cannot be evaluated",
            "SELECT * FROM stock; SELECT 1": "the query cannot be evaluated",
        }.items():
            assert told in asked(world, capsys, "read", stock.folder, *held, wrong, code=1)[1]
        asked(world, capsys, "lease", "end", lease)
        assert "there is no lease" in asked(world, capsys, "read", stock.folder, *held, query, code=1)[1]


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_view_of_a_pipeline_is_shown_to_people(
    kind: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = world.pipeline(kind)
    pipeline.publish({1: 1, 2: 2})
    by_folder = asked(world, capsys, "read", pipeline.folder, "--views", "one")[0]
    read_as = "one" if kind == "postgres" else f"{pipeline.folder.name}.one"
    by_name = asked(
        world, capsys, "read", "--pipeline", pipeline.folder.name, "--kind", kind, "--views", read_as
    )[0]
    assert by_folder == by_name
    head, commit, empty, view, *documents = by_folder.splitlines()
    assert head.split() == ["source", "inv"]
    assert commit.split() == ["commit", "1/0/64", "(00000001-0000000000000064)"]
    assert (empty, view) == ("", f"{read_as}: 2 documents")
    assert [json.loads(each) for each in documents] == [{"id": 1, "value": 1}, {"id": 2, "value": 2}]
    one = asked(world, capsys, "read", pipeline.folder, "--key", "id=2")[0].splitlines()
    assert [json.loads(each) for each in one[4:]] == [{"id": 2, "value": 2}]
    assert one[3] == f"{read_as}: 1 document"


def test_what_is_not_visible_has_an_exit_code_of_its_own(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, lake = world.pipeline("kafka"), world.pipeline("delta")
    topics.publish({1: 1})
    topics.publish({1: 2})
    lake.publish({1: 1})
    both = [topics.folder, lake.folder]
    out, _ = asked(world, capsys, "wait", *both, "--lsn", "100", "--timeout", 60)
    assert out.splitlines()[0] == "visible: 1/0/64"
    out, err = asked(world, capsys, "wait", *both, "--lsn", "0/C8", "--timeout", 0, "--json", code=3)
    assert json.loads(out) == {
        "visible": False,
        "id": "00000001-00000000000000C8",
        "pipelines": {
            topics.folder.name: "00000001-00000000000000C8",
            lake.folder.name: "00000001-0000000000000064",
        },
    }
    assert f"pipeline {lake.folder.name!r}: the newest visible commit is 1/0/64" in err
    lake.publish({1: 2})
    out, _ = asked(world, capsys, "wait", *both, "--lsn", "200", "--json")
    assert json.loads(out)["visible"] is True
    _, err = asked(world, capsys, "read", *both, "--lsn", "201", code=3)
    assert "the newest visible commit is 1/0/C8" in err


def test_what_cannot_be_read_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = world.pipeline("kafka")
    pipeline.publish({1: 1})
    _, err = asked(world, capsys, "read", pipeline.folder, "--views", "two", code=1)
    assert "view 'two' exists in none of" in err
    _, err = asked(world, capsys, "read", "--pipeline", "nobody", "--kind", "delta", code=1)
    # which of the two depends on whether a run of another test has registered with this broker
    assert "no pipeline 'nobody' has written to this lake" in err or "unknown pipeline 'nobody'; known" in err
    _, err = asked(world, capsys, "wait", "--pipeline", "nobody", "--lsn", 1, code=1)
    assert "nobody" in err


def test_a_view_is_followed_commit_by_commit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = world.pipeline("kafka")
    pipeline.publish({1: 10, 2: 20})
    pipeline.publish({1: None, 3: 30})
    topic = f"{pipeline.folder.name}.one"
    out, _ = asked(world, capsys, "tail", topic, "--from-beginning", "--commits", 2, "--json")
    commits = [json.loads(line) for line in out.splitlines()]
    shown = [{each["key"]["id"]: each["document"] for each in commit["documents"]} for commit in commits]
    assert shown == [
        {1: {"id": 1, "value": 10}, 2: {"id": 2, "value": 20}},
        {1: None, 3: {"id": 3, "value": 30}},
    ]
    assert [commit["lsn"] for commit in commits] == ["0/64", "0/C8"]
