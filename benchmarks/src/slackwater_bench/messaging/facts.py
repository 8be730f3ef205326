"""The ways by name: what each promises, and what may go wrong with it. The page and the judge read this."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from slackwater_lab.messaging.receiving.member import Twin, Way
from slackwater_lab.messaging.sending.ways import WAYS


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
