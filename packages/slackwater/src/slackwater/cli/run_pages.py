"""What a run of a pipeline answers over HTTP: its metrics, and whether it lives and has caught up."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from slackwater.observe.exposition import make_registry
from slackwater.protocol.metrics import RUN_METRICS
from slackwater_sidecar import HttpSettings
from slackwater_sidecar.http_server import Answer, HttpServer, health_answer, json_answer, readiness_answer

if TYPE_CHECKING:  # Spark's libraries take a second to import
    from slackwater.pipeline import RunMonitor


def run_registry(monitor: "RunMonitor") -> CollectorRegistry:
    """Returns a registry with the metrics of a run; any thread may ask it."""
    return make_registry(RUN_METRICS, monitor.read)


class RunPages:
    """Answers requests for the pages of one run. Thread-safe.

    Args:
        monitor: What is measured of it.
        silent_after: It is not healthy when it has taken no step for longer.
    """

    def __init__(self, monitor: "RunMonitor", silent_after: timedelta) -> None:
        self._monitor = monitor
        self._silent_after = silent_after
        self._registry = run_registry(monitor)

    def answer(self, path: str) -> Answer:
        """Returns the page at a path, without query; one that lists the pages when there is none."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
        monitor = self._monitor
        if path == "/healthz":
            return health_answer({monitor.pipeline: monitor.silent_seconds}, self._silent_after)
        if path == "/readyz":
            return readiness_answer({monitor.pipeline: monitor.not_ready()})
        pages = ["/metrics", "/healthz", "/readyz"]
        return json_answer(HTTPStatus.NOT_FOUND, {"error": f"no page {path}", "pages": pages})


@contextmanager
def answering(
    http: HttpSettings | None, monitor: "RunMonitor", silent_after: timedelta
) -> Iterator[str | None]:
    """Answers while the block lasts, and counts what is logged meanwhile.

    Args:
        http: Where, and who is answered; None: nobody is.
        monitor: What is measured of the run.
        silent_after: The run is not healthy when it has taken no step for longer.

    Yields:
        The address with the port that was chosen; None if nobody is answered.

    Raises:
        ConfigError: the address is malformed, in use or not this machine's, or a certificate cannot be
            used.
    """
    if http is None:
        yield None
        return
    server = HttpServer(http, RunPages(monitor, silent_after))
    counting = _Counting(monitor)
    logging.getLogger().addHandler(counting)
    server.start()
    try:
        yield server.address
    finally:
        logging.getLogger().removeHandler(counting)
        server.close()


class _Counting(logging.Handler):
    def __init__(self, monitor: "RunMonitor") -> None:
        super().__init__(logging.WARNING)
        self._monitor = monitor

    def emit(self, record: logging.LogRecord) -> None:
        self._monitor.count_log_record(record)
