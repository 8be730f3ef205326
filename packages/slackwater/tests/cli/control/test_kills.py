"""The control plane is killed while it does what it was asked for: that is done as a whole, or not at all.

Its process is killed at a random moment after a request, is started again by the one that holds it, and is
asked once more. Seen to fail: a switch to what is read already is written once more.
"""

import json
import multiprocessing
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from slackwater.cli.control.api import ROOT
from slackwater.cli.control.server import control_plane
from slackwater.client.feeds import switch_log
from slackwater.client.kafka import KafkaBroker
from slackwater.command.listening import Role, new_token
from slackwater.cuts import LeaseLog
from slackwater.dev import KafkaBroker as Broker
from slackwater.protocol import (
    Hold,
    KafkaSettings,
    LakeSettings,
    Lease,
    Servers,
    SystemClock,
    epoch_ms,
)
from slackwater.settings.model import ControlSection, DeltaSection, KafkaSection, RedisSection, Settings
from slackwater_lab.publishing import published_revisions

pytestmark = pytest.mark.integration

SECONDS = 300
ROUNDS = [2, pytest.param(25, marks=pytest.mark.slow)]
LONGEST = 0.4
"""Seconds; a request of these takes about half as long."""


class Plane:
    """A control plane whose answering process is killed now and then."""

    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = urlsplit(address).netloc, token

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Asks once; raises OSError or HTTPException if there is no answer."""
        with closing(HTTPConnection(self._address, timeout=SECONDS)) as connection:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, ROOT + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def ask_until_answered(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        clock = SystemClock()
        deadline = clock.monotonic() + SECONDS
        while True:
            try:
                return self.ask(method, path, body)
            except (OSError, HTTPException):
                assert clock.monotonic() < deadline
                threading.Event().wait(0.05)

    def wait_until_known(self, path: str) -> None:
        """The picture is read again once a second: what has just registered is not in it yet."""
        clock = SystemClock()
        deadline = clock.monotonic() + SECONDS
        while self.ask_until_answered("GET", path)[0] != HTTPStatus.OK:
            assert clock.monotonic() < deadline
            threading.Event().wait(0.05)

    def ask_and_kill(self, path: str, body: Any, after: float) -> None:
        """Sends requests, and kills the server that answers after this many seconds."""

        def asking() -> None:
            with suppress(OSError, HTTPException):  # it may be killed before it answers
                self.ask("POST", path, body)

        (process,) = [each for each in multiprocessing.active_children() if each.name == "control-plane"]
        thread = threading.Thread(target=asking)
        thread.start()
        threading.Event().wait(after)
        process.kill()
        process.join()
        thread.join()


@pytest.fixture
def servers(kafka_broker: Broker, tmp_path: Path) -> Servers:
    return Servers(KafkaSettings(kafka_broker.bootstrap), delta=LakeSettings(place=str(tmp_path / "lake")))


@pytest.fixture
def plane(servers: Servers, tmp_path: Path) -> Iterator[Plane]:
    token, entry = new_token("somebody", Role.OPERATOR)
    (tmp_path / "tokens.toml").write_text(entry)
    settings = Settings(
        source="inv",
        kafka=KafkaSection(bootstrap=servers.kafka.bootstrap),
        redis=RedisSection(url="redis://127.0.0.1:1"),
        delta=DeltaSection(place=str(tmp_path / "lake")),
        control=ControlSection(
            listen="127.0.0.1:0", tokens=tmp_path / "tokens.toml", requests_per_second=1000
        ),
    )
    with control_plane(settings) as started:
        assert started is not None
        found = Plane(started.address, token)
        found.ask_until_answered("GET", "/topology")
        yield found


@pytest.mark.full
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("kind", ["kafka", "delta"])
def test_readers_are_switched_once_whenever_it_is_killed(
    kind: str, rounds: int, plane: Plane, servers: Servers, tmp_path: Path
) -> None:
    rng = random.Random(rounds)
    with ExitStack() as opened:
        base, old, new = published_revisions(kind, servers, tmp_path, opened)
        for each in (old, new):
            each.publish({1: 1})
        path = f"/revisions/{base}"
        plane.wait_until_known(path)
        assert plane.ask_until_answered("POST", f"{path}/switch", {"revision": 1})[0] == 200
        for round_number in range(rounds):
            wanted = 2 - round_number % 2
            plane.ask_and_kill(f"{path}/switch", {"revision": wanted}, rng.uniform(0, LONGEST))
            status, found = plane.ask_until_answered("GET", path)
            assert status == 200
            assert [len(each["read_by"]) for each in found].count(1) == 1
            for _ in range(2):
                status, answer = plane.ask_until_answered("POST", f"{path}/switch", {"revision": wanted})
                assert status == 200, answer
            (_, found) = plane.ask_until_answered("GET", path)
            assert [each["revision"] for each in found if each["read_by"]] == [wanted]
            for each in (old, new):  # and the topics of both are as they were
                each.publish({1: round_number})
        if kind == "kafka":
            broker = KafkaBroker(servers.kafka, "judge", 1 << 20)
            with closing(switch_log(broker, base, SystemClock())) as log:
                revisions = [each.revision for each in log.entries(*log.bounds())]
            assert revisions == [1 + number % 2 for number in range(rounds + 1)]


@pytest.mark.full
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_lease_is_ended_whenever_it_is_killed(rounds: int, plane: Plane, servers: Servers) -> None:
    rng, now_ms = random.Random(rounds), epoch_ms(SystemClock().now())
    with closing(LeaseLog(servers.kafka)) as log:
        log.ensure()
        for round_number in range(rounds):
            lease = Lease(
                id=f"lease{round_number}",
                source="inv",
                timeline=1,
                commit_lsn=7,
                pipelines=("one", "two"),
                holder="a report",
                taken_ms=now_ms,
                expires_ms=now_ms + 3_600_000,
            )
            holds = [
                Hold(lease=lease.id, pipeline=name, until_ms=lease.expires_ms, refusal="")
                for name in lease.pipelines
            ]
            log.write(lease, *holds)
            plane.ask_and_kill(f"/leases/{lease.id}", {"end": True}, rng.uniform(0, LONGEST))
            assert plane.ask_until_answered("POST", f"/leases/{lease.id}", {"end": True})[0] in (200, 404)
            assert plane.ask_until_answered("GET", "/leases")[1] == []
            left = log.read()
            assert [each for each in left if isinstance(each, Lease)] == []
            log.remove(left)  # as the pipelines do that have answered
