import json
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Producer

from slackwater.cuts import CutLog, FrontierState, FrontierStatus, RedisMarkerStore
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import CommittedTransaction, Cut, KafkaSettings
from slackwater.protocol.keys import data_topic
from slackwater_lab.topics import make_topics

ORDERS, LINES = "inventory.orders", "inventory.order_lines"
EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
COMMIT_MS = 1_795_206_861_409
LSN_STEP = 1000
SECONDS_TO_ANSWER = 300.0

Row = dict[str, Any]
Change = tuple[str, Row | None, Row | None]
"""Table, row before, row after."""


SCHEMA = """
CREATE TABLE inventory.orders (
    id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12,2) NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE TABLE inventory.order_lines (
    id bigint PRIMARY KEY, order_id bigint NOT NULL, product text NOT NULL, quantity int NOT NULL,
    price numeric(10,2) NOT NULL
);
ALTER TABLE inventory.order_lines REPLICA IDENTITY FULL;
"""


class Shop:
    """Plays database, connector and sidecar: transactions as written by a test, cuts when asked for."""

    schema = SCHEMA

    def __init__(self, bootstrap: str, redis_url: str) -> None:
        self.source = f"src-{uuid.uuid4().hex[:10]}"
        self.version = "slackwater"
        self.bootstrap, self.redis_url = bootstrap, redis_url
        self.lsn = self._previous = self.events = 0
        self._uncut: list[CommittedTransaction] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._log = CutLog(self.source, KafkaSettings(bootstrap))
        self._store = RedisMarkerStore.connect(redis_url)
        self._log.ensure_topic(replication_factor=1)
        self._ends = {data_topic(self.source, table): [0, 0] for table in (ORDERS, LINES)}
        make_topics(bootstrap, [*self._ends], 2)

    def commit(self, *changes: Change) -> int:
        """One transaction; its commit LSN. Without changes it touches a table that nobody reads."""
        first, self.lsn = self.lsn, self.lsn + LSN_STEP
        for order, (table, before, after) in enumerate(changes, 1):
            self._write(table, before, after, self.lsn // LSN_STEP, first + order, order)
        self.events += max(1, len(changes))
        self._uncut.append(CommittedTransaction(self.lsn // LSN_STEP, self.lsn, COMMIT_MS + self.lsn))
        return self.lsn

    def cut(self) -> int:
        """Declares all that is committed complete; its LSN."""
        assert self._producer.flush(SECONDS_TO_ANSWER) == 0
        cut = Cut(
            source=self.source,
            timeline=1,
            lsn=self.lsn,
            previous_lsn=self._previous,
            commit_ts_ms=COMMIT_MS + self.lsn,
            event_count=self.events,
            transactions=tuple(self._uncut),
            end_offsets={topic: tuple(ends) for topic, ends in self._ends.items()},
            transaction_offset=0,
        )
        [published] = self._log.append([cut])
        self._store.put_cut(published, FrontierStatus(state=FrontierState.RUNNING, wall_ms=0, sidecar="test"))
        self._uncut, self._previous = [], self.lsn
        return self.lsn

    @staticmethod
    def order(order_id: int, customer: str = "ada", total: str = "0.00") -> Row:
        row = {"id": order_id, "customer": customer, "total": total}
        return row | {"created_at": "2026-01-02T03:04:05.678900Z"}

    @staticmethod
    def line(line_id: int, order_id: int, price: str, quantity: int = 1) -> Row:
        row = {"id": line_id, "order_id": order_id, "product": "pé"}
        return row | {"quantity": quantity, "price": price}

    def new_order(self, order_id: int, *prices: str, customer: str = "ada") -> int:
        """A transaction with an order and its lines, whose ids are those of the order times 100 and on."""
        total = str(sum(map(Decimal, prices), Decimal("0.00")))
        lines = [self.line(order_id * 100 + n, order_id, price) for n, price in enumerate(prices)]
        changes: list[Change] = [(LINES, None, line) for line in lines]
        return self.commit(*changes, (ORDERS, None, self.order(order_id, customer, total)))

    def close(self) -> None:
        self._log.close()
        self._store.close()

    def _write(self, table: str, old: Row | None, row: Row | None, xid: int, lsn: int, order: int) -> None:
        schema, _, name = table.partition(".")
        topic, present = data_topic(self.source, table), row or old or {}
        op = "c" if old is None else "d" if row is None else "u"
        value = {
            "before": old,
            "after": row,
            "op": op,
            "ts_ms": COMMIT_MS,
            "source": {"version": self.version, "name": self.source, "ts_ms": COMMIT_MS}
            | {"snapshot": "false", "schema": schema, "table": name, "txId": xid, "lsn": lsn},
            "transaction": {"id": f"{xid}:{lsn}", "total_order": order, "data_collection_order": order},
        }
        partition = present["id"] % 2
        key = json.dumps({"id": present["id"]}).encode()
        self._producer.produce(topic, json.dumps(value).encode(), key, partition=partition)
        self._ends[topic][partition] += 1


@pytest.fixture
def shop(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Iterator[Shop]:
    shop = Shop(kafka_broker.bootstrap, redis_server.url)
    yield shop
    shop.close()


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Loads an example of docs/python.md by its name."""

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
