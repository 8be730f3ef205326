"""Whatever happens to a sidecar or to Redis, pipelines get one sequence of cuts, and none that is wrong.

A real broker, a real Redis, the driver's way to find cuts; Debezium's records are made by the test.
"""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from slackwater.cli.commands.status import status_lines
from slackwater.cuts import (
    CutLog,
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
)
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.pipeline.source.feed import Feed
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.protocol import (
    CommittedTransaction,
    Cut,
    KafkaSettings,
    PublishedCut,
    RedisSettings,
    Servers,
    SystemClock,
    encode_cut,
    format_position,
)
from slackwater.protocol.keys import cuts_key, frontier_key, markers_key
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_lab.servers.proxy import TcpProxy
from slackwater_sidecar import SidecarSettings, SidecarStatus, run_sidecar

pytestmark = pytest.mark.integration

Start = Callable[[], "subprocess.Popen[bytes]"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "sidecar.md"
REDIS_TIMEOUT = timedelta(milliseconds=300)
_WRITTEN_TOGETHER = 5
_WRITER_PAUSE_SECONDS = 0.01


class Follower:
    """Plans a batch for every cut, as the driver of a pipeline does."""

    def __init__(self, source: SyntheticSource, redis_url: str = "") -> None:
        log = CutLog(source.name, KafkaSettings(source.bootstrap))
        store = RedisMarkerStore.connect(redis_url or source.redis_url, timeout=REDIS_TIMEOUT)
        self.cuts: list[Cut] = []
        self._name, self._store = source.name, store
        servers = Servers(KafkaSettings(source.bootstrap))
        options = SourceOptions(source=source.name, servers=servers, tables=source.tables)
        self._planner = Planner(options, Feed(options, store=store, log=log, monotonic=time.monotonic))
        self._position = self._planner.start()

    @property
    def lsn(self) -> int:
        return self._position.lsn

    def follow(self) -> None:
        while (end := self._planner.next(self._position, 1, None)) != self._position:
            self.cuts.append(self._cut_between(self._position, end))
            self._position = end

    def _cut_between(self, start: Position, end: Position) -> Cut:
        """One cut with all that the records say from which the batch was planned."""
        assert end.event_count is not None
        content = self._planner.content(start, end)
        records = self._planner.feed.segments.within(start.floor, end.log)
        return Cut(
            source=end.source,
            timeline=end.timeline,
            lsn=end.lsn,
            previous_lsn=start.lsn,
            commit_ts_ms=content.commit_ts_ms,
            event_count=end.event_count,
            transactions=content.transactions,
            end_offsets={topic: position.start for topic, (position,) in end.topics.items()},
            transaction_offset=0,
            repeated=frozenset().union(*(record.repeated for record in records)),
        )

    def follow_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 900
        while not condition():
            assert time.monotonic() < deadline, f"the pipeline is at {self.lsn} after a minute"
            self.follow()

    @property
    def may_ask_redis(self) -> bool:
        """Whether the pipeline may look there, and there is something."""
        return self._store.position(self._name) is not None

    def follow_further(self) -> None:
        """Until a hundred transactions more are visible."""
        at = self.lsn + 10_000
        self.follow_until(lambda: self.lsn > at)

    def close(self) -> None:
        self._planner.close()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that these tests may kill."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def route(redis: RedisServer) -> Iterator[TcpProxy]:
    """The network between Redis and its clients."""
    proxy = TcpProxy(lambda: redis.port)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def source(kafka_broker: KafkaBroker, route: TcpProxy) -> Iterator[SyntheticSource]:
    result = SyntheticSource(kafka_broker.bootstrap, f"redis://127.0.0.1:{route.port}")
    result.create_all()
    yield result
    result.close()


@pytest.fixture
def follower(source: SyntheticSource) -> Iterator[Follower]:
    result = Follower(source)
    yield result
    result.close()


@pytest.fixture
def start(source: SyntheticSource) -> Iterator[Start]:
    """Starts sidecars; kills those that still run."""
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> "subprocess.Popen[bytes]":
        arguments = [
            "--source",
            source.name,
            "--bootstrap",
            source.bootstrap,
            "--redis-url",
            source.redis_url,
        ]
        process = subprocess.Popen([sys.executable, "-m", "slackwater", "sidecar", *arguments])
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait(300)


@contextmanager
def writing(source: SyntheticSource) -> Iterator[None]:
    """Somebody commits all the time."""
    stop = threading.Event()

    def write() -> None:
        first = 1
        while not stop.wait(_WRITER_PAUSE_SECONDS):
            source.commit(first, first + _WRITTEN_TOGETHER)
            first += _WRITTEN_TOGETHER

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join(300)


class Sidecars:
    """Processes of one source, by what they call themselves."""

    def __init__(self, source: SyntheticSource, start: Start, follower: Follower) -> None:
        self._source = source
        self._start = start
        self._follower = follower
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, count: int) -> None:
        """This many more; returns when all of them have said that they run."""
        new = {str(process.pid): process for process in [self._start() for _ in range(count)]}
        self._processes |= new
        unheard = set(new)

        def are_heard() -> bool:
            status = self._source.store.status(self._source.name)
            unheard.discard(_pid_in(status.sidecar) if status else "")
            return not unheard

        self._follower.follow_until(are_heard)

    def kill_the_one_that_writes(self) -> None:
        """Returns when another one writes."""
        writer = self._writer()
        self._processes.pop(writer).kill()
        self._follower.follow_until(lambda: self._writer() != writer)

    def _writer(self) -> str:
        held = self._source.store.position(self._source.name)
        return _pid_in(held.publisher) if held else ""


def _pid_in(sidecar: str) -> str:
    return sidecar.rpartition("-")[2]


@pytest.mark.full
def test_two_sidecars_write_one_sequence_of_cuts_and_either_may_be_killed(
    source: SyntheticSource, follower: Follower, start: Start
) -> None:
    sidecars = Sidecars(source, start, follower)
    with writing(source):
        sidecars.add(1)
        sidecars.add(1)
        follower.follow_further()
        sidecars.kill_the_one_that_writes()
        sidecars.add(1)
        follower.follow_further()
        sidecars.kill_the_one_that_writes()
        follower.follow_further()
    follower.follow_until(lambda: follower.lsn == source.newest_lsn)

    assert source.oracle.complaints(follower.cuts) == []
    cuts = [published.cut for published in source.log.tail(-1)]
    listed = sum(len(cut.transactions) for cut in cuts)
    commits = len(source.oracle.commits)
    assert commits <= listed <= 1.15 * commits  # once each; when both append at all times, a third is twice


@contextmanager
def a_sidecar(source: SyntheticSource, redis_url: str = "") -> Iterator[list[SidecarStatus]]:
    """One sidecar, in a thread; what it says."""
    stop, said = threading.Event(), list[SidecarStatus]()
    settings = SidecarSettings(
        source=source.name,
        servers=Servers(KafkaSettings(source.bootstrap), RedisSettings(redis_url or source.redis_url)),
        status_interval=timedelta(milliseconds=200),
    )
    thread = threading.Thread(target=run_sidecar, args=(settings, stop, said.append))
    thread.start()
    try:
        yield said
    finally:
        stop.set()
        thread.join(300)


@pytest.fixture
def followed(source: SyntheticSource, follower: Follower) -> Iterator[Follower]:
    """A pipeline behind a sidecar, while somebody commits all the time; judged when the test is over."""
    with a_sidecar(source):
        with writing(source):
            follower.follow_further()
            yield follower
            follower.follow_further()
        follower.follow_until(lambda: follower.lsn == source.newest_lsn)
        follower.follow_until(lambda: shown_frontier(source) == format_position(source.newest_lsn))
        assert held_without_hole(source)
    assert source.oracle.complaints(follower.cuts) == []


def shown_frontier(source: SyntheticSource) -> str:
    """What ``slackwater status`` says; empty when it cannot."""
    try:
        lines = status_lines(source.store, source.name, 1, SystemClock().now())
    except MarkerStoreUnavailableError:
        return ""
    return next((line.split()[1] for line in lines if line.startswith("frontier")), "")


def held_without_hole(source: SyntheticSource) -> bool:
    cuts = [published.cut for published in source.store.cuts_after(source.name, 1, 0, limit=100_000)]
    return bool(cuts) and all(b.previous_lsn <= a.lsn for a, b in pairwise(cuts))


def test_redis_may_be_killed_and_come_back_empty(followed: Follower, redis: RedisServer) -> None:
    redis.kill()
    followed.follow_further()
    redis.start()


def test_redis_may_be_emptied(followed: Follower, redis: RedisServer) -> None:
    with Redis.from_url(redis.url) as client:
        client.flushall()


def save_copy(redis: RedisServer, path: Path) -> None:
    """Writes all that it holds to a file."""
    with Redis.from_url(redis.url) as client:
        client.save()
    (redis.folder / "redis" / "dump.rdb").rename(path)


def replace_by_copy(redis: RedisServer, path: Path) -> None:
    """Ends it as a crash would and starts it with what a copy holds, of itself or of another server."""
    redis.kill()
    dump = redis.folder / "redis" / "dump.rdb"
    shutil.copy(path, dump)
    try:
        redis.start()
    finally:
        dump.unlink(missing_ok=True)


def test_redis_may_be_replaced_by_an_older_copy_of_itself(
    followed: Follower, redis: RedisServer, tmp_path: Path
) -> None:
    save_copy(redis, tmp_path / "copy")
    followed.follow_further()
    replace_by_copy(redis, tmp_path / "copy")


@pytest.mark.parametrize("lsn", ["9223372036854775807", "no number"])
def test_redis_may_be_written_to_by_somebody_else(
    followed: Follower, source: SyntheticSource, redis: RedisServer, lsn: str
) -> None:
    """Believed, the first one would end all cuts; see also sidecar/tests/test_poisoned_redis.py."""
    forged = wrong_cut(source.name, 1, 2**62)
    with Redis.from_url(redis.url) as client:
        client.hset(frontier_key(source.name), mapping={"timeline": 99, "lsn": lsn, "log": 0})
        client.xadd(cuts_key(source.name, 1), {"cut": encode_cut(forged), "log": 0}, id=f"{2**62}-1")
        client.hset(markers_key(source.name), "x", "y")
    followed.follow_further()


def test_redis_may_be_slower_than_anybody_waits(followed: Follower, route: TcpProxy) -> None:
    route.delay(timedelta(seconds=2))
    followed.follow_further()
    followed.follow_further()
    route.delay(timedelta())


def test_redis_may_be_replaced_by_that_of_another_cluster(
    source: SyntheticSource, redis: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """There the source of this name is on a later timeline, and further on this one."""
    others = RedisMarkerStore.connect(redis.url)
    others.bind("the cut log of another cluster")
    for timeline, lsn in ((1, 2), (1, 70), (1, 10**12), (2, 30)):
        others.put_cut(PublishedCut(wrong_cut(source.name, timeline, lsn), 0), OTHERS_STATUS)
    others.close()
    save_copy(redis, tmp_path / "copy")

    followed: Follower = request.getfixturevalue("followed")
    replace_by_copy(redis, tmp_path / "copy")
    followed.follow_further()


OTHERS_STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=0, sidecar="another")


def wrong_cut(source: str, timeline: int, lsn: int) -> Cut:
    return Cut(
        source=source,
        timeline=timeline,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=0,
        event_count=lsn,
        transactions=(CommittedTransaction(1, lsn, 0),),
        end_offsets={f"{source}.shop.orders": (9, 9, 9, 9)},
        transaction_offset=9,
    )


def test_sidecar_and_pipeline_need_no_more_than_their_documented_users(
    source: SyntheticSource, redis: RedisServer
) -> None:
    urls = {}
    with Redis.from_url(redis.url) as admin:
        for line in DOCUMENT.read_text().splitlines():
            if line.startswith("user slackwater-"):
                _, name, *rules = line.replace("{inv}", f"{{{source.name}}}").split()
                cast("Any", admin).execute_command("ACL", "SETUSER", name, *rules)
                password = next(rule[1:] for rule in rules if rule.startswith(">"))
                urls[name] = f"redis://{name}:{password}@127.0.0.1:{redis.port}"
    follower = Follower(source, urls["slackwater-pipeline"])
    with a_sidecar(source, urls["slackwater-sidecar"]) as said, writing(source):
        follower.follow_further()
        follower.follow_until(lambda: follower.may_ask_redis and source.in_redis() > 0)
        follower.follow_until(lambda: len(said) > 1 and said[-1].redis_error is None)
    follower.close()
