"""A client that can write to Redis, but not to the cut log, neither stops cuts nor falsifies them."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest
import redis

from slackwater.cuts import (
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
    StoredPosition,
    StoreFault,
    markers_of,
)
from slackwater.dev import RedisServer
from slackwater.protocol import Clock, OpenTransaction, encode_cut
from slackwater.protocol.keys import cuts_key, frontier_key, markers_key, open_key
from slackwater_lab.fakes.memory import InMemoryCutLog
from slackwater_lab.fakes.sources import cut
from slackwater_sidecar import Publisher

pytestmark = pytest.mark.integration

SOURCE = f"s{uuid.uuid4().hex[:10]}"
FRONTIER, CUTS, MARKERS, OPEN = (
    frontier_key(SOURCE),
    cuts_key(SOURCE, 1),
    markers_key(SOURCE),
    open_key(SOURCE),
)
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1, sidecar="me", timeline=1)
WAITING = OpenTransaction(xid=7, commit_lsn=None, since_ms=1, expected={}, received={"s.a": 1})


NEWEST = cut(3, SOURCE)
"""Is at offset 2 of the log."""


class World:
    """A sidecar's publisher over a real Redis, and somebody else who writes to it."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.clock = clock
        self.log = InMemoryCutLog(SOURCE)
        self.store = RedisMarkerStore.connect(url)
        self.raw = redis.Redis.from_url(url)
        self.raw.flushall()
        self.publisher = Publisher(SOURCE, self.log, self.store, restored_cuts=100, clock=clock)
        self.publisher.report(STATUS, [])
        self.publisher.publish([cut(1, SOURCE), cut(2, SOURCE), NEWEST], STATUS)
        self.publisher.report(STATUS, [WAITING])

    def set_frontier(self, **fields: str | bytes | int) -> None:
        self.raw.hset(FRONTIER, mapping=fields)  # type: ignore[arg-type]

    def replace_key(self, key: str, value: str = "something else") -> None:
        self.raw.delete(key)
        self.raw.set(key, value)

    def replace_cuts(self, entry_id: str, data: bytes, log: str = "2") -> None:
        self.raw.delete(CUTS)
        self.raw.xadd(CUTS, {"cut": data, "log": log}, id=entry_id)

    def add_cut(self, entry_id: str, data: bytes, log: str = "2") -> object:
        return self.raw.xadd(CUTS, {"cut": data, "log": log}, id=entry_id)

    def question_everything(self) -> list[str]:
        """Reads what Redis holds; the kinds of what could not be read."""
        store, failures = self.store, []
        questions: list[Callable[[], object]] = [
            lambda: store.position(SOURCE),
            lambda: store.newest(SOURCE, 1),
            lambda: store.cuts_after(SOURCE, 1, 0, limit=10),
            lambda: store.markers(SOURCE),
            lambda: store.status(SOURCE),
            lambda: store.open(SOURCE),
        ]
        for question in questions:
            try:
                question()
            except MarkerStoreUnavailableError as error:
                if error.fault is StoreFault.CONTENT:
                    failures.append(error.operation)
        return failures


@pytest.fixture
def world(redis_server: RedisServer, clock: Clock) -> Iterator[World]:
    made = World(redis_server.url, clock)
    with closing(made.store):
        yield made
    cast("Any", made.raw).close()


Poison = Callable[[World], object]


def pretend(**changes: Any) -> bytes:
    return encode_cut(replace(NEWEST, **changes))


UNSEEN: dict[str, Poison] = {
    "another sidecar published": lambda w: w.set_frontier(publisher="other"),
    "no log is named": lambda w: w.raw.hdel(FRONTIER, "log_id"),
    "a state of its own": lambda w: w.set_frontier(state="nonsense"),
    "a time that is none": lambda w: w.set_frontier(wall_ms="soon"),
    "a time in the far future": lambda w: w.set_frontier(wall_ms=2**60),
    "a timeline of the status that is none": lambda w: w.set_frontier(on_timeline="x"),
    "a regression that is a number": lambda w: w.set_frontier(regression="7"),
    "a regression without fields": lambda w: w.set_frontier(regression="{}"),
    "a regression of texts": lambda w: w.set_frontier(
        regression=json.dumps(
            dict.fromkeys(("transaction_offset", "xid", "commit_lsn", "newest_lsn", "has_snapshot"), "x")
        )
    ),
    "markers of another type": lambda w: w.replace_key(MARKERS),
    "markers far ahead": lambda w: w.raw.hset(
        MARKERS, f"{SOURCE}.s.a/0", '{"v":2,"lsn":4611686018427387904,"offset":4611686018427387904}'
    ),
    "a marker of no partition": lambda w: w.raw.hset(MARKERS, "x", "y"),
    "a marker is missing": lambda w: w.raw.hdel(MARKERS, f"{SOURCE}.s.a/1"),
    "markers are missing": lambda w: w.raw.delete(MARKERS),
    "open transactions of another type": lambda w: w.replace_key(OPEN),
    "open transactions that are none": lambda w: w.raw.hset(OPEN, "8", '{"v":2,"xid":"x"}'),
    "a cut at the last id": lambda w: w.add_cut(f"{2**64 - 1}-{2**64 - 1}", pretend()),
    "a cut that was removed again": lambda w: [
        w.add_cut(f"{2**62}-1", pretend()),
        w.raw.xdel(CUTS, f"{2**62}-1"),
    ],
}
"""What the next report writes again in any case, or what shows with the next cut only."""

SEEN: dict[str, Poison] = {
    "frontier far ahead": lambda w: w.set_frontier(lsn=2**62),
    "frontier a little ahead": lambda w: w.set_frontier(lsn=4),
    "frontier too large": lambda w: w.set_frontier(lsn=2**70),
    "frontier negative": lambda w: w.set_frontier(lsn=-1),
    "frontier no number": lambda w: w.set_frontier(lsn="x"),
    "frontier behind, at the newest offset": lambda w: w.set_frontier(lsn=2),
    "timeline far ahead": lambda w: w.set_frontier(timeline=99),
    "timeline beyond all numbers": lambda w: w.set_frontier(timeline="9" * 400),
    "timeline no number": lambda w: w.set_frontier(timeline="x"),
    "timeline behind": lambda w: w.set_frontier(timeline=0),
    "log offset beyond the end": lambda w: w.set_frontier(log=2**62),
    "log offset of another cut": lambda w: w.set_frontier(log=0),
    "log offset negative": lambda w: w.set_frontier(log=-1),
    "log offset no number": lambda w: w.set_frontier(log="x"),
    "all of it, far ahead": lambda w: w.set_frontier(lsn=2**62, timeline=99, log=1, publisher="other"),
    "another log": lambda w: w.set_frontier(log_id="other", lsn=2**62),
    "a publisher that is no text": lambda w: w.set_frontier(publisher=b"\xff"),
    "no LSN": lambda w: w.raw.hdel(FRONTIER, "lsn"),
    "no frontier": lambda w: w.raw.delete(FRONTIER),
    "frontier of another type": lambda w: w.replace_key(FRONTIER),
    "no cuts": lambda w: w.raw.delete(CUTS),
    "cuts of another type": lambda w: w.replace_key(CUTS),
    "a cut far ahead": lambda w: w.add_cut(f"{2**62}-1", pretend(lsn=2**62, previous_lsn=3)),
    "a cut behind": lambda w: w.replace_cuts("2-1", encode_cut(cut(2, SOURCE)), "1"),
    "an older cut in the newest one's place": lambda w: w.replace_cuts(
        "3-1", encode_cut(cut(2, SOURCE)), "1"
    ),
    "other end offsets": lambda w: w.replace_cuts("3-1", pretend(end_offsets={f"{SOURCE}.s.a": (9, 9)})),
    "other transactions": lambda w: w.replace_cuts("3-1", pretend(transactions=())),
    "the log offset of another": lambda w: w.replace_cuts("3-1", pretend(), "1"),
    "an invented log offset": lambda w: w.replace_cuts("3-1", pretend(), "99"),
    "a log offset that is no number": lambda w: w.replace_cuts("3-1", pretend(), "x"),
    "the cut of another source": lambda w: w.replace_cuts("3-1", pretend(source="other")),
    "a cut that is none": lambda w: w.replace_cuts("3-1", b"\xff"),
    "an LSN that is a text": lambda w: w.replace_cuts("3-1", pretend().replace(b'"lsn":3', b'"lsn":"3"')),
    "fields of another kind": lambda w: (w.raw.delete(CUTS), w.raw.xadd(CUTS, {"x": "y"}, id="3-1")),
}
"""What has to be noticed, removed and said."""
POISONS = UNSEEN | SEEN


@pytest.mark.parametrize("poison", POISONS)
def test_what_somebody_else_wrote_stops_no_cut_and_is_put_right(world: World, poison: str) -> None:
    """With positions below the end of the log believed, cuts end for ever at "frontier far ahead"."""
    POISONS[poison](world)
    world.question_everything()

    world.publisher.publish([cut(4, SOURCE)], STATUS)
    world.clock.seconds += 1  # type: ignore[attr-defined]
    world.publisher.publish([], STATUS)
    assert [c.cut.lsn for c in world.log.tail(-1)] == [1, 2, 3, 4]

    world.publisher.report(STATUS, [WAITING])
    store = world.store
    assert store.newest(SOURCE, 1) == world.log.newest()
    assert store.position(SOURCE) == StoredPosition(cut(4, SOURCE).position, 3, "me")
    assert store.markers(SOURCE) == markers_of(cut(4, SOURCE))
    assert store.status(SOURCE) == STATUS
    assert store.open(SOURCE) == [WAITING]
    assert world.publisher.mirror.error is None


@pytest.mark.parametrize("poison", SEEN)
def test_a_quiet_sidecar_puts_it_right_too_and_says_so(
    world: World, poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    SEEN[poison](world)

    world.publisher.report(STATUS, [WAITING])

    assert world.question_everything() == []
    assert world.store.cuts_after(SOURCE, 1, 0, limit=10) == world.log.tail(-1)
    assert world.store.position(SOURCE) == StoredPosition(NEWEST.position, 2, "me")
    assert world.publisher.mirror.corrections == 1
    assert "Redis contained data that the cut log does not confirm" in caplog.text
    world.clock.seconds += 60  # type: ignore[attr-defined]
    world.publisher.report(STATUS, [WAITING])
    assert world.publisher.mirror.corrections == 1, "it is right now"


def test_timelines_that_redis_invents_are_not_counted_through(world: World) -> None:
    """Redis does nothing else while a script runs."""
    world.set_frontier(timeline=10**18, log_id="other")
    world.publisher.report(STATUS, [])
    world.set_frontier(timeline=10**18)
    world.publisher.report(STATUS, [])
    assert world.store.position(SOURCE) == StoredPosition(NEWEST.position, 2, "me")
