"""What a run answers over HTTP."""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from slackwater.cli.commands.run import answering, run_routes
from slackwater.command.http_server import make_app
from slackwater.command.listening import HttpSettings
from slackwater.pipeline import RunMonitor
from slackwater.protocol import ConfigError
from slackwater.protocol.metrics import RUN_METRICS
from slackwater.settings.model import HttpSection

ANYWHERE = HttpSettings(setting="run.http", address="127.0.0.1:0", access=HttpSection())
LIMIT = timedelta(seconds=30)


class MovableClock:
    """A clock that stands still until it is asked to move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds


def pages_of(monitor: RunMonitor) -> TestClient:
    return TestClient(make_app(run_routes(monitor, LIMIT), ANYWHERE), "http://localhost")


def page(pages: TestClient, path: str) -> tuple[int, dict[str, Any]]:
    found = pages.get(path)
    return found.status_code, found.json()


def test_a_run_whose_loop_does_not_turn_is_not_healthy() -> None:
    clock = MovableClock()
    monitor = RunMonitor("orders", "inv", clock)
    pages = pages_of(monitor)
    clock.seconds += 30
    assert page(pages, "/healthz") == (HTTPStatus.OK, {"healthy": True, "why_not": {}})
    clock.seconds += 1
    assert page(pages, "/healthz") == (
        HTTPStatus.SERVICE_UNAVAILABLE,
        {"healthy": False, "why_not": {"orders": "its loop has been blocked for 31 s"}},
    )
    monitor.record_turn()
    assert page(pages, "/healthz")[0] == HTTPStatus.OK


def test_a_run_is_ready_when_it_has_found_that_its_views_are_current_and_stays_so() -> None:
    monitor = RunMonitor("orders", "inv")
    pages = pages_of(monitor)
    status, said = page(pages, "/readyz")
    assert (status, said["ready"], list(said["why_not"])) == (
        HTTPStatus.SERVICE_UNAVAILABLE,
        False,
        ["orders"],
    )
    monitor.record_turn(True)
    monitor.record_turn(False)
    assert page(pages, "/readyz") == (HTTPStatus.OK, {"ready": True, "why_not": {}})


def asked(address: str | None, path: str) -> str:
    with urlopen(f"{address}{path}", timeout=60) as answer:  # noqa: S310 - of this machine
        return str(answer.read().decode())


def test_metrics_are_answered_while_the_run_lasts() -> None:
    monitor = RunMonitor("orders", "inv")
    with answering(ANYWHERE, monitor, LIMIT) as address:
        logging.getLogger("anybody").error("something failed")
        text = asked(address, "/metrics")
        assert "true" in asked(address, "/healthz")
        with pytest.raises(HTTPError, match="404"):
            asked(address, "/")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert list(families) == [metric.name.removesuffix("_total") for metric in RUN_METRICS]
    samples = families["slackwater_run_log_records"].samples
    assert {s.labels["level"]: s.value for s in samples} == {"warning": 0, "error": 1}
    assert samples[0].labels.items() >= {"source": "inv", "pipeline": "orders"}.items()
    logging.getLogger("anybody").error("something failed after it")
    assert monitor.read(RUN_METRICS[-1])[-1][1] == 1


def test_without_an_address_nobody_is_answered() -> None:
    with answering(None, RunMonitor("orders", "inv"), LIMIT) as address:
        assert address is None


def test_an_address_that_is_taken_is_refused() -> None:
    monitor = RunMonitor("orders", "inv")
    with (
        answering(ANYWHERE, monitor, LIMIT) as address,
        pytest.raises(ConfigError),
        answering(replace(ANYWHERE, address=urlsplit(address or "").netloc), monitor, LIMIT),
    ):
        pass
