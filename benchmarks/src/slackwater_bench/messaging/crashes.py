"""What each way promises, and what is lost, repeated or shown early when a service dies, or a server.

The page and the judge read the facts of a way here.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from types import MappingProxyType
from typing import Final

from slackwater_bench.messaging.servers import Servers, running_servers
from slackwater_bench.scenario import Parameters, RunContext
from slackwater_lab import probes
from slackwater_lab.messaging.receiving import world as receiving
from slackwater_lab.messaging.receiving.member import Twin, Way
from slackwater_lab.messaging.receiving.world import ReceiveVerdict, receive_through_deaths
from slackwater_lab.messaging.sending import crash as sending
from slackwater_lab.messaging.sending.crash import CrashPoint, crash_and_recover, measure_losses, new_order
from slackwater_lab.messaging.sending.service import MESSAGES, SendVerdict
from slackwater_lab.messaging.sending.ways import WAYS
from slackwater_messaging import SendStep
from slackwater_messaging.receiving import ProcessorStep, ReceiverStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What has to be known of a way to choose it."""

    title: str
    """The heading of a column."""
    guarantee: str
    """To readers of committed records, or to the database."""
    order: str
    """Which order of messages is kept."""
    shown: str = ""
    """When a message is visible, of ways of sending."""
    costs: Sequence[str] = ()
    """What a crash may cost a way of receiving; of ways of sending, :attr:`Way.costs` says so."""


DECLARED: Final = tomllib.loads((resources.files("slackwater_bench") / "messaging" / "ways.toml").read_text())
SENDING: Final = {name: Facts(**fields) for name, fields in DECLARED["sending"].items()}
"""The ways of sending: those of :data:`slackwater_lab.messaging.sending.ways.WAYS`."""
RECEIVING: Final = {name: Facts(**fields) for name, fields in DECLARED["receiving"].items()}
RECEIVED: Final[Mapping[str, Way | Twin | None]] = MappingProxyType(
    {
        "at-least-once": Twin.OFFSETS,
        "table": Way.TABLE,
        "filtered": Way.FILTERED,
        "bloom": Way.BLOOM,
        "processor": None,
    }
)
"""The ways of receiving as members work; None: within Kafka."""


def costs_of(name: str) -> frozenset[str]:
    """Returns what a crash may cost with a way: fields of a cell of the crash table, and nothing else."""
    return frozenset(RECEIVING[name].costs) if name in RECEIVING else WAYS[name].costs


_Trial = tuple[str, Callable[[], "Cell"]]
"""Place, and what finds out."""
_SIDE_BY_SIDE = 4
AT_RANDOM = "killed at random"
SEED = 7
_COMMITS = (
    SendStep.DATABASE_COMMITTED,
    SendStep.KAFKA_COMMITTED,
    ReceiverStep.COMMITTED,
    ProcessorStep.COMMITTED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was found at one place."""

    messages: int
    """That were committed, or written to be received."""
    lost: int
    repeated: int
    ghosts: int = 0
    """Visible, and their data never came."""
    early: int = 0
    """Visible before their data, which came when another process had continued."""

    @property
    def cost(self) -> int:
        """All that is not as it should be."""
        return self.lost + self.repeated + self.ghosts + self.early

    def __add__(self, other: "Cell") -> "Cell":
        """What was found at both."""
        return Cell(**{name: value + asdict(other)[name] for name, value in asdict(self).items()})


def crash(parameters: Parameters, context: RunContext) -> dict[str, Cell]:
    """Lets a way die and suffer; returns what was found, by place. What is in the cells is not judged.

    Raises:
        TestingError: Something did not die where it should, or did not continue.
    """
    name, kills = str(parameters["way"]), int(parameters["kills"])
    if name in RECEIVED:
        found = _crash_receiving(name, kills, context)
    else:
        found = _crash_sending(name, kills, context)
    cells: dict[str, Cell] = {}
    for place, cell in found:
        context.say(f"{name}, {place}: {cell}")
        cells[place] = cells[place] + cell if place in cells else cell
    return cells


def broken_promises(name: str, cells: Mapping[str, Cell]) -> list[str]:
    """Returns what a way has cost and may never cost."""
    allowed = {"messages", *costs_of(name)}
    return [
        f"{place}: {number} of {cell.messages} messages {cost}"
        for place, cell in cells.items()
        for cost, number in asdict(cell).items()
        if number and cost not in allowed
    ]


def around_first_commit(steps: Sequence[str]) -> tuple[str, str]:
    """Returns the step before the first commit of a way, and that behind it."""
    first = next(place for place, step in enumerate(steps) if step in _COMMITS)
    return steps[first - 1], steps[first]


def _crash_sending(name: str, kills: int, context: RunContext) -> Iterator[tuple[str, Cell]]:
    way = WAYS[name]
    with running_servers(context, capture=way.needs_capture, broker=sending.SOON) as servers:
        at = _killable(servers)

        def die(step: str) -> Cell:
            order = new_order(name, servers.database, servers.bootstrap)
            report = crash_and_recover(CrashPoint(name, step), order)
            return _sent(report.recovered, report.early)

        def die_at_random() -> Cell:
            found = measure_losses(name, servers.database, servers.bootstrap, kills=kills, seed=SEED)
            return _sent(found)

        def suffer(point: sending.FaultPoint) -> Cell:
            return _sent(sending.suffer_and_go_on(point, at))

        wanted = () if way.is_connector else around_first_commit(list(way.deaths))
        points = [p for p in sending.fault_points() if p.way == name and p.step in wanted]
        alone = [p for p in points if p.fault in (sending.Fault.FENCED, sending.Fault.TIMED_OUT)]
        together: list[_Trial] = [(f"killed after {step}", partial(die, step)) for step in way.deaths]
        together += [(point.fault, partial(suffer, point)) for point in alone]
        if not (way.needs_capture or way.is_connector):
            together.append((AT_RANDOM, die_at_random))
        yield from _at_once(together)
        for point in points:
            if point not in alone:
                yield point.fault, suffer(point)


def _crash_receiving(name: str, kills: int, context: RunContext) -> Iterator[tuple[str, Cell]]:
    way = RECEIVED[name]
    with running_servers(context, broker=receiving.SOON) as servers:
        at = _killable(servers)

        def suffer(point: receiving.ReceivePoint) -> Cell:
            return _received(receiving.suffer_and_finish(point, at))

        wanted = around_first_commit(receiving.steps_of(way))
        killed = [p for p in receiving.receive_points(way) if p.fault is receiving.Fault.KILLED]
        points = [p for p in receiving.receive_points(way) if p.step in wanted and p not in killed]
        alone = [p for p in points if p.fault is receiving.Fault.OVERTAKEN]
        together: list[_Trial] = [(f"killed after {p.step}", partial(suffer, p)) for p in killed]
        together += [(point.fault, partial(suffer, point)) for point in alone]
        together.append(
            (AT_RANDOM, lambda: _received(receive_through_deaths(way, at, kills=kills, seed=SEED)))
        )
        yield from _at_once(together)
        for point in points:
            if point not in alone:
                yield point.fault, suffer(point)


def _at_once(trials: Sequence[_Trial]) -> Iterator[tuple[str, Cell]]:
    """Makes trials that harm no server side by side: each has topics, tables and processes of its own."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        begun = [(place, pool.submit(trial)) for place, trial in trials]
        for place, found in begun:
            yield place, found.result()


def _killable(servers: Servers) -> probes.Servers:
    return probes.Servers(servers.stack.postgres, servers.stack.kafka)


def _sent(verdict: SendVerdict, early: int = 0) -> Cell:
    return Cell(
        messages=verdict.rows * MESSAGES,
        lost=verdict.lost,
        repeated=verdict.repeated,
        ghosts=verdict.ghosts,
        early=max(0, early - verdict.ghosts),
    )


def _received(verdict: ReceiveVerdict) -> Cell:
    return Cell(messages=verdict.messages, lost=verdict.lost, repeated=verdict.repeated)
