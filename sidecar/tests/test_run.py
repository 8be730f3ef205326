"""Several sources in one process: what one does must not silently change the others."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from slackwater.command.listening import HttpSettings
from slackwater.cuts import FrontierState
from slackwater.protocol import InputError, KafkaSettings, Servers, SlackwaterError
from slackwater.settings.model import HttpSection
from slackwater_sidecar import SidecarSettings, SidecarStatus, SourceMonitor, run, run_sidecars
from slackwater_sidecar.reader import truncated

Follow = Callable[[SidecarSettings, threading.Event, SourceMonitor, Any], None]
ANYWHERE = HttpSettings(setting="sidecar.http", address="127.0.0.1:0", access=HttpSection())
GONE = truncated("crm.s.a", 1, 5, 9, 20)


def settings(*sources: str) -> list[SidecarSettings]:
    return [SidecarSettings(source=source, servers=Servers(KafkaSettings("h:1"))) for source in sources]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Follow]:
    """What following each source does, instead of following it."""
    done: dict[str, Follow] = {}

    def follow(thread: run.SourceThread) -> None:
        done[thread.monitor.source](thread.settings, thread.stop_event, thread.monitor, thread.on_status)

    monkeypatch.setattr(run.SourceThread, "follow", follow)
    return done


def until_stopped(_s: SidecarSettings, stop: threading.Event, _m: SourceMonitor, _o: object) -> None:
    stop.wait(60)


def failing(_s: SidecarSettings, _stop: threading.Event, _m: SourceMonitor, _o: object) -> None:
    raise GONE


def asked(address: str, path: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=120)
    connection.request("GET", path)
    response = connection.getresponse()
    result = response.status, json.loads(response.read())
    connection.close()
    return result


def test_a_source_that_fails_is_shown_and_leaves_the_others_running(
    follow: dict[str, Follow], caplog: pytest.LogCaptureFixture
) -> None:
    stop, failed = threading.Event(), threading.Event()
    seen: dict[str, tuple[int, dict[str, Any]]] = {}

    def fail(*arguments: Any) -> None:
        try:
            failing(*arguments)
        finally:
            failed.set()

    def look(address: str) -> None:
        def ask() -> None:
            failed.wait(300)
            while asked(address, "/status")[1]["sources"][1]["state"] != "failed":
                stop.wait(0.02)
            seen.update({path: asked(address, path) for path in ("/healthz", "/readyz", "/status")})
            stop.set()

        threading.Thread(target=ask, daemon=True).start()

    follow.update(inv=until_stopped, crm=fail)
    with pytest.raises(SlackwaterError, match=r"\Asource crm: offsets 5 to 8 of crm\.s\.a/1 are gone"):
        run_sidecars(settings("inv", "crm"), stop, http=ANYWHERE, on_http=look)

    assert seen["/healthz"] == (200, {"healthy": True, "why_not": {}})
    assert seen["/readyz"][0] == 503
    assert "are gone" in seen["/readyz"][1]["why_not"]["crm"]
    assert [s["state"] for s in seen["/status"][1]["sources"]] == ["waiting", "failed"]
    assert [r.__dict__["source"] for r in caplog.records if r.levelname == "ERROR"] == ["crm"]


def test_the_failure_of_the_only_source_is_the_failure_itself(follow: dict[str, Follow]) -> None:
    follow.update(inv=failing)
    with pytest.raises(InputError, match="are gone"):
        run_sidecars(settings("inv"), threading.Event())


def test_when_all_sources_have_failed_the_process_ends_and_names_all(follow: dict[str, Follow]) -> None:
    follow.update(inv=failing, crm=failing)
    with pytest.raises(SlackwaterError, match=r"source inv: .*\nsource crm: "):
        run_sidecars(settings("inv", "crm"), threading.Event())


def test_a_source_that_hangs_does_not_keep_the_process_from_stopping(
    follow: dict[str, Follow], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released, stop = threading.Event(), threading.Event()

    def hang(_s: SidecarSettings, _stop: threading.Event, _m: SourceMonitor, _o: object) -> None:
        stop.set()
        released.wait(60)

    monkeypatch.setattr(run, "STOP_WITHIN", timedelta(milliseconds=20))
    follow.update(inv=hang, crm=until_stopped)

    run_sidecars(settings("inv", "crm"), stop)

    assert not released.is_set()
    assert [r.__dict__["source"] for r in caplog.records] == ["inv"]
    released.set()


def test_an_exit_within_a_source_is_a_failure_and_named(
    follow: dict[str, Follow], caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that raises SystemExit ends without a word, and so did the sidecar, with exit code 0."""

    def leave(*_: Any) -> None:
        raise SystemExit

    follow["inv"] = leave
    with pytest.raises(SystemExit):
        run_sidecars(settings("inv"), threading.Event())
    assert "source failed: SystemExit()" in caplog.text


def test_output_that_nobody_reads_is_the_failure_also_when_telling_of_it_fails(
    follow: dict[str, Follow], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[SidecarStatus] = []

    def tell(status: SidecarStatus) -> None:
        told.append(status)
        raise BrokenPipeError

    def show(_s: SidecarSettings, _stop: threading.Event, monitor: SourceMonitor, _o: object) -> None:
        monitor.status = STATUS
        tell(STATUS)

    follow["inv"] = show
    with pytest.raises(BrokenPipeError):
        run_sidecars(settings("inv"), threading.Event(), tell)
    assert "source failed: BrokenPipeError()" in caplog.text
    assert [status.state for status in told] == [FrontierState.RUNNING, FrontierState.FAILED]
    assert told[1].detail == "BrokenPipeError()"


STATUS = SidecarStatus(
    source="inv",
    timeline=1,
    state=FrontierState.RUNNING,
    detail="",
    lsn=0,
    event_count=0,
    records_read=0,
    records_per_second=0.0,
    delay_ms=None,
    open=(),
    redis_error=None,
)
