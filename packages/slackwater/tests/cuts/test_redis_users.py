"""The users of docs/sidecar.md: each may do what it has to, and nothing else."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from slackwater.cuts import (
    FrontierState,
    FrontierStatus,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
)
from slackwater.dev import RedisServer
from slackwater.protocol import CommitPosition, Cut, Marker, OpenTransaction, PublishedCut
from slackwater.protocol.keys import cuts_key, frontier_key, markers_key

MakeCut = Callable[..., Cut]
Work = Callable[[RedisMarkerStore, MakeCut], None]

DOCUMENT = Path(__file__).parents[4] / "docs" / "sidecar.md"
SOURCE = "inv"
STATUS = FrontierStatus(state=FrontierState.RUNNING, wall_ms=1000, sidecar="a")


@dataclass(frozen=True, slots=True)
class User:
    """A line of the document."""

    name: str
    rules: tuple[str, ...]

    @property
    def password(self) -> str:
        return next(rule[1:] for rule in self.rules if rule.startswith(">"))

    @property
    def commands(self) -> list[str]:
        return [rule for rule in self.rules if rule.startswith("+")]


def documented_users() -> dict[str, User]:
    lines = [
        line.split() for line in DOCUMENT.read_text().splitlines() if line.startswith("user slackwater-")
    ]
    return {words[1]: User(words[1], tuple(words[2:])) for words in lines}


USERS = documented_users()


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """Knows nothing of the source."""
    store = RedisMarkerStore.connect(redis_server.url)
    store.clear(SOURCE, 0)
    store.close()
    return redis_server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


def set_user(admin: redis.Redis, name: str, user: User) -> None:
    cast("Any", admin).execute_command("ACL", "SETUSER", name, "reset", *user.rules)


Connect = Callable[[User], RedisMarkerStore]


@pytest.fixture
def connect(admin: redis.Redis, server: RedisServer) -> Iterator[Connect]:
    """A store for a user, under a name of its own so that lines may be changed."""
    made: list[tuple[str, RedisMarkerStore]] = []

    def as_user(user: User) -> RedisMarkerStore:
        name = f"{user.name}-{uuid.uuid4().hex[:6]}"
        set_user(admin, name, user)
        url = f"redis://{name}@127.0.0.1:{server.port}"
        store = RedisMarkerStore.connect(url, password=user.password)
        store.max_cuts = 1
        made.append((name, store))
        return store

    yield as_user
    for name, store in made:
        store.close()
        admin.acl_deluser(name)


def work_of_a_sidecar(store: RedisMarkerStore, make_cut: MakeCut) -> None:
    for log in ("another log", "the log"):
        store.bind(log)
        store.adopt(SOURCE)
        for lsn in (10, 20):
            assert store.put_cut(PublishedCut(make_cut(SOURCE, lsn), lsn), STATUS)
        store.set_markers(SOURCE, CommitPosition(0, 20), {("t", 0): Marker(50, 5)})
    store.put_cut(PublishedCut(make_cut(SOURCE, 10), 10), STATUS)
    store.position(SOURCE)
    store.newest(SOURCE, 0)
    store.set_status(SOURCE, STATUS)
    waiting = OpenTransaction(xid=1, commit_lsn=None, since_ms=0, expected={}, received={})
    store.set_open(SOURCE, [waiting])
    store.set_open(SOURCE, [])


def work_of_a_pipeline(store: RedisMarkerStore, make_cut: MakeCut) -> None:
    store.bind("the log")
    store.position(SOURCE)


def work_of_an_operator(store: RedisMarkerStore, make_cut: MakeCut) -> None:
    store.status(SOURCE)
    store.position(SOURCE)
    store.newest(SOURCE, 0)
    store.open(SOURCE)


WORK: dict[str, Work] = {
    "slackwater-sidecar": work_of_a_sidecar,
    "slackwater-pipeline": work_of_a_pipeline,
    "slackwater-operator": work_of_an_operator,
}


def test_the_document_has_a_line_for_every_user() -> None:
    assert USERS.keys() == WORK.keys()


@pytest.mark.integration
@pytest.mark.parametrize("name", USERS)
def test_each_user_can_do_its_work(make_cut: MakeCut, connect: Connect, name: str) -> None:
    WORK[name](connect(USERS[name]), make_cut)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name, user in USERS.items() for command in user.commands]
)
def test_no_user_has_a_command_that_it_does_not_need(
    make_cut: MakeCut, admin: redis.Redis, connect: Connect, name: str, command: str
) -> None:
    user = USERS[name]
    without = User(user.name, tuple(rule for rule in user.rules if rule != command))
    admin.script_flush()
    store = connect(without)
    with pytest.raises(MarkerStoreUnavailableError):
        WORK[name](store, make_cut)


BEYOND = {
    "slackwater-sidecar": [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "GET", "*"),
        ("EVAL", "return 1", "0"),
        ("HGET", frontier_key("another"), "lsn"),
    ],
    "slackwater-pipeline": [
        ("FLUSHALL",),
        ("UNLINK", markers_key(SOURCE)),
        ("XADD", cuts_key(SOURCE, 0), "99-1", "cut", "x"),
        ("XTRIM", cuts_key(SOURCE, 0), "MINID", "99"),
        ("XRANGE", cuts_key(SOURCE, 0), "-", "+"),
        ("HMGET", frontier_key("another"), "lsn"),
        ("HSET", frontier_key(SOURCE), "lsn", "1"),
    ],
    "slackwater-operator": [
        ("FLUSHALL",),
        ("HSET", frontier_key(SOURCE), "state", "running"),
        ("UNLINK", frontier_key(SOURCE)),
        ("GET", "a key of somebody else"),
        ("ACL", "LIST"),
    ],
}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name, commands in BEYOND.items() for command in commands]
)
def test_what_lies_beyond_is_refused(
    admin: redis.Redis, server: RedisServer, name: str, command: tuple[str, ...]
) -> None:
    set_user(admin, name, USERS[name])
    client = redis.Redis(port=server.port, username=name, password=USERS[name].password)
    with client, pytest.raises(redis.exceptions.NoPermissionError):
        cast("Any", client).execute_command(*command)
