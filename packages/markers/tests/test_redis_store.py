"""What only the store in Redis does."""

import pickle
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis

from slackwater_markers import (
    CutRetention,
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
)
from slackwater_protocol import Cut, PublishedCut, encode_cut
from slackwater_protocol.keys import cuts_key, frontier_key

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
    store = RedisMarkerStore.connect(redis_url, retention=CutRetention(max_cuts=3))
    put_all(make_cut, store, source, range(1, 10))
    assert kept(store, source) == [7, 8, 9]


@pytest.mark.integration
def test_only_the_newest_cuts_are_kept_by_size(make_cut: MakeCut, redis_url: str, source: str) -> None:
    size = len(encode_cut(make_cut(source, 1)))
    store = RedisMarkerStore.connect(redis_url, retention=CutRetention(max_bytes=2 * size + 10))
    put_all(make_cut, store, source, range(1, 9))
    assert kept(store, source) == [7, 8]


@pytest.mark.integration
def test_retention_survives_a_flush_and_a_refill(
    make_cut: MakeCut, client: redis.Redis, redis_url: str, source: str
) -> None:
    store = RedisMarkerStore.connect(redis_url, retention=CutRetention(max_cuts=3))
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
