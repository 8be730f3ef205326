import contextlib
import itertools
import threading
from pathlib import Path

import pytest

from slackwater.dev import KafkaBroker, RedisServer
from slackwater.dev import server as server_module


def test_two_threads_that_ask_first_get_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing down the state of the stack asks for the port of a server that is just being started."""
    numbers = itertools.count(10_000)
    both_asked = threading.Barrier(2)

    def slow_free_port() -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_asked.wait(0.5)  # only passed when both threads choose
        return next(numbers)

    monkeypatch.setattr(server_module, "free_port", slow_free_port)
    server = RedisServer(tmp_path)
    ports: list[int] = []
    threads = [threading.Thread(target=lambda: ports.append(server.port)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ports == [10_000, 10_000]


def test_two_purposes_of_a_server_never_have_one_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter([10_000, 10_000, 10_001])
    monkeypatch.setattr(server_module, "free_port", lambda: next(drawn))
    broker = KafkaBroker(tmp_path)
    assert (broker.port, broker.controller_port) == (10_000, 10_001)
