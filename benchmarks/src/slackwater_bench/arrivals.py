"""The rate at which business transactions arrive, over the time of a run. No clock, no Locust."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Rate = Callable[[float], float]
"""Arrivals per second at a time in seconds since the start."""

BURST_EVERY_SECONDS = 15.0
BURST_SECONDS = 3.0
BURST_FACTOR = 3.0
RAMP_FROM = 0.1
SLOWEST_PER_SECOND = 1e-3
"""Keeps the time to the next arrival finite."""


def steady(rate: float, seconds: float) -> Rate:
    """The same rate all the time."""
    return lambda at: rate


def burst(rate: float, seconds: float) -> Rate:
    """Every 15 s three seconds at three times the mean of the rest; ``rate`` on average."""
    quiet = rate * BURST_EVERY_SECONDS / (BURST_EVERY_SECONDS + BURST_SECONDS * (BURST_FACTOR - 1))

    def at_time(at: float) -> float:
        is_burst = at % BURST_EVERY_SECONDS >= BURST_EVERY_SECONDS - BURST_SECONDS
        return quiet * BURST_FACTOR if is_burst else quiet

    return at_time


def ramp(rate: float, seconds: float) -> Rate:
    """The rate rises from a tenth of ``rate`` to ``rate`` at the end."""
    return lambda at: rate * (RAMP_FROM + (1 - RAMP_FROM) * min(1.0, at / seconds))


ARRIVALS: Mapping[str, Callable[[float, float], Rate]] = {"steady": steady, "burst": burst, "ramp": ramp}
"""By name: ``(rate, seconds of the run) -> rate over time``."""


@dataclass(slots=True)
class PoissonArrivals:
    """A Poisson process that says when one of several clients is due to start its next transaction.

    The times do not depend on how long transactions take, so a slow system cannot slow down its load.
    """

    rate: Rate
    clients: int
    rng: random.Random
    due: float = 0.0
    """Seconds since the start of the run."""

    def next(self) -> float:
        """Moves on to the next intended start and returns it."""
        share = max(self.rate(self.due) / self.clients, SLOWEST_PER_SECOND)
        self.due += -math.log(1.0 - self.rng.random()) / share
        return self.due
