"""Two sidecars of one source, as processes, with a real broker and a real Redis: one sequence of cuts."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from slackwater_devstack import KafkaBroker, RedisServer
from slackwater_markers import KafkaCutLog, RedisMarkerStore
from slackwater_protocol import Cut
from slackwater_sidecar.testing import SyntheticSource
from slackwater_spark.source.cut_feed import CutFeed, FeedKey
from slackwater_spark.source.offset import SourceOffset

pytestmark = pytest.mark.integration

Start = Callable[[], "subprocess.Popen[bytes]"]

_WRITTEN_TOGETHER = 5
_WRITER_PAUSE_SECONDS = 0.01


class Follower:
    """Follows the cuts as the driver of a pipeline does."""

    def __init__(self, source: SyntheticSource) -> None:
        log = KafkaCutLog(source.name, source.bootstrap)
        store = RedisMarkerStore.connect(source.redis_url)
        self.cuts: list[Cut] = []
        self._feed = CutFeed(FeedKey(source.name, 1), store=store, log=log, monotonic=time.monotonic)
        self._position = SourceOffset.before_everything(source.name, 1)

    @property
    def lsn(self) -> int:
        return self._position.lsn

    def follow(self) -> None:
        for published in self._feed.after(self._position, max_events=None):
            previous, cut = self._position.lsn, published.cut
            assert cut.previous_lsn <= previous < cut.lsn
            new = tuple(t for t in cut.transactions if t.commit_lsn > previous)
            self.cuts.append(replace(cut, previous_lsn=previous, transactions=new))
            self._position = self._position.advanced_to(published, [])

    def follow_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"the pipeline is at {self.lsn} after a minute"
            self.follow()

    def follow_further(self) -> None:
        """Until a hundred transactions more are visible."""
        at = self.lsn + 10_000
        self.follow_until(lambda: self.lsn > at)

    def close(self) -> None:
        self._feed.close()


@pytest.fixture
def source(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Iterator[SyntheticSource]:
    result = SyntheticSource(kafka_broker.bootstrap, redis_server.url)
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
        process.wait(30)


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
        writer.join(30)


class Sidecars:
    """Processes of one source, by what they call themselves."""

    def __init__(self, source: SyntheticSource, start: Start, follower: Follower) -> None:
        self._source = source
        self._start = start
        self._follower = follower
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, count: int) -> None:
        """So many more; returns when all of them have said that they run."""
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


def test_two_sidecars_write_one_sequence_of_cuts_and_either_may_be_killed(
    source: SyntheticSource, follower: Follower, start: Start
) -> None:
    sidecars = Sidecars(source, start, follower)
    with writing(source):
        sidecars.add(2)
        follower.follow_further()
        sidecars.kill_the_one_that_writes()
        sidecars.add(1)
        follower.follow_further()
        sidecars.kill_the_one_that_writes()
        follower.follow_further()
    follower.follow_until(lambda: follower.lsn == source.newest_lsn)

    assert source.oracle.complaints(follower.cuts) == []
    written = Counter(published.cut.lsn for published in source.log.tail(-1))
    repeated = sum(times - 1 for times in written.values())
    assert repeated <= len(written) / 10
