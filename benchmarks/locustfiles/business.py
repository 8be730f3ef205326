"""Users are clients of the database: each commits business transactions of a workload.

``COMMIT`` in Locust's report is how long a transaction took, counted from when it was *due* to start. A
database that stalls therefore shows the delay of all that had to wait.

``python -m slackwater_bench load`` runs it on a stack of its own. By hand, against servers of yours::

    locust -f benchmarks/locustfiles/business.py --dsn postgresql://… --workload orders \
        --arrivals burst --rate 200 --clients 8 --run-time 60
"""

import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import locust
import psycopg
from locust import User, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from slackwater_bench.arrivals import ARRIVALS, PoissonArrivals
from slackwater_lab.database.statements import execute_transaction
from slackwater_lab.workloads import WORKLOADS
from slackwater_lab.workloads.workload import BusinessTransaction

FOREVER = 1e6
"""No more arrivals."""
events: Any = locust.events  # has no types


def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("Business transactions")
    group.add_argument("--dsn", required=True, help="The database; its tables and first rows exist already.")
    group.add_argument("--workload", default="orders", choices=sorted(WORKLOADS))
    group.add_argument("--size", type=int, default=1_000, help="Main rows of the workload. Default: 1000")
    group.add_argument("--seed", type=int, default=1, help="Of the workload and the arrivals. Default: 1")
    group.add_argument("--clients", type=int, default=8, help="Connections; use as --users too. Default: 8")
    group.add_argument("--arrivals", default="steady", choices=sorted(ARRIVALS), help="Shape of the rate.")
    group.add_argument("--rate", type=float, default=100.0, help="Transactions per second, all clients.")
    group.add_argument("--seconds", type=float, default=60.0, help="Length of the shape. Default: 60")


def _prepare(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    workload = WORKLOADS[options.workload](options.seed, options.size)
    DatabaseClient.idle = deque(
        (number, workload.transactions(number, options.clients)) for number in range(options.clients)
    )


class DatabaseClient(User):
    """One connection. Which transactions it commits depends on the seed and its number alone."""

    idle: deque[tuple[int, Iterator[BusinessTransaction]]]
    """Streams of transactions that no running client has."""

    def on_start(self) -> None:
        """Connects and takes a stream."""
        options: Any = self.environment.parsed_options
        self._number, self._transactions = self.idle.popleft()
        self._connection = psycopg.connect(options.dsn)
        rng = random.Random(f"{options.seed} {self._number}")
        rate = ARRIVALS[options.arrivals](options.rate, options.seconds)
        self._arrivals = PoissonArrivals(rate, options.clients, rng)
        self._started = time.monotonic()

    def on_stop(self) -> None:
        """Hands the stream back; an open transaction is rolled back."""
        self.idle.append((self._number, self._transactions))
        self._connection.close()

    def wait_time(self) -> float:
        """Until the next transaction is due; 0 when it should have started already."""
        due = self._arrivals.next()
        if due >= self.environment.parsed_options.seconds:
            return FOREVER
        return max(0.0, self._started + due - time.monotonic())

    @task
    def commit(self) -> None:
        """One business transaction."""
        transaction, error = next(self._transactions), None
        try:
            execute_transaction(self._connection, transaction)
        except psycopg.Error as failure:
            error = failure
            self._connection.rollback()
        late = time.monotonic() - self._started - self._arrivals.due
        self.environment.events.request.fire(
            request_type="COMMIT",
            name="business transaction",
            response_time=1000 * late,
            response_length=0,
            exception=error,
            context={},
        )


events.init_command_line_parser.add_listener(_add_options)
events.init.add_listener(_prepare)
