"""What each way promises, and what is lost, repeated or shown early when a service dies, or a server.

The page and the judge read the facts of a way here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from slackwater.dev import KafkaBroker, PostgresServer
from slackwater_bench.messaging.servers import Servers, running_servers
from slackwater_bench.scenario import Parameters, RunContext
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
    short: str
    """The heading of a column."""
    guarantee: str
    """To readers of committed records, or to the database."""
    order: str
    """Which order of messages is kept."""
    shown: str = ""
    """When a message is visible, of ways of sending."""
    costs: frozenset[str] = frozenset()
    """What a crash may cost a way of receiving; of ways of sending, :attr:`Way.costs` says so."""


_OF_ONE_SENDER: Final = "of one sender"
_OF_A_PARTITION: Final = "of a partition"

SENDING: Final[Mapping[str, Facts]] = MappingProxyType(
    {
        "after-commit": Facts(
            title="plain: send after the commit",
            short="plain",
            guarantee="none: what was committed may never be sent",
            order=_OF_ONE_SENDER,
            shown="after its data",
        ),
        "polling": Facts(
            title="1 outbox by polling",
            short="1",
            guarantee="at least once",
            order="as written, if transactions of a key wait for each other",
            shown="after its data, by the relay's pause at most",
        ),
        "captured": Facts(
            title="2 outbox by change capture",
            short="2",
            guarantee="exactly once, transactions whole",
            order="the database's commit order, over all keys",
            shown="after its data, all messages of a transaction at once",
        ),
        "event-router": Facts(
            title="[ready-made](#ready-made-connectors): Debezium's event router",
            short="event router",
            guarantee="at least once",
            order="the database's commit order",
            shown="after its data, messages of a transaction one by one",
        ),
        "chained-database-first": Facts(
            title="3 chained, database first",
            short="3, database first",
            guarantee="at most once: a crash between the commits loses",
            order=_OF_ONE_SENDER,
            shown="just after its data",
        ),
        "chained-kafka-first": Facts(
            title="3 chained, Kafka first",
            short="3, Kafka first",
            guarantee="a crash between the commits leaves ghosts: messages without data",
            order=_OF_ONE_SENDER,
            shown="just before its data",
        ),
        "saved": Facts(
            title="4 saved messages",
            short="4",
            guarantee="exactly once",
            order=_OF_ONE_SENDER,
            shown="just after its data",
        ),
        "proven": Facts(
            title="5 proof of delivery",
            short="5",
            guarantee="exactly once",
            order=_OF_ONE_SENDER,
            shown="just after its data",
        ),
        "prepared": Facts(
            title="6 last resource commit",
            short="6",
            guarantee="exactly once",
            order=_OF_ONE_SENDER,
            shown="just before its data; after a crash until it is decided",
        ),
    }
)
"""The ways of sending: those of :data:`slackwater_lab.messaging.sending.ways.WAYS`."""

RECEIVING: Final[Mapping[str, Facts]] = MappingProxyType(
    {
        "at-least-once": Facts(
            title="plain: offsets after the commit",
            short="plain",
            guarantee="at least once: a crash repeats effects",
            order=_OF_A_PARTITION,
            costs=frozenset({"repeated"}),
        ),
        "table": Facts(
            title="inbox table",
            short="table",
            guarantee="each key once, as long as it is remembered",
            order=_OF_A_PARTITION,
        ),
        "filtered": Facts(
            title="filters before the table",
            short="filters and table",
            guarantee="each key once, as long as it is remembered",
            order=_OF_A_PARTITION,
        ),
        "bloom": Facts(
            title="filters alone",
            short="filters alone",
            guarantee="no key twice; new ones are lost at the rate that you state",
            order=_OF_A_PARTITION,
        ),
        "processor": Facts(
            title="within Kafka",
            short="within Kafka",
            guarantee="each record once; what a producer repeats is processed again",
            order=_OF_A_PARTITION,
        ),
    }
)
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
    return RECEIVING[name].costs if name in RECEIVING else WAYS[name].costs


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
        at = sending.Servers(*_killable(servers))

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
        at = receiving.Servers(*_killable(servers))

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


def _killable(servers: Servers) -> tuple[PostgresServer, KafkaBroker]:
    return servers.stack.postgres, servers.stack.kafka


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
