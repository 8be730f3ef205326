"""What a run of a pipeline answers over HTTP: its metrics, and whether it lives and has caught up."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from slackwater.command.listening import HttpSettings
from slackwater.observe.exposition import make_registry
from slackwater.protocol.metrics import RUN_METRICS

if TYPE_CHECKING:  # Spark's libraries take a second to import
    from starlette.routing import Route

    from slackwater.pipeline import RunMonitor


def run_registry(monitor: "RunMonitor") -> CollectorRegistry:
    """Returns a registry with the metrics of a run; any thread may ask it."""
    return make_registry(RUN_METRICS, monitor.read)


def run_routes(monitor: "RunMonitor", silent_after: timedelta) -> "list[Route]":
    """Returns the pages of a run, which is not healthy when it has taken no step for longer than this."""
    from slackwater.command.http_server import service_routes

    return service_routes(
        run_registry(monitor),
        silent=lambda: {monitor.pipeline: monitor.silent_seconds},
        blocked_after=silent_after,
        not_ready=lambda: {monitor.pipeline: monitor.not_ready()},
    )


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
    from slackwater.command.http_server import HttpServer  # which takes a while to import

    server = HttpServer(run_routes(monitor, silent_after), http)
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
