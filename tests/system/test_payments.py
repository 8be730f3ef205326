"""The example of docs/examples/payments, killed: every request is booked once, and answered alike each time.

Real PostgreSQL, Debezium, Kafka, Redis, sidecar and Spark. The judge reads what both services have stored and
what they have said to each other; the certifier compares every document of both views with the committed
states of the database.
"""

import signal
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_lab.topics import read_to_end
from slackwater_messaging import SendStep
from slackwater_messaging.receiving import ReceiverStep

pytestmark = [pytest.mark.system, pytest.mark.spark]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "payments"
DYING = Path(__file__).parent / "dying_service.py"
SENDING = (SendStep.TAKEN, SendStep.PRODUCED, SendStep.KAFKA_COMMITTED)
DEATHS: Mapping[str, Sequence[str]] = {
    "shop": (ReceiverStep.RECEIVED, ReceiverStep.HANDLED, ReceiverStep.COMMITTED),
    "payments": (
        ReceiverStep.RECEIVED,
        ReceiverStep.HANDLED,
        ReceiverStep.COMMITTED,
        ReceiverStep.REPLIED,
    ),
    "shop-relay": SENDING,
    "payments-relay": SENDING,
}
"""The steps behind which each program dies, one after the other."""
LOOK_SECONDS = 0.2
STATES = """
SELECT o.id, o.status, array_remove(array_agg(p.state), NULL),
    (SELECT count(*) FROM shop.parcels AS s WHERE s.order_id = o.id)
FROM shop.orders AS o LEFT JOIN payments.payments AS p ON p.order_id = o.id GROUP BY o.id
"""
RIGHT = (("paid", ("booked",), 1), ("declined", ("declined",), 0))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What has come of the orders."""

    orders: int
    wrong: int = 0
    """Orders without one payment, of which both services say the same, and one parcel if it is booked."""
    booked_again: int = 0
    """Payments beyond the first one of an order."""
    unanswered: int = 0
    contradicted: int = 0
    """Orders with answers that differ."""
    asked_again: int = 0
    """Requests beyond the first one of an order."""

    @property
    def is_booked_again(self) -> bool:
        """True if an order was booked twice, which both the tables and the answers say."""
        return min(self.wrong, self.booked_again, self.contradicted) > 0


class Running:
    """The example, as ``run.py`` starts it."""

    def __init__(self, stack: DevStack, folder: Path, running: ExitStack) -> None:
        self.run, self.shop = load("run"), load("shop")
        self._stack = stack
        self._services: Mapping[str, Sequence[str]] = self.run.services(stack, patience=1.0)
        self.product = running.enter_context(self.run.started(stack, folder, self._services))
        self.visible = self.product.watch(self.run.PIPELINE)
        self._customers = running.enter_context(psycopg.connect(stack.postgres.dsn(), autocommit=True))
        self._numbers = count()

    def order(self, amount: int) -> None:
        """Places an order."""
        self.shop.place_order(self._customers, next(self._numbers) % 20 + 1, amount)

    def ask_again(self) -> None:
        """Asks again for the payments of all orders that have none, whose requests may have been lost."""
        self.shop.ask_again(self._customers, timedelta(0))

    def replace(self, name: str, step: str = "", mechanism: str = "with") -> None:
        """Kills a program, and starts one that dies behind a step, or lacks the mechanism."""
        self.product.programs[name].kill()
        python, script, *arguments = self._services[name]
        dying = (python, str(DYING), Path(script).stem, step, "1", mechanism, *arguments)
        self.product.start(name, dying if step or mechanism != "with" else self._services[name])

    def kill_behind(self, deaths: Mapping[str, Sequence[str]]) -> None:
        """Lets each program die behind one step after the other, while orders come; then all run again."""
        left = {name: deque(steps) for name, steps in deaths.items()}
        for name, steps in left.items():
            self.replace(name, steps.popleft())
        self.order(30_000)
        self.ask_again()
        pause, dying = threading.Event(), set(left)
        while dying:
            self.order(30_000)
            pause.wait(LOOK_SECONDS)
            for name in sorted(dying):
                program = self.product.programs[name]
                if program.is_well:
                    continue
                assert program.wait(LOOK_SECONDS) == -signal.SIGKILL, program.last_words()
                if not left[name]:
                    dying.remove(name)
                self.replace(name, left[name].popleft() if left[name] else "")

    def settle(self) -> None:
        """Waits until all orders are answered, and are in the views."""
        assert self.run.settle(self.product, self.visible)

    def judge(self) -> Verdict:
        """Compares what both services have stored, and what they have said."""
        with psycopg.connect(self._stack.postgres.dsn()) as connection:
            rows = connection.execute(STATES).fetchall()
        states = [(status, tuple(payments), parcels) for _, status, payments, parcels in rows]
        requests, answers = (self._messages(topic) for topic in self.run.TOPICS)
        return Verdict(
            orders=len(rows),
            wrong=sum(state not in RIGHT for state in states),
            booked_again=sum(max(0, len(payments) - 1) for _, payments, _ in states),
            unanswered=len({str(row[0]) for row in rows} - answers.keys()),
            contradicted=sum(len(set(given)) > 1 for given in answers.values()),
            asked_again=sum(map(len, requests.values())) - len(requests),
        )

    def _messages(self, topic: str) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = defaultdict(list)
        for record in read_to_end(self._stack.kafka.bootstrap, topic):
            found[bytes(record.key() or b"").decode()].append(bytes(record.value() or b""))
        return found

    def certificates(self) -> Sequence[Certificate]:
        """Judges both views."""
        connections = Connections(bootstrap=self._stack.kafka.bootstrap, dsn=self._stack.postgres.dsn())
        files = self.run.SPECIFICATIONS
        return [certify(load_specification(file), connections, mode=Mode.BOTH) for file in files]


def load(name: str) -> ModuleType:
    """Returns a script of the example as a module."""
    spec = spec_from_file_location(f"payments_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def running(dev_stack: Callable[..., DevStack], tmp_path: Path) -> Iterator[Running]:
    stack = dev_stack(prefix="shop", database="shop", partitions=2)
    with ExitStack() as ending:
        yield Running(stack, tmp_path, ending)


@pytest.mark.slow
def test_every_request_is_booked_once_and_answered_alike_whoever_is_killed(running: Running) -> None:
    running.kill_behind(DEATHS)
    running.settle()
    verdict = running.judge()
    assert verdict.asked_again > 0
    assert verdict == Verdict(orders=verdict.orders, asked_again=verdict.asked_again)
    for certificate in running.certificates():
        assert certificate.examples == {}
        assert certificate.is_clean

    # Without the inbox the judge and the certifier see what is wrong; the views show it truly.
    running.replace("payments", mechanism="without")
    for _ in range(5):
        running.order(1)
    running.ask_again()
    assert running.product.wait_until(lambda: running.judge().is_booked_again, running.run.SECONDS)
    running.settle()
    orders, accounts = running.certificates()
    assert orders.invariant_violations > 0
    assert (orders.torn, accounts.torn) == (0, 0)
