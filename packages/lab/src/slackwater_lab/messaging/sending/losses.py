"""Measures what a way loses when its service is killed at random moments."""

import random
from dataclasses import replace

from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.crash import new_order
from slackwater_lab.messaging.sending.judge import Verdict, judge
from slackwater_lab.messaging.sending.service import run_in_process, start

_PER_RUN = 100_000
"""More business transactions than a run gets done before it is killed."""


def measure_losses(way: str, database: str, bootstrap: str, *, kills: int, seed: int) -> Verdict:
    """Runs a service again and again, kills it each time after a drawn time, and counts.

    Raises:
        RunFailedError: The service failed by itself.
    """
    order, rng = new_order(way, database, bootstrap), random.Random(seed)
    for number in range(kills):
        process = start(replace(order, first=1 + number * _PER_RUN, count=_PER_RUN))
        process.join(rng.uniform(0.4, 2.0))
        if process.exitcode is not None:
            raise RunFailedError(way, f"the service ended with {process.exitcode} before it was killed")
        process.kill()
        process.join()
    if code := run_in_process(replace(order, first=1 + kills * _PER_RUN, count=1)):
        raise RunFailedError(way, f"the last service ended with {code}")
    return judge(order)
