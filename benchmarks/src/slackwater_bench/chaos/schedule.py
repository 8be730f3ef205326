"""Which faults happen when: pure functions of a seed, so that a run can be repeated."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from slackwater_bench.chaos.faults import FAULTS, Fault

LOCAL = "local[2]"
EXECUTORS = "local-cluster[2,1,1024]"
_OVERLAP_SECONDS = (1.0, 6.0)
_ALONE = 0.5
"""Share of rounds with one fault only, in a random schedule."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault at its time."""

    fault: str
    after_seconds: float
    """From the beginning of the round."""
    seconds: float
    """How long it lasts; 0 for a blow."""

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"+{self.after_seconds:.1f} s {self.fault}{lasting}"


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that overlap. It ends when all are healed and a commit made after that is visible."""

    number: int
    planned: tuple[Planned, ...]
    master: str = LOCAL
    """Where Spark runs from the pipeline's next start on."""

    def __str__(self) -> str:
        return f"{self.number:>3}  " + "; ".join(map(str, self.planned))


_WITH_A_RUNNING_PIPELINE = (
    "broker killed",
    "broker paused",
    "redis killed",
    "redis paused",
    "python worker killed",
    "python worker paused",
    "pipeline paused",
    "network paused: pipeline to Kafka",
    "network cut: pipeline to Kafka",
    "slow network",
    "slow partition",
)
"""These disturb a batch: Spark must be there."""


def short_schedule(seed: int) -> list[Round]:
    """Every fault once, as quickly as it goes: what does not need Spark happens while Spark starts anew."""
    chance = random.Random(seed)
    restarts = [fault for fault in FAULTS.values() if fault.stops_pipeline]
    needing = [FAULTS[name] for name in _WITH_A_RUNNING_PIPELINE]
    late = [fault for fault in FAULTS.values() if fault.needs_executors]
    others = [f for f in FAULTS.values() if f not in (*restarts, *needing, *late)]
    for group in (restarts, needing, others):
        chance.shuffle(group)
    shares = [others[index :: len(restarts)] for index in range(len(restarts))]
    rounds: list[tuple[list[Fault], str]] = []
    for index, restart in enumerate(restarts):
        is_last = index == len(restarts) - 1
        rounds.append(([restart, *shares[index]], EXECUTORS if is_last else LOCAL))
        rounds += [([fault], LOCAL) for fault in needing[index :: len(restarts)] if not is_last]
        if is_last:
            rounds += [([fault], EXECUTORS) for fault in (*needing[index :: len(restarts)], *late)]
    return [
        Round(number, _side_by_side(faults, chance, hurry=True), master)
        for number, (faults, master) in enumerate(rounds, 1)
    ]


def random_schedule(seed: int) -> Iterator[Round]:
    """Endless: one to three faults per round, of random kinds, at random times, for random whiles."""
    chance = random.Random(seed)
    number, master = 0, EXECUTORS
    while True:
        number += 1
        count = 1 if chance.random() < _ALONE else chance.randint(2, 3)
        known = [fault for fault in FAULTS.values() if master == EXECUTORS or not fault.needs_executors]
        faults = chance.sample(known, count)
        if sum(fault.stops_pipeline for fault in faults) > 1:  # the second one would wait for the first
            faults = [faults[0]]
        if faults[0].stops_pipeline:
            master = chance.choice((LOCAL, EXECUTORS))
        yield Round(number, _side_by_side(faults, chance, hurry=False), master)


def _side_by_side(faults: list[Fault], chance: random.Random, *, hurry: bool) -> tuple[Planned, ...]:
    planned: list[Planned] = []
    after = 0.0
    for fault in faults:
        least, greatest = fault.seconds
        seconds = chance.uniform(least, min(greatest, least + 1.5) if hurry else greatest)
        planned.append(Planned(fault.name, round(after, 1), round(seconds, 1)))
        after += (seconds + 1.0) if hurry else chance.uniform(*_OVERLAP_SECONDS)
    return tuple(planned)


def text(rounds: list[Round]) -> str:
    """The schedule for a person."""
    return "\n".join(map(str, rounds))
