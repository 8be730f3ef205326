"""Which faults happen when: pure functions of a seed, so that a run can be repeated."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slackwater.outputs.contract import SinkKind
from slackwater_lab.chaos.faults import FAULTS, SINK_FAULTS, Fault, faults_of
from slackwater_lab.chaos.system import EXECUTORS, LOCAL

_OVERLAP_SECONDS = (1.0, 6.0)
_PAUSE_SECONDS = 0.7
_ALONE = 0.5
"""Share of rounds with one fault only, in a random schedule."""


@dataclass(frozen=True, slots=True)
class ScheduledFault:
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
    planned: tuple[ScheduledFault, ...]
    master: str = LOCAL
    """Where Spark runs from the pipeline's next start on."""

    def __str__(self) -> str:
        return f"{self.number:>3}  " + "; ".join(map(str, self.planned))


_WITH_A_RUNNING_PIPELINE = (
    ("broker killed", "slow partition"),
    ("broker paused", "network cut: pipeline to Kafka"),
    ("redis killed", "python worker paused"),
    ("redis paused", "python worker killed"),
    ("pipeline paused", "network cut: clients to Redis"),
    ("network paused: pipeline to Kafka", "network paused: Connect to Kafka"),
    ("slow network", "redis flushed"),
)
"""These disturb a batch: Spark must be there. Each pair hits different places."""

_WHILE_SPARK_STARTS = "pipeline killed"
"""A driver that dies while it starts, too; the others are killed at a step of their sink."""


_FIRST_OF_CONSUMERS = (
    "consumer killed: applied",
    "first consumers killed",
    "second consumers paused",
    "network cut: consumers to Kafka",
)
_BESIDE_CONSUMERS = ("broker killed", "both sidecars killed", "postgres killed", "pipeline killed")


def short_schedule(seed: int) -> list[Round]:
    """Every fault once, as quickly as it goes: faults without Spark happen while Spark starts again.

    A start of Spark costs half a minute. So, of the sink's steps, the two around the commit are there always
    and another one by the seed.
    """
    chance = random.Random(seed)
    other_steps = [fault for fault in SINK_FAULTS if not fault.is_in_short]
    chosen = chance.choice(other_steps)
    faults = [fault for fault in faults_of(SinkKind.KAFKA) if fault.is_in_short or fault is chosen]
    restarts = [f for f in faults if f.stops_pipeline and f.name != _WHILE_SPARK_STARTS]
    needing = [[FAULTS[name] for name in pair] for pair in _WITH_A_RUNNING_PIPELINE]
    late = [fault for fault in faults if fault.needs_executors]
    others = [f for f in faults if f not in (*restarts, *itertools.chain(*needing), *late)]
    for group in (restarts, needing, others):
        chance.shuffle(group)
    rounds: list[tuple[list[Fault], str]] = []
    for index, restart in enumerate(restarts):
        master = EXECUTORS if index == len(restarts) - 1 else LOCAL
        rounds.append(([restart, *others[index :: len(restarts)]], master))
        rounds += [(pair, master) for pair in needing[index :: len(restarts)]]
    rounds += [([fault], EXECUTORS) for fault in late]
    return [
        Round(number, _one_by_one(each, chance), master) for number, (each, master) in enumerate(rounds, 1)
    ]


def output_schedule(seed: int, output: SinkKind) -> list[Round]:
    """Every fault once that concerns how batches get into tables; of the sink's steps as in the short one.

    In the last round a driver dies while the output does not do its part.
    """
    chance = random.Random(seed)
    known = faults_of(output)
    steps = [fault for fault in known if fault in SINK_FAULTS]
    other = chance.choice([step for step in steps if not step.is_in_short])
    own = [fault for fault in known if SinkKind.KAFKA not in fault.outputs]
    faults = [*own, *(step for step in steps if step.is_in_short), other]
    chance.shuffle(faults)
    lasting = chance.choice([fault for fault in own if fault.end is not None])
    rounds = [_one_by_one([fault], chance) for fault in faults]
    rounds.append(_side_by_side([lasting, FAULTS[_WHILE_SPARK_STARTS]], chance))
    return [Round(number, planned) for number, planned in enumerate(rounds, 1)]


def consumer_schedule(seed: int) -> list[Round]:
    """Every fault of consumers once, the shortest half of them first; then while others die, too."""
    chance = random.Random(seed)
    own = {
        fault.name: fault for fault in faults_of(SinkKind.KAFKA, has_consumers=True) if fault.needs_consumers
    }
    first = [own.pop(name) for name in _FIRST_OF_CONSUMERS]
    rest = list(own.values())
    chance.shuffle(first)
    chance.shuffle(rest)
    others = [FAULTS[name] for name in _BESIDE_CONSUMERS]
    rounds = [_one_by_one(first, chance), _one_by_one(rest, chance)]
    rounds += [_side_by_side([other, chance.choice([*first, *rest])], chance) for other in others]
    return [Round(number, planned) for number, planned in enumerate(rounds, 1)]


def random_schedule(
    seed: int, output: SinkKind = SinkKind.KAFKA, *, has_consumers: bool = False
) -> Iterator[Round]:
    """Endless: one to three faults per round, of random kinds, at random times, for random whiles."""
    chance = random.Random(seed)
    number, master = 0, EXECUTORS
    while True:
        number += 1
        count = 1 if chance.random() < _ALONE else chance.randint(2, 3)
        known = [
            fault
            for fault in faults_of(output, has_consumers=has_consumers)
            if master == EXECUTORS or not fault.needs_executors
        ]
        faults = chance.sample(known, count)
        if sum(fault.stops_pipeline for fault in faults) > 1:  # the second one would wait for the first
            faults = [faults[0]]
        if faults[0].stops_pipeline:
            master = chance.choice((LOCAL, EXECUTORS))
        yield Round(number, _side_by_side(faults, chance), master)


def _one_by_one(faults: Sequence[Fault], chance: random.Random) -> tuple[ScheduledFault, ...]:
    """As short as they may be, the next one soon after the end of the one before."""
    planned: list[ScheduledFault] = []
    after = 0.0
    for fault in faults:
        least, greatest = fault.seconds
        seconds = chance.uniform(least, min(greatest, least + 1.0))
        planned.append(ScheduledFault(fault.name, round(after, 1), round(seconds, 1)))
        after += seconds + _PAUSE_SECONDS
    return tuple(planned)


def _side_by_side(faults: Sequence[Fault], chance: random.Random) -> tuple[ScheduledFault, ...]:
    """As long as they may be, overlapping as it comes."""
    planned: list[ScheduledFault] = []
    after = 0.0
    for fault in faults:
        planned.append(ScheduledFault(fault.name, round(after, 1), round(chance.uniform(*fault.seconds), 1)))
        after += chance.uniform(*_OVERLAP_SECONDS)
    return tuple(planned)


def text(rounds: list[Round]) -> str:
    """The schedule for a person."""
    return "\n".join(map(str, rounds))
