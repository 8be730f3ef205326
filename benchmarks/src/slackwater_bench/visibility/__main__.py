"""``python -m slackwater_bench.visibility``: the probe as a process of its own.

Apart from the load generator on purpose: what drives the load must not slow down what measures it.
"""

import json
import signal
import threading
from collections.abc import Sequence

import click
from confluent_kafka import Message

from slackwater.topics import follow
from slackwater_bench.visibility.board import Board
from slackwater_bench.visibility.http import serving
from slackwater_bench.visibility.matching import Sample, VisibilityMatcher
from slackwater_protocol import Clock, SystemClock, decode_commit_record
from slackwater_protocol.keys import commit_topic, transaction_topic

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
    matcher, commits = VisibilityMatcher(since_ms=_now_ms(clock)), commit_topic(output)
    topics = [transaction_topic(source), commits]
    for messages in follow(bootstrap, topics, stop, batch=POLL_RECORDS, wait_seconds=POLL_SECONDS):
        at_ms = _now_ms(clock)
        samples = [sample for message in messages for sample in _samples(matcher, message, commits, at_ms)]
        found = sum(message.topic() == commits for message in messages)
        board.post(samples, waiting=matcher.waiting, commits=found)


def _now_ms(clock: Clock) -> int:
    return int(clock.now().timestamp() * 1000)


def _samples(matcher: VisibilityMatcher, message: Message, commits: str, at_ms: int) -> Sequence[Sample]:
    value = message.value() or b""
    if message.topic() == commits:
        return matcher.visible(decode_commit_record(value).commit_lsn, at_ms)
    event = json.loads(value)
    if event["status"] != "END":
        return []
    sample = matcher.committed(int(event["id"].partition(":")[2]), event["ts_ms"])
    return [sample] if sample else []


if __name__ == "__main__":
    main()
