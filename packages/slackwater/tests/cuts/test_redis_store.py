"""What only the store in Redis does."""

import pickle
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis

from slackwater.cuts import (
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
)
from slackwater.dev import RedisServer
from slackwater.protocol import CommitPosition, Cut, OpenTransaction, PublishedCut, encode_cut
from slackwater.protocol.keys import cuts_key, frontier_key

MakeCut = Callable[..., Cut]

RUNNING = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1000, sidecar="a")


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def put_all(make_cut: MakeCut, store: RedisMarkerStore, source: str, lsns: range) -> None:
    for lsn in lsns:
        store.put_cut(PublishedCut(make_cut(source, lsn), lsn), RUNNING)


def kept(store: RedisMarkerStore, source: str) -> list[int]:
    return [c.cut.lsn for c in store.cuts_after(source, 0, 0, limit=1000)]


@pytest.mark.integration
def test_entries_have_the_published_layout(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    cut = make_cut(source, 100)
    RedisMarkerStore.connect(redis_url).put_cut(PublishedCut(cut, 17), RUNNING)
    assert client.xrange(cuts_key(source, 0)) == [(b"100-1", {b"cut": encode_cut(cut), b"log": b"17"})]
    assert client.hgetall(frontier_key(source)) == {
        b"lsn": b"100",
        b"timeline": b"0",
        b"commit_ts_ms": b"1795206861409",
        b"event_count": b"100",
        b"log": b"17",
        b"publisher": b"a",
        b"wall_ms": b"1000",
        b"sidecar": b"a",
        b"state": b"running",
        b"detail": b"",
        b"on_timeline": b"",
        b"regression": b"",
    }


@pytest.mark.integration
def test_only_the_newest_cuts_are_kept_by_number(make_cut: MakeCut, redis_url: str, source: str) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.max_cuts = 3
    put_all(make_cut, store, source, range(1, 10))
    assert kept(store, source) == [7, 8, 9]


@pytest.mark.integration
def test_only_the_newest_cuts_are_kept_by_size(make_cut: MakeCut, redis_url: str, source: str) -> None:
    size = len(encode_cut(make_cut(source, 1)))
    store = RedisMarkerStore.connect(redis_url)
    store.max_bytes = 2 * size + 10
    put_all(make_cut, store, source, range(1, 9))
    assert kept(store, source) == [7, 8]


@pytest.mark.integration
def test_retention_survives_a_flush_and_a_refill(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.max_cuts = 3
    put_all(make_cut, store, source, range(1, 10))
    client.delete(cuts_key(source, 0), frontier_key(source))
    put_all(make_cut, store, source, range(1, 10))
    assert kept(store, source) == [7, 8, 9]


@pytest.mark.integration
def test_a_key_that_holds_something_else_is_reported(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    client.set(cuts_key(source, 0), "something else")
    store = RedisMarkerStore.connect(redis_url)
    with pytest.raises(MarkerStoreUnavailableError, match="WRONGTYPE"):
        store.put_cut(PublishedCut(make_cut(source, 1), 0), RUNNING)
    assert store.status(source) is None


@pytest.mark.integration
def test_a_cut_above_the_size_to_keep_stays_while_it_is_the_newest(
    make_cut: MakeCut, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.max_bytes = 1
    put_all(make_cut, store, source, range(1, 4))
    assert kept(store, source) == [3]


@pytest.mark.integration
def test_a_cut_that_is_given_again_counts_once(make_cut: MakeCut, redis_url: str, source: str) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.max_cuts = 3
    for lsn in (1, 2, 2, 2, 3):
        store.put_cut(PublishedCut(make_cut(source, lsn), lsn), RUNNING)
    assert kept(store, source) == [1, 2, 3]


@pytest.mark.integration
def test_cuts_of_a_new_timeline_are_kept_though_their_lsns_are_below(
    make_cut: MakeCut, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.max_cuts = 2
    put_all(make_cut, store, source, range(100, 104))
    store.put_cut(PublishedCut(make_cut(source, 7, timeline=1), 9), RUNNING)
    assert [c.cut.lsn for c in store.cuts_after(source, 1, 0, limit=9)] == [7]


@pytest.mark.integration
def test_a_timeline_that_is_no_number_is_reported_and_can_be_cleared(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    client.hset(frontier_key(source), "timeline", "x")
    with pytest.raises(MarkerStoreUnavailableError, match="WRONGVALUE"):
        store.put_cut(PublishedCut(make_cut(source, 1), 0), RUNNING)
    with pytest.raises(MarkerStoreUnavailableError, match="WRONGVALUE"):
        store.set_markers(source, CommitPosition(0, 1), {})
    store.clear(source, 0)
    assert store.put_cut(PublishedCut(make_cut(source, 1), 0), RUNNING)
    store.bind("a log")
    for forget in (lambda: store.clear(source, 0), lambda: store.adopt(source)):
        client.set(frontier_key(source), "something else")
        forget()
        assert client.exists(frontier_key(source)) == 0


@pytest.mark.integration
def test_a_stream_that_is_full_takes_no_cut(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    client.xadd(cuts_key(source, 0), {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    assert not RedisMarkerStore.connect(redis_url).put_cut(PublishedCut(make_cut(source, 1), 0), RUNNING)


@pytest.mark.integration
@pytest.mark.parametrize(("is_known", "timeline"), [(True, 0), (False, 3)])
def test_the_cuts_of_all_timelines_are_cleared(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str, is_known: bool, timeline: int
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.put_cut(PublishedCut(make_cut(source, 1, timeline=3), 0), RUNNING)
    if not is_known:
        client.delete(frontier_key(source))
    store.clear(source, timeline)
    assert store.newest(source, 3) is None


@pytest.mark.integration
def test_a_cut_that_is_refused_changes_nothing_and_markers_say_their_timeline(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url)
    store.put_cut(PublishedCut(make_cut(source, 2, timeline=3), 0), RUNNING)
    before = client.hgetall(frontier_key(source))
    store.bind("one log")
    assert not store.put_cut(PublishedCut(make_cut(source, 1, timeline=3), 9), RUNNING)
    assert client.hgetall(frontier_key(source)) == before
    store.set_markers(source, CommitPosition(3, 2), {})
    assert client.hget(frontier_key(source), "markers_timeline") == b"3"


@pytest.mark.integration
def test_open_transactions_that_cannot_be_written_replace_nothing(
    client: redis.Redis, redis_server: RedisServer, redis_url: str, source: str
) -> None:
    waiting = OpenTransaction(xid=1, commit_lsn=None, since_ms=0, expected={}, received={})
    store = RedisMarkerStore.connect(redis_url)
    store.set_open(source, [waiting])
    client.acl_setuser(source, enabled=True, nopass=True, keys=["*"], commands=["+@all", "-hset"])
    other = RedisMarkerStore.connect(f"redis://{source}:x@127.0.0.1:{redis_server.port}")
    with pytest.raises(MarkerStoreUnavailableError):
        other.set_open(source, [waiting, waiting])
    assert store.open(source) == [waiting]
    other.close()
    client.acl_deluser(source)


def test_a_server_that_is_away_is_named_with_what_to_do() -> None:
    store = RedisMarkerStore.connect("redis://:secret@127.0.0.1:1/0", timeout=timedelta(seconds=1))
    with pytest.raises(MarkerStoreUnavailableError) as caught:
        store.newest("inv", 0)
    assert caught.value.operation == "newest"
    assert "127.0.0.1:1" in str(caught.value)
    assert "check that Redis is running" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = RedisMarkerStore.connect(f"redis://127.0.0.1:{port}", timeout=timedelta(milliseconds=50))
        with pytest.raises(MarkerStoreUnavailableError, match="Timeout"):
            store.status("inv")
        store.close()
