"""A process that renders one share of a generator."""

import gc
import threading
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection

from slackwater_bench.generator.debezium_records import Connector
from slackwater_bench.generator.output import HoldBack, TopicOutput
from slackwater_bench.generator.share import Progress, Share
from slackwater_bench.workloads.workload import Workload
from slackwater_protocol import Clock, SystemClock

_STEP = 2_000
"""Change events between two looks at the clock while a partition is held back."""


class ShareError(Exception):
    """A process of the generator failed.

    Attributes:
        reason: Its error.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a process of the generator failed: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """What a process is told."""

    bootstrap: str
    workload: Workload
    connector: Connector
    partitions: int
    topics: Collection[str]


@dataclass(frozen=True, slots=True)
class Filling:
    """What a process answers."""

    events: int
    transactions: int
    last_commit_lsn: int
    progress: Progress
    """Since the last answer; empty without the topic of transactions."""


def serve_share(connection: Connection, settings: ShareSettings) -> None:
    """Fills whenever it is asked to, until the connection is closed."""
    gc.disable()  # rows and texts make no cycles; looking for them takes a third of the time
    try:
        output = TopicOutput(settings.bootstrap, settings.partitions)
        share = Share(settings.workload, settings.connector, settings.topics, output.put)
        while True:
            events, hold = connection.recv()
            connection.send(fill(share, output, events, hold, SystemClock()))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - the other process raises it
        connection.send(f"{type(error).__name__}: {error}")


def fill(share: Share, output: TopicOutput, events: int, hold: HoldBack | None, clock: Clock) -> Filling:
    """One call's records, those that were held back included."""
    due = clock.monotonic() + (hold.seconds if hold else 0.0)
    output.hold(hold)
    done, transactions = share.begin()
    wanted = done + events
    while done < wanted:
        if clock.monotonic() >= due:
            output.hold(None)
        more = share.advance(min(_STEP, wanted - done) if hold else wanted - done)
        done, transactions = done + more[0], transactions + more[1]
    output.flush()
    if hold is not None:
        threading.Event().wait(max(0.0, due - clock.monotonic()))
        output.hold(None)
        output.flush()
    progress, share.progress = share.progress, Progress(array("q"), array("q"))
    return Filling(done, transactions, share.log.last_commit_lsn, progress)
