"""Many readers of cuts, each a process that plans batches as Spark makes a pipeline's driver do.

Arguments: bootstrap, Redis URL, source, comma separated tables, readers, seconds of a batch. A reader asks
for the newest cut every 10 ms while there is none (``spark.sql.streaming.pollingDelay`` of a run), plans the
batch when there is one, and then is busy for the seconds of a batch. Reads commands from standard input:
``measure`` forgets what was counted so far, ``stop`` ends. Prints ``ready`` and, at the end, one JSON line
with totals and the age of each newest cut, from its commit time to the moment its batch was planned.
"""

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from time import monotonic, process_time, sleep

from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.planner import Planner
from slackwater.protocol import SystemClock

POLLING_DELAY = 0.010


class Reader:
    """One driver."""

    def __init__(self, options: SourceOptions, batch_seconds: float) -> None:
        self._planner = Planner(options)
        self._batch_seconds = batch_seconds
        self._clock = SystemClock()
        self._position = self._planner.start()
        self.forget()

    def forget(self) -> None:
        """Starts counting."""
        self.polls = self.cuts = self.batches = 0
        self.ages_ms: list[float] = []
        self._cpu, self._started = process_time(), monotonic()

    def turn(self) -> float:
        """One question for the newest cut, and the planning of a batch; returns how long to be busy."""
        start = self._position
        self.polls += 1
        end = self._planner.next(start, self._planner.options.max_events_per_batch, None)
        if end == start:
            return POLLING_DELAY
        self._planner.tasks(start, end)
        self._position = end
        self.batches += 1
        self.cuts += end.log - start.log
        self.ages_ms.append(self._clock.now().timestamp() * 1000 - end.commit_ts_ms)
        return self._batch_seconds

    def counted(self) -> dict[str, object]:
        """Since the last :meth:`forget`."""
        return {
            "polls": self.polls,
            "cuts": self.cuts,
            "batches": self.batches,
            "ages_ms": self.ages_ms,
            "cpu_seconds": process_time() - self._cpu,
            "seconds": monotonic() - self._started,
            "lsn": self._position.lsn,
        }


def follow(options: SourceOptions, batch_seconds: float, orders: Connection) -> None:
    """A reader's process: until it is asked to stop."""
    reader = Reader(options, batch_seconds)
    orders.send("ready")
    while True:
        if orders.poll():
            if orders.recv() == "stop":
                break
            reader.forget()
        sleep(reader.turn())
    orders.send(reader.counted())


def main() -> None:
    """Forks the readers, passes orders on, prints what they counted."""
    bootstrap, redis_url, source, tables, count, batch_seconds = sys.argv[1:]
    options = SourceOptions.parse(
        {
            "source": source,
            "bootstrap": bootstrap,
            "redis_url": redis_url,
            "tables": tables,
            "starting": "latest",
        }
    )
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(int(count)):
        near, far = context.Pipe()
        context.Process(target=follow, args=(options, float(batch_seconds), far), daemon=True).start()
        pipes.append(near)
    for pipe in pipes:
        pipe.recv()
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        for pipe in pipes:
            pipe.send(line.strip())
        if line.strip() == "stop":
            break
    sys.stdout.write(json.dumps([pipe.recv() for pipe in pipes]) + "\n")


if __name__ == "__main__":
    main()
