"""The sidecar against a real broker and a real Redis; Debezium's records are made by the test."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pytest
import redis
from confluent_kafka import TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from slackwater.cuts import FrontierState
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.kafka.reader import TopicReader
from slackwater.protocol import (
    SNAPSHOT_XID,
    ConfigError,
    InputError,
    KafkaSettings,
    RedisSettings,
    RegistrySettings,
    SchemaLanguage,
    Servers,
    commit_schema,
)
from slackwater.protocol.keys import cuts_key
from slackwater_lab.debezium.records import snapshot_notifications, snapshot_value
from slackwater_lab.fakes.registry import RegistryServer
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_sidecar import SidecarSettings, SidecarStatus, run_sidecar

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object]], None]
TABLES = ("shop.orders", "shop.lines")


def settings_of(source: SyntheticSource, *, redis_url: str | None = None) -> SidecarSettings:
    return SidecarSettings(
        source=source.name,
        servers=Servers(KafkaSettings(source.bootstrap), RedisSettings(redis_url or source.redis_url)),
        status_interval=timedelta(milliseconds=100),
        open_after=timedelta(milliseconds=500),
    )


class Running:
    """A sidecar in a thread."""

    def __init__(self, settings: SidecarSettings) -> None:
        self.stop = threading.Event()
        self.seen: list[SidecarStatus] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(settings,))

    def _run(self, settings: SidecarSettings) -> None:
        try:
            run_sidecar(settings, self.stop, self.seen.append)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def status(self) -> SidecarStatus | None:
        return self.seen[-1] if self.seen else None

    def is_in(self, state: FrontierState) -> bool:
        return self.status is not None and self.status.state is state


@contextmanager
def running(settings: SidecarSettings) -> Iterator[Running]:
    sidecar = Running(settings)
    sidecar.thread.start()
    try:
        yield sidecar
    finally:
        sidecar.stop.set()
        sidecar.thread.join(300)
    if sidecar.error is not None:
        raise sidecar.error


@pytest.fixture
def source(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Iterator[SyntheticSource]:
    result = SyntheticSource(kafka_broker.bootstrap, redis_server.url)
    yield result
    result.close()


def set_policy(source: SyntheticSource, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    source.admin.incremental_alter_configs([resource])[resource].result(60)


def test_a_backlog_and_what_follows_become_cuts(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 2000)

    with running(settings_of(source)):
        wait_until(source.is_published)
        source.commit(2000, 2010)
        wait_until(source.is_published)

    cuts = source.logged()
    assert source.oracle.complaints(cuts) == []
    assert cuts[-1].event_count == 3 * 2009
    assert {t for t, _ in source.store.markers(source.name)} == {f"{source.name}.{t}" for t in TABLES}
    status = source.store.status(source.name)
    assert status is not None
    assert status.state is FrontierState.STOPPED


def test_each_commit_record_has_exactly_the_rows_of_its_transactions(
    source: SyntheticSource, wait_until: Wait
) -> None:
    """Two sidecars, one of which ends in between, and a backlog."""
    source.create_all()
    source.commit(1, 200)
    topic, place = f"{source.name}.commits-avro", (f"{source.name}.commits-avro", 0)

    def records() -> list[tuple[int, Any]]:
        with TopicReader({"bootstrap.servers": source.bootstrap}, 300) as reader:
            if topic not in reader.topics():
                return []
            found = list(reader.read({place: reader.bounds(place)}))
        return [
            (int(dict(m.headers() or ())["slackwater-commit-lsn"] or 0), read((m.value() or b"")[5:]))
            for m in found
        ]

    schema = fastavro.parse_schema(json.loads(commit_schema(SchemaLanguage.AVRO)))

    def read(value: bytes) -> Any:
        return fastavro.schemaless_reader(BytesIO(value), schema, None)

    with RegistryServer() as registry:
        settings = with_commits(source, registry)
        with running(settings), running(replace(settings, sidecar_id="other")) as other:
            source.commit(200, 220)
            wait_until(source.is_published)
            other.stop.set()
            for xid in range(220, 230):
                source.commit(xid, xid + 1)
                wait_until(source.is_published)
            wait_until(lambda: records() and records()[-1][0] == source.newest_lsn)

    found, previous, counted = records(), 0, 0
    assert [lsn for lsn, _ in found] == [cut.lsn for cut in source.logged()]
    for lsn, record in found:
        held = {
            (each["topic_name"], at["partition"], offset)
            for each in record["topics"]
            for at in each["offsets"]
            for offset in range(at["min_offset"], at["max_offset"] + 1)
        }
        rows = [source.oracle.places[each] for each, _ in source.oracle.commits if previous < each <= lsn]
        assert held == {spot for by_row in rows for spots in by_row.values() for spot in spots}
        assert record["record_count"] == len(held)
        previous, counted = lsn, counted + len(held)
    assert counted == 3 * 229


def with_commits(source: SyntheticSource, registry: RegistryServer) -> SidecarSettings:
    plain = settings_of(source)
    servers = replace(plain.servers, registry=RegistrySettings(url=registry.url))
    return replace(plain, servers=servers, commit_format="avro")


def test_a_registry_that_is_away_holds_up_no_cut_and_one_that_refuses_ends_the_source(
    source: SyntheticSource, wait_until: Wait
) -> None:
    source.create_all()
    with RegistryServer() as registry:
        registry.failure = 503
        with running(with_commits(source, registry)) as sidecar:
            source.commit(1, 10)
            wait_until(source.is_published)
            wait_until(lambda: sidecar.status and "HTTP 503" in sidecar.status.detail)
            assert sidecar.is_in(FrontierState.RUNNING)
            registry.failure = None
            wait_until(lambda: sidecar.status and not sidecar.status.detail)
        registry.failure = 403
        refused = Running(with_commits(source, registry))
        refused.thread.start()
        refused.thread.join(900)
    assert isinstance(refused.error, ConfigError)
    assert "HTTP 403" in str(refused.error)


def test_topics_that_appear_later_are_found(source: SyntheticSource, wait_until: Wait) -> None:
    with running(settings_of(source)) as sidecar:
        wait_until(lambda: sidecar.is_in(FrontierState.WAITING))
        source.create("transaction", "notifications", partitions=1)
        source.create(*TABLES)
        source.announce_empty_tables()
        source.commit(1, 10)
        wait_until(source.is_published)

    assert source.oracle.complaints(source.logged()) == []


def test_an_initial_snapshot_comes_first_even_without_a_transaction_topic(
    source: SyntheticSource, wait_until: Wait
) -> None:
    source.create(*TABLES)
    source.create("notifications", partitions=1)
    for number in range(20):
        source.put(TABLES[0], number % 4, snapshot_value(TABLES[0], 50, {"id": number}))
    with running(settings_of(source)) as sidecar:
        wait_until(lambda: sidecar.is_in(FrontierState.WAITING))
        for value in snapshot_notifications({TABLES[0]: 20, TABLES[1]: 0}):
            source.put("notifications", 0, value)
        wait_until(lambda: source.in_redis() == 50)
        source.create("transaction", partitions=1)
        source.commit(1, 5)
        wait_until(source.is_published)

    first = source.logged()[0]
    assert (first.transactions[0].xid, first.event_count) == (SNAPSHOT_XID, 20)
    assert source.logged()[-1].event_count == 32


def test_a_restarted_sidecar_goes_on_where_the_log_ends(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    for begin in (1, 50, 90):
        source.commit(begin, begin + 30)
        with running(settings_of(source)):
            wait_until(source.is_published)

    assert source.oracle.complaints(source.logged()) == []
    assert len(source.logged()[-1].transactions) < 90


FOLLOW = """
import sys, threading
from slackwater.protocol import KafkaSettings, RedisSettings, Servers
from slackwater_sidecar import SidecarSettings, run_sidecar
source, bootstrap, redis_url = sys.argv[1:]
servers = Servers(KafkaSettings(bootstrap), RedisSettings(redis_url))
run_sidecar(SidecarSettings(source=source, servers=servers), threading.Event())
"""


@pytest.mark.full
def test_a_killed_sidecar_loses_and_repeats_nothing(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 2000)
    for last in (3000, 4000):
        command = [sys.executable, "-c", FOLLOW, source.name, source.bootstrap, source.redis_url]
        process = subprocess.Popen(command)
        try:
            before = source.in_redis()
            source.commit(last - 1000, last)
            wait_until(partial(source.has_moved_beyond, before))
        finally:
            process.kill()
            process.wait(300)
    with running(settings_of(source)):
        wait_until(source.is_published)

    assert source.oracle.complaints(source.logged()) == []


def test_two_sidecars_publish_the_same(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 500)
    with running(settings_of(source)), running(settings_of(source)):
        wait_until(source.is_published)
        for begin in range(500, 600, 10):
            source.commit(begin, begin + 10)
        wait_until(source.is_published)

    in_redis = [c.cut for c in source.store.cuts_after(source.name, 1, 0, limit=10_000)]
    commits = [(t.commit_lsn, t.xid) for c in in_redis for t in c.transactions]
    assert set(source.oracle.commits) <= set(commits)
    for published in source.log.tail(-1):
        assert all(c.startswith("cut") for c in source.oracle.complaints([published.cut])) or (
            source.oracle.complaints([published.cut]) == []
        )


def test_an_emptied_redis_is_filled_again_while_running(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 100)
    client = redis.Redis.from_url(source.redis_url)
    with running(settings_of(source)):
        wait_until(source.is_published)
        before = client.xlen(cuts_key(source.name, 1))
        for key in client.scan_iter(f"*{{{source.name}}}*"):
            client.delete(key)
        wait_until(source.is_published)
        wait_until(lambda: client.xlen(cuts_key(source.name, 1)) >= before)
    client.close()


def test_cuts_go_on_without_redis(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 100)
    with running(settings_of(source, redis_url="redis://127.0.0.1:1")) as sidecar:
        wait_until(lambda: source.logged() and source.logged()[-1].lsn == source.newest_lsn)
        wait_until(lambda: sidecar.status is not None and sidecar.status.redis_error)

    assert source.oracle.complaints(source.logged()) == []


def test_a_record_that_cannot_be_read_is_named_and_stops_cuts_before_it(
    source: SyntheticSource, wait_until: Wait
) -> None:
    source.create_all()
    source.commit(1, 10)
    published = source.newest_lsn
    offset = source.put(TABLES[0], 2, b"garbage")
    source.commit(10, 40)

    with running(settings_of(source)) as sidecar:
        wait_until(lambda: sidecar.is_in(FrontierState.BAD_INPUT))
        wait_until(lambda: source.in_redis() >= published)

    assert sidecar.status is not None
    assert f"{source.name}.{TABLES[0]}/2 offset {offset}" in sidecar.status.detail
    assert source.logged()[-1].end_offsets[f"{source.name}.{TABLES[0]}"][2] <= offset


@pytest.mark.full
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("name", [TABLES[1], "transaction"])
def test_nothing_is_shown_of_topics_that_kafka_compacts(
    source: SyntheticSource, wait_until: Wait, name: str, policy: str
) -> None:
    topic = f"{source.name}.{name}"
    source.create_all()
    set_policy(source, topic, policy)
    source.commit(1, 10)

    with running(settings_of(source)) as sidecar:
        wait_until(lambda: sidecar.is_in(FrontierState.MISCONFIGURED))

    assert sidecar.status is not None
    assert f"topic {topic}: cleanup.policy is {policy}" in sidecar.status.detail
    assert source.logged() == []


@pytest.mark.full
def test_cuts_end_when_a_topic_becomes_compacted(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 10)

    with running(settings_of(source)) as sidecar:
        wait_until(source.is_published)
        shown = source.newest_lsn
        set_policy(source, f"{source.name}.{TABLES[0]}", "compact")
        wait_until(lambda: sidecar.is_in(FrontierState.MISCONFIGURED))
        source.commit(10, 20)
        wait_until(lambda: sidecar.status is not None and sidecar.status.records_read >= 90)

    assert source.logged()[-1].lsn == shown


def test_records_deleted_before_they_were_read_are_an_error_that_says_which(
    source: SyntheticSource, wait_until: Wait
) -> None:
    source.create_all()
    source.commit(1, 50)
    with running(settings_of(source)):
        wait_until(source.is_published)
    source.commit(50, 200)
    topic = f"{source.name}.{TABLES[0]}"
    end = source.offsets[TABLES[0], 1]
    for done in source.admin.delete_records([TopicPartition(topic, 1, end)]).values():
        done.result(300)

    with (
        pytest.raises(InputError, match=rf"offsets \d+ to {end - 1} of {topic}/1 are gone"),
        running(settings_of(source)) as again,
    ):
        again.thread.join(300)


def test_a_stopped_sidecar_returns_at_once(source: SyntheticSource, wait_until: Wait) -> None:
    source.create_all()
    source.commit(1, 5)
    sidecar = Running(settings_of(source))
    sidecar.thread.start()
    wait_until(source.is_published)

    sidecar.stop.set()
    sidecar.thread.join(300)

    assert not sidecar.thread.is_alive()
    assert sidecar.error is None
