"""``python -m slackwater_bench.visibility``: a process that measures how long commits take to be visible.

Apart from the load generator on purpose: what drives the load must not slow down what measures it.
"""

import json
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication

import click
from confluent_kafka import Message
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from slackwater.cdc.envelope import End, decode_transaction
from slackwater.protocol import Clock, SystemClock, decode_commit_record, epoch_ms
from slackwater.protocol.keys import commit_topic, transaction_topic
from slackwater_lab.topics import follow


@dataclass(frozen=True, slots=True)
class Sample:
    """One source transaction that became visible."""

    commit_lsn: int
    delay_ms: int
    """From its commit in the database to the commit record that covers it."""


class VisibilityMatcher:
    """Takes both topics in any interleaving; each transaction gives one sample at most.

    A transaction whose END is read after the commit record that covers it is matched at that moment: it
    became visible when the commit record was read, not when its END was.

    Args:
        since_ms: transactions committed before, in milliseconds since the epoch, are left out.
    """

    def __init__(self, *, since_ms: int = 0) -> None:
        self._since_ms = since_ms
        self._waiting: deque[tuple[int, int]] = deque()
        self._visible: deque[tuple[int, int]] = deque()
        self._newest_end = 0

    @property
    def waiting(self) -> int:
        """Transactions that were committed and are not visible yet."""
        return len(self._waiting)

    def committed(self, commit_lsn: int, commit_ts_ms: int) -> Sample | None:
        """An END record. A replayed one (at or below the newest) is ignored."""
        if commit_lsn <= self._newest_end or commit_ts_ms < self._since_ms:
            return None
        self._newest_end = commit_lsn
        while self._visible and self._visible[0][0] < commit_lsn:
            self._visible.popleft()
        if self._visible:
            return Sample(commit_lsn, self._visible[0][1] - commit_ts_ms)
        self._waiting.append((commit_lsn, commit_ts_ms))
        return None

    def visible(self, commit_lsn: int, at_ms: int) -> list[Sample]:
        """A commit record: everything up to ``commit_lsn`` became visible at ``at_ms``."""
        samples = []
        while self._waiting and self._waiting[0][0] <= commit_lsn:
            lsn, committed_ms = self._waiting.popleft()
            samples.append(Sample(lsn, at_ms - committed_ms))
        if commit_lsn > self._newest_end:
            self._visible.append((commit_lsn, at_ms))
        return samples


BUCKETS_SECONDS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
KEPT_SAMPLES = 500_000
"""Older ones are dropped when nobody fetches them; the metrics keep counting."""


class Board:
    """Written by the thread that reads Kafka, read by those that serve HTTP."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._delay = Histogram(
            "slackwater_commit_to_visible_seconds",
            "From the commit in the database to visibility for a read_committed consumer.",
            registry=self.registry,
            buckets=BUCKETS_SECONDS,
        )
        self._waiting = Gauge(
            "slackwater_transactions_not_visible",
            "Transactions whose END record was read and that no commit record covers yet.",
            registry=self.registry,
        )
        self._commits = Counter(
            "slackwater_commit_records", "Commit records that became visible.", registry=self.registry
        )
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    def post(self, samples: Iterable[Sample], *, waiting: int, commits: int) -> None:
        """Adds what one poll of the topics gave."""
        found = list(samples)
        for sample in found:
            self._delay.observe(sample.delay_ms / 1000)
        self._waiting.set(waiting)
        self._commits.inc(commits)
        with self._lock:
            self._samples.extend(found)

    def take(self) -> list[Sample]:
        """All samples since the call before."""
        with self._lock:
            samples = list(self._samples)
            self._samples.clear()
        return samples


HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def application(board: Board) -> WSGIApplication:
    """``GET /samples`` hands out ``[[commit LSN, delay in ms], ...]`` once; all else is ``/metrics``."""
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(board.registry)

    def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/samples":
            return metrics(environ, start_response)
        samples = [[sample.commit_lsn, sample.delay_ms] for sample in board.take()]
        start_response(f"{HTTPStatus.OK:d} OK", [("Content-Type", "application/json")])
        return [json.dumps(samples).encode()]

    return serve


@contextmanager
def serving(board: Board, port: int) -> Iterator[int]:
    """Serves in a thread until the block ends; gives the port (a free one for ``port`` 0)."""
    server = make_server(HOST, port, application(board), _Server, _QuietHandler)
    thread = threading.Thread(target=server.serve_forever, name="probe-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


POLL_RECORDS = 1
"""A poll waits until it has this many records: one, so that none waits for others."""
POLL_SECONDS = 0.1


@click.command()
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="The brokers of source and output.")
@click.option("--source", required=True, metavar="NAME", help="The connector's topic.prefix.")
@click.option("--output", required=True, metavar="TOPIC", help="The pipeline's output topic.")
@click.option("--port", default=0, help="Where to serve /metrics and /samples.  [default: a free one]")
def main(bootstrap: str, source: str, output: str, port: int) -> None:
    """Measure how long commits take to become visible; serve it to Prometheus and to a load generator.

    Reads the transaction topic (when was it committed) and the output's commit topic (when was it visible).
    Prints the port it serves on, then nothing; ends on SIGTERM or Ctrl-C.
    """
    stop, board = threading.Event(), Board()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    with serving(board, port) as served:
        click.echo(str(served))
        watch(bootstrap, source, output, board, stop, SystemClock())


def watch(
    bootstrap: str, source: str, output: str, board: Board, stop: threading.Event, clock: Clock
) -> None:
    """Follows both topics until stopped; counts what is committed from now on."""
    matcher, commits = VisibilityMatcher(since_ms=epoch_ms(clock.now())), commit_topic(output)
    topics = [transaction_topic(source), commits]
    for messages in follow(bootstrap, topics, stop, batch=POLL_RECORDS, wait_seconds=POLL_SECONDS):
        at_ms = epoch_ms(clock.now())
        samples = [sample for message in messages for sample in _samples(matcher, message, commits, at_ms)]
        found = sum(message.topic() == commits for message in messages)
        board.post(samples, waiting=matcher.waiting, commits=found)


def _samples(matcher: VisibilityMatcher, message: Message, commits: str, at_ms: int) -> Sequence[Sample]:
    value = message.value() or b""
    if message.topic() == commits:
        return matcher.visible(decode_commit_record(value).commit_lsn, at_ms)
    event = decode_transaction(value)
    sample = matcher.committed(event.commit_lsn, event.commit_ts_ms) if isinstance(event, End) else None
    return [sample] if sample else []


if __name__ == "__main__":
    main()
