"""What ends a worker process is named by the process that has the log; there is no broker."""

import logging
import os
import signal
from typing import cast

import pytest

from slackwater.protocol import KafkaSettings, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.consumption import RecordSink
from slackwater_sidecar.workers import WorkerPool

KEY = "inv.s.a", 0
NOBODY = cast(RecordSink, None)
"""Nothing is read."""


def ended_worker(pool: WorkerPool) -> None:
    """Waits until the only worker has ended and was noticed."""
    while not pool.orphans:
        pool.read(NOBODY, 1.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    return caplog


def make_pool(**kafka: str) -> WorkerPool:
    servers = Servers(KafkaSettings("127.0.0.1:1", kafka))
    settings = SidecarSettings(source="inv", servers=servers)
    return WorkerPool((settings, frozenset(), 1), 1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of a slow machine takes longer to end than a sidecar waits."""
    monkeypatch.setattr("slackwater_sidecar.workers._END_SECONDS", 300.0)


def test_a_worker_that_is_killed_is_named_with_its_signal(log: pytest.LogCaptureFixture) -> None:
    pool = make_pool()
    pool.assign({KEY: 0})
    os.kill(pool.pids[0], signal.SIGKILL)
    ended_worker(pool)
    assert "ended with exit code -9 (SIGKILL: killed, possibly by the kernel because memory" in log.text
    assert "its 1 partitions are reassigned" in log.text
    pool.close()


def test_a_worker_that_fails_has_its_traceback_in_the_log(log: pytest.LogCaptureFixture) -> None:
    """Seen to go to standard error only, while the log mentioned exit code 1."""
    pool = make_pool(**{"no.such.setting": "1"})
    pool.assign({KEY: 0})
    pid = pool.pids[0]
    ended_worker(pool)
    assert f"worker {pid} failed: Traceback" in log.text
    assert "no.such.setting" in log.text
    assert "ended with exit code 1;" in log.text
    assert "(" not in log.text.partition("exit code 1")[2]
    pool.close()


def test_a_worker_that_does_not_end_is_not_said_to_be_killed_by_somebody(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(**{"no.such.setting": "1"})
    pool.assign({KEY: 0})
    monkeypatch.setattr("slackwater_sidecar.workers._END_SECONDS", 0.0)
    ended_worker(pool)
    assert "SIGKILL" not in log.text
    pool.close()
