# ruff: noqa: S608 - statements are put together from names of this module
"""Revisions of running pipelines: a chain is revised as a whole, what a connector has lost is corrected, a
revision begins with the state of the one that runs, and one is the revision of two pipelines.

A real database, Debezium, sidecars and runs of ``slackwater run``, while rows change. Judged are what a
consumer gets that is moved from one revision to the other, and what ``slackwater read`` shows.
"""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from slackwater.client import OutputTopics, PipelineViews, TransactionalConsumer
from slackwater.client.topic_views import TopicReaders
from slackwater.dev import DevStack
from slackwater.protocol import KafkaSettings, decode_commit_record
from slackwater.protocol.keys import commit_topic
from slackwater_lab.database.statements import current_lsn
from slackwater_lab.programs import Product, slackwater_command, write_run_settings
from slackwater_lab.topics import read_to_end

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

SECONDS = 600.0
OWNERS = 5
UNTOUCHED, OWNER_OF_UNTOUCHED = -1, 3
"""An account that no transfer changes: an event has the whole row, and would put right what was lost."""
TABLE = "public.accounts"
ACCOUNTS = f"""
CREATE TABLE {TABLE} (id bigint PRIMARY KEY, owner bigint NOT NULL, balance bigint NOT NULL);
ALTER TABLE {TABLE} REPLICA IDENTITY FULL;
"""
SUMS = "SELECT TRANSACTIONALLY a.owner, sum(a.balance) AS total, count(*) AS accounts"
FROM_ACCOUNTS = f"FROM {TABLE} a GROUP BY a.owner"
GROUPS = (
    "SELECT TRANSACTIONALLY s.accounts, sum(s.total) AS total, count(*) AS owners "
    "FROM public.sums s GROUP BY s.accounts"
)
JUDGE = (
    "SELECT accounts, sum(total), count(*) FROM (SELECT sum(balance) AS total, count(*) AS accounts "
    f"FROM {TABLE} GROUP BY owner) s GROUP BY accounts"
)


def write_pipeline(folder: Path, settings: str, schema: str, view: str, statement: str) -> Path:
    (folder / "views").mkdir(parents=True)
    (folder / "pipeline.toml").write_text(settings)
    (folder / "schema.sql").write_text(schema)
    (folder / "views" / f"{view}.sql").write_text(statement)
    return folder


class Writing:
    """Opens accounts and moves money between them, a transaction after the other, until it is stopped."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._stop = dsn, threading.Event()
        self._thread = threading.Thread(target=self._write, name="writes accounts")

    def __enter__(self) -> "Writing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        rng, accounts = random.Random(5), 3 * OWNERS
        with psycopg.connect(self._dsn, autocommit=True) as database:
            while not self._stop.wait(0.02):
                with database.transaction():
                    amount = rng.randrange(100)
                    for sign in (-1, 1):
                        update = f"UPDATE {TABLE} SET balance = balance + %s WHERE id = %s"
                        database.execute(update, (sign * amount, rng.randrange(accounts)))
                    if rng.random() < 0.1:
                        open_account(database, accounts, rng.randrange(OWNERS))
                        accounts += 1


def open_account(database: psycopg.Connection, number: int, owner: int) -> None:
    database.execute(f"INSERT INTO {TABLE} VALUES (%s, %s, 100)", (number, owner))


class Place:
    """A database with a connector, and the sidecars and pipelines that a test starts."""

    def __init__(self, stack: DevStack, folder: Path, running: ExitStack) -> None:
        self.stack, self.folder = stack, folder
        self.product = running.enter_context(Product(stack, folder / "product"))
        self.kafka = KafkaSettings(stack.kafka.bootstrap)
        self._admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
        with psycopg.connect(self.dsn, autocommit=True) as database:
            database.execute(ACCOUNTS.encode())
            for number in range(3 * OWNERS):
                open_account(database, number, number % OWNERS)
            open_account(database, UNTOUCHED, OWNER_OF_UNTOUCHED)
        stack.start_connector((TABLE,))
        stack.wait_until_streaming()

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    @property
    def servers(self) -> Sequence[str]:
        return ("--bootstrap", self.stack.kafka.bootstrap, "--redis-url", self.stack.redis.url)

    def start_sidecar(self, source: str) -> None:
        command = slackwater_command("--config", "/dev/null", "sidecar", "--source", source, *self.servers)
        self.product.start(f"sidecar-{source}", command)

    def start_pipeline(self, pipeline: Path, *copy_state_of: Path) -> str:
        name = pipeline.name
        local = self.product.folder / name
        local.mkdir()
        settings = write_run_settings(self.product.folder / f"{name}.toml", local)
        run = ("--config", str(settings), "run", str(pipeline), *self.servers, "--master", "local[1]")
        run += ("--connect-url", self.stack.connect.address)
        beside = copy_state_of[0] if len(copy_state_of) == 1 else pipeline
        place = self.product.folder / beside.name / "checkpoint"
        more = ["--checkpoint", str(place), "--allow-missing-tables"]
        more += [word for folder in copy_state_of for word in ("--copy-state-of", str(folder))]
        self.product.start(name, slackwater_command(*run, *more))
        return name

    def command(self, *words: str) -> str:
        """Runs a command; returns what it prints."""
        done = self.begin(*words)
        told = done.communicate(timeout=SECONDS)
        assert done.returncode == 0, told
        return told[0]

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Begins a command."""
        return subprocess.Popen(
            slackwater_command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={
                **os.environ,
                "SLACKWATER_KAFKA_BOOTSTRAP": self.stack.kafka.bootstrap,
                "SLACKWATER_CONNECT_DATABASE_PASSWORD": "unused",
            },
        )

    def published(self, topic: str) -> Mapping[int, int]:
        """By commit LSN the number of documents of each commit that an output has."""
        if commit_topic(topic) not in self._admin.list_topics(timeout=60).topics:
            return {}
        try:
            messages = list(read_to_end(self.stack.kafka.bootstrap, commit_topic(topic)))
        except KafkaException:  # it was just made
            return {}
        records = [decode_commit_record(message.value() or b"") for message in messages]
        return {record.commit_lsn: record.record_count for record in records}

    def wait_until_published(self, topic: str, lsn: int = 0) -> None:
        """Until an output has a commit of an LSN, or a later one."""
        assert self.product.wait_until(lambda: max(self.published(topic), default=-1) >= lsn, SECONDS)

    def write_one(self) -> int:
        """Changes a row; returns an LSN that its commit has reached."""
        with psycopg.connect(self.dsn, autocommit=True) as database:
            database.execute(f"UPDATE {TABLE} SET balance = balance + 1 WHERE id = 0".encode())
        return current_lsn(self.dsn) - 1


@pytest.fixture
def place(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Place]:
    stack = dev_stack(prefix="inv", partitions=2)
    with ExitStack() as running:
        running.callback(stack.stop)
        yield Place(stack, tmp_path, running)


class Reader:
    """A consumer of the view ``groups`` that keeps what it received."""

    def __init__(self, consumer: TransactionalConsumer) -> None:
        self.consumer = consumer
        self.commits: list[int] = []
        self.state: dict[int, tuple[int, int]] = {}

    def read(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            transaction = self.consumer.poll(timedelta(seconds=5))
            if transaction is None:
                continue
            self.commits.append(transaction.commit.lsn)
            for record in transaction:
                key = json.loads(record.key() or b"")
                value = json.loads(record.value() or b"null")
                number = key["accounts"]
                self.state.pop(number, None)
                if value is not None:
                    self.state[number] = (int(value["total"]), int(value["owners"]))


def chain_of(place: Place, revision: int, emit_of_groups: str = "transactions") -> tuple[Path, Path]:
    """Writes the two pipelines of a chain in a revision; in the second one the first has one more column."""
    suffix, more, column = "", "", ""
    if revision == 2:
        suffix, more, column = "_v2", ", max(a.balance) AS largest", ", largest bigint"
    sums = write_pipeline(
        place.folder / f"sums{suffix}",
        f'name = "sums"\nsource = "inv"\nrevision = {revision}\nemit = "transactions"\n'
        f'[output]\nformat = "debezium"\ntopic = "sums{suffix}.public.sums"\npartitions = 2\n',
        ACCOUNTS,
        "sums",
        f"{SUMS}{more} {FROM_ACCOUNTS}",
    )
    groups = write_pipeline(
        place.folder / f"groups{suffix}",
        f'name = "groups"\nsource = "sums{suffix}"\nrevision = {revision}\nemit = "{emit_of_groups}"\n'
        f'[output]\ntopic = "groups{suffix}"\npartitions = 2\n',
        "CREATE TABLE public.sums "
        f"(owner bigint PRIMARY KEY, total numeric(38, 0), accounts bigint{column});\n"
        "ALTER TABLE public.sums REPLICA IDENTITY FULL;\n",
        "groups",
        GROUPS,
    )
    return sums, groups


def test_a_chain_is_revised_and_a_consumer_gets_each_commit_once(place: Place) -> None:
    place.start_sidecar("inv")
    with ExitStack() as running:
        for source, pipeline in zip(("sums", None), chain_of(place, 1), strict=True):
            place.start_pipeline(pipeline)
            if source:
                place.start_sidecar(source)
        place.wait_until_published("groups")
        place.command("revise", "switch", "sums", "groups", "--to", "1")
        views = PipelineViews("groups", "groups")
        consumer = running.enter_context(TransactionalConsumer(place.kafka, views, group="reports"))
        reader = Reader(consumer)
        with Writing(place.dsn):
            reader.read(lambda: len(reader.commits) > 5)
            sums, groups = chain_of(place, 2)
            name = place.start_pipeline(sums)
            place.start_sidecar("sums_v2")
            place.start_pipeline(groups)
            place.wait_until_published("groups_v2")
            place.product.programs[name].kill()
            place.product.programs[name].start(folder=place.product.folder)
            for revised, key in (("sums", "sums=owner"), ("groups", "groups=accounts")):
                told = place.command("revise", "rollout", revised, "--to", "2", "--key", key, "--yes")
                assert f"{revised}.v2 at " in told
            switch = TopicReaders(place.kafka, "groups").newest_switch()
            assert switch is not None
            assert switch.pipeline == "groups.v2"
            reader.read(lambda: len(reader.commits) > 5 and reader.commits[-1] > switch.commit_lsn)
        last = place.write_one()
        place.wait_until_published("groups", last - 100)
        place.wait_until_published("groups_v2", last - 100)
        newest = max(place.published("groups_v2"))
        reader.read(lambda: reader.commits[-1] >= newest)

    old, new = place.published("groups"), place.published("groups_v2")
    assert {lsn for lsn, count in old.items() if count} == {lsn for lsn, count in new.items() if count}
    assert reader.commits == sorted(lsn for lsn, count in old.items() if count)
    with psycopg.connect(place.dsn) as database:
        rows = database.execute(JUDGE.encode())
        wanted = {number: (int(total), owners) for number, total, owners in rows}
    assert reader.state == wanted


def test_pipelines_of_a_chain_are_read_together_while_rows_change(place: Place) -> None:
    place.start_sidecar("inv")
    sums, groups = chain_of(place, 1, emit_of_groups="latest")
    place.start_pipeline(sums)
    place.start_sidecar("sums")
    place.start_pipeline(groups)
    place.wait_until_published("groups")
    seen: set[int] = set()
    with Writing(place.dsn):
        while len(seen) < 5:
            told = json.loads(
                place.command(
                    "read", "--pipeline", "sums", "--pipeline", "groups", "--timeout", "120", "--json"
                )
            )
            assert told["source"] == "inv"
            by_owner = [each["after"] for each in told["views"]["sums.public.sums"]]
            by_count = told["views"]["groups"]
            wanted: dict[int, list[int]] = {}
            for each in by_owner:
                wanted.setdefault(each["accounts"], []).append(int(each["total"]))
            assert {each["accounts"]: (int(each["total"]), each["owners"]) for each in by_count} == {
                accounts: (sum(totals), len(totals)) for accounts, totals in wanted.items()
            }
            seen.add(told["commit_lsn"])
    last = place.write_one()
    place.command(
        "wait", "--pipeline", "sums", "--pipeline", "groups", "--lsn", str(last - 100), "--timeout", "120"
    )


def corrected(place: Place, source: str, revision: int) -> Path:
    return write_pipeline(
        place.folder / f"totals_{revision}",
        f'name = "totals"\nsource = "{source}"\nrevision = {revision}\n',
        ACCOUNTS,
        "totals",
        f"{SUMS} {FROM_ACCOUNTS}",
    )


def totals_of_readers(place: Place) -> Mapping[int, int]:
    told = json.loads(place.command("read", "--pipeline", "totals", "--switched", "--json"))
    ((documents),) = told["views"].values()
    return {each["owner"]: int(each["total"]) for each in documents}


def totals_of_database(place: Place) -> Mapping[int, int]:
    with psycopg.connect(place.dsn) as database:
        rows = database.execute(f"SELECT owner, sum(balance) FROM {TABLE} GROUP BY owner".encode())
        return {owner: int(total) for owner, total in rows}


def test_what_a_connector_lost_is_corrected_by_another_one_of_the_same_database(place: Place) -> None:
    place.start_sidecar("inv")
    place.start_pipeline(corrected(place, "inv", 1))
    place.wait_until_published("totals")
    place.command("revise", "switch", "totals", "--to", "1")
    with psycopg.connect(place.dsn, autocommit=True) as database:
        (publication,) = database.execute("SELECT pubname FROM pg_publication").fetchone() or ("",)
        database.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert')".encode())
        database.execute(f"UPDATE {TABLE} SET balance = balance + 1000 WHERE id = {UNTOUCHED}".encode())
        database.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert, update')".encode())
    with Writing(place.dsn):
        apply = ("connector", "apply", "--source", "inv_again", "--table", TABLE, "--user", "again")
        place.command(
            *apply,
            "--postgres-url",
            place.dsn,
            "--connect-url",
            place.stack.connect.address,
            "--partitions",
            "2",
        )
        place.start_sidecar("inv_again")
        place.start_pipeline(corrected(place, "inv_again", 2))
        told = place.command("revise", "rollout", "totals", "--to", "2", "--key", "totals=owner", "--yes")
        sys.stdout.write(told)
        lost = TopicReaders(place.kafka, "totals").newest_switch()
        assert lost is not None
        assert lost.pipeline == "totals.v2"
    last = place.write_one()
    place.wait_until_published("totals", last - 100)
    place.wait_until_published("totals.v2", last - 100)
    right = totals_of_database(place)
    assert totals_of_readers(place) == right
    place.command("revise", "switch", "totals", "--to", "1")
    assert totals_of_readers(place) == {**right, OWNER_OF_UNTOUCHED: right[OWNER_OF_UNTOUCHED] - 1000}


def test_a_revision_begins_with_the_state_of_the_one_that_runs(place: Place) -> None:
    """It is killed while it begins, compared, and switched to."""
    place.start_sidecar("inv")
    first = corrected(place, "inv", 1)
    place.start_pipeline(first)
    place.wait_until_published("totals")
    place.command("revise", "switch", "totals", "--to", "1")
    second = write_pipeline(
        place.folder / "totals_2",
        'name = "totals"\nsource = "inv"\nrevision = 2\nemit = "transactions"\nbuckets = 3\n',
        ACCOUNTS,
        "totals",
        f"{SUMS}, max(a.balance) AS largest {FROM_ACCOUNTS}",
    )
    with Writing(place.dsn):
        for _ in range(3):
            place.wait_until_published("totals", place.write_one() - 100)
        name = place.start_pipeline(second, first)
        begun = place.product.folder / first.name / "checkpoint.v2" / "slackwater.json"
        assert place.product.wait_until(begun.exists, SECONDS)
        place.product.programs[name].kill()
        place.product.programs[name].start(folder=place.product.folder)
        told = place.command("revise", "rollout", "totals", "--to", "2", "--key", "totals=owner", "--yes")
    assert "documents that differ by column: largest" in told
    assert "only totals" not in told.partition("differ by column")[2]
    last = place.write_one()
    place.wait_until_published("totals.v2", last - 100)
    assert totals_of_readers(place) == totals_of_database(place)
    published = place.published("totals.v2")
    assert published[min(published)] == OWNERS, "all documents come with the first commit"
    assert min(published) > min(place.published("totals"))


SUM_OF_OWNERS = f"({SUMS.replace('TRANSACTIONALLY ', '')} {FROM_ACCOUNTS})"
SHARED = {
    "counts": "SELECT TRANSACTIONALLY s.accounts, sum(s.total) AS total, count(*) AS owners "
    f"FROM {SUM_OF_OWNERS} s GROUP BY s.accounts",
    "halves": "SELECT TRANSACTIONALLY s.owner % 2 AS half, sum(s.total) AS total, "
    f"sum(s.accounts) AS accounts FROM {SUM_OF_OWNERS} s GROUP BY s.owner % 2",
}
"""Two views that add up the same rows, in pipelines of their own."""


class Follower:
    """A consumer of a view of a pipeline that keeps what the view was after each commit."""

    def __init__(self, place: Place, inputs: PipelineViews | OutputTopics, running: ExitStack) -> None:
        group = f"of {inputs}"[:100]
        self._consumer = running.enter_context(TransactionalConsumer(place.kafka, inputs, group=group))
        self.states: dict[int, Mapping[bytes, bytes]] = {}
        self.commits: list[int] = []
        self._state: dict[bytes, bytes] = {}

    def read(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            transaction = self._consumer.poll(timedelta(seconds=5))
            if transaction is None:
                continue
            for record in transaction:
                self._state.pop(record.key() or b"", None)
                if record.value() is not None:
                    self._state[record.key() or b""] = record.value() or b""
            self.commits.append(transaction.commit.lsn)
            self.states[transaction.commit.lsn] = dict(self._state)
            self._consumer.commit()  # it may be away from the group for minutes

    def read_to(self, lsn: int) -> None:
        self.read(lambda: bool(self.commits) and self.commits[-1] >= lsn)


def more_than_opened(view: str, state: Mapping[bytes, bytes]) -> int:
    """By how much all balances are above what accounts are opened with. Whole transfers do not change it."""
    rows = [json.loads(each) for each in state.values()]
    accounts = sum(int(r["accounts"]) * (r["owners"] if view == "counts" else 1) for r in rows)
    return sum(int(row["total"]) for row in rows) - 100 * accounts


def test_two_pipelines_become_one_and_two_again_while_everything_is_killed(place: Place) -> None:
    """Their consumers get each commit once, and views as the database had them at each commit."""
    place.start_sidecar("inv")
    parts = {
        view: write_pipeline(
            place.folder / f"of_{view}",
            f'name = "of_{view}"\nsource = "inv"\nemit = "transactions"\n[output]\npartitions = 2\n',
            ACCOUNTS,
            view,
            statement,
        )
        for view, statement in SHARED.items()
    }
    programs = place.product.programs
    names = [place.start_pipeline(each) for each in parts.values()]
    for view in parts:
        place.wait_until_published(view)
    place.command("revise", "switch", *names, "--to", "1")
    share = ("share", *map(str, parts.values()), "--into", "both")
    with ExitStack() as running:
        readers = {view: Follower(place, PipelineViews(f"of_{view}", view), running) for view in parts}
        with Writing(place.dsn):
            for reader in readers.values():
                reader.read(lambda reader=reader: len(reader.commits) > 5)  # type: ignore[misc]
            assert "nothing was written" in place.command(*share)
            assert not (place.folder / "both").exists()
            killed = place.begin(*share, "--yes")
            draft = place.folder / ".both.draft"
            assert place.product.wait_until(
                lambda: draft.exists() or (place.folder / "both").exists(), SECONDS
            )
            killed.kill()
            killed.communicate()
            told = place.command(*share, "--yes")
            sys.stdout.write(told)
            assert "both has the views of" in place.command(*share)
            joint = place.start_pipeline(place.folder / "both", *parts.values())
            begun = place.product.folder / "both" / "checkpoint.v2" / "slackwater.json"
            assert place.product.wait_until(begun.exists, SECONDS)
            programs[joint].kill()
            programs[joint].start(folder=place.product.folder)
            for view in parts:
                place.wait_until_published(f"{view}.v2", place.write_one() - 100)
            assert min(place.published("counts.v2")) > min(place.published("counts")), "states were copied"
            for name in (*names, joint):
                programs[name].kill()
                programs[name].start(folder=place.product.folder)
            for view, key in (("counts", "accounts"), ("halves", "half")):
                told = place.command(
                    "revise", "compare", f"of_{view}", "--key", f"{view}={key}", "--timeout", "120"
                )
                assert f"only of_{view}" in told
            switch = ("revise", "switch", *names, "--timeout", "120", "--to")
            killed = place.begin(*switch, "2")
            assert place.product.wait_until(
                lambda: (
                    getattr(TopicReaders(place.kafka, names[0]).newest_switch(), "pipeline", "") == "both.v2"
                ),
                SECONDS,
            )
            killed.kill()
            killed.communicate()
            place.command(*switch, "2")
            for view, reader in readers.items():
                reader.read_to(place.write_one() - 100)
                programs[joint].kill()
                programs[joint].start(folder=place.product.folder)
                place.wait_until_published(f"{view}.v2", place.write_one() - 100)
            place.command(*switch, "1")
            for reader in readers.values():
                reader.read_to(place.write_one() - 100)
        last = place.write_one() - 100
        for view, reader in readers.items():
            for topic in (view, f"{view}.v2"):
                place.wait_until_published(topic, last)
            published = place.published(view)
            reader.read_to(max(lsn for lsn, count in published.items() if count))
            assert reader.commits == sorted(lsn for lsn, count in published.items() if count), "each once"
            joint_reader = Follower(place, OutputTopics(f"{view}.v2"), running)
            joint_reader.read_to(reader.commits[-1])
            together = joint_reader.states.keys() & reader.states.keys()
            assert len(together) > 20
            found = {lsn: (reader.states[lsn], joint_reader.states[lsn]) for lsn in sorted(together)}
            assert {lsn: both for lsn, both in found.items() if both[0] != both[1]} == {}
            written = [more_than_opened(view, reader.states[lsn]) for lsn in reader.commits]
            assert written == sorted(written), "a transfer is torn"
            assert written[0] >= 0
            assert written[-1] < 30, "what write_one has added"
        with psycopg.connect(place.dsn) as database:
            rows = database.execute(JUDGE.encode())
            wanted = {number: (int(total), owners) for number, total, owners in rows}
        newest = readers["counts"].states[readers["counts"].commits[-1]].values()
        shown = [json.loads(each) for each in newest]
        assert {each["accounts"]: (int(each["total"]), each["owners"]) for each in shown} == wanted
