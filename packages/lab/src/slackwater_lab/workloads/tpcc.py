"""A mix of transactions like TPC-C's, for one log and few warehouses.

New-order 45 %, payment 43 %, order-status, delivery and stock-level 4 % each; 1 % of new-orders are rolled
back. Not TPC-C itself: keys are single numbers, a district has 30 customers, there are 100 items, and old
orders and payments are removed so that the database keeps its size. Invariant in every committed state
(clause 3.3.2.1): a warehouse's ``ytd`` is the sum of its districts'.

Warehouses, districts, customers and stock are changed relative to what they are, in this order: stock,
customer, district, warehouse. An order belongs to the writer that entered it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Read,
    Update,
    Value,
    Workload,
    money,
    workload_pipeline,
)

_WAREHOUSE = "tpcc.warehouse"
_DISTRICT = "tpcc.district"
_CUSTOMER = "tpcc.customer"
_STOCK = "tpcc.stock"
_HISTORY = "tpcc.history"
ORDERS = "tpcc.orders"
_NEW_ORDERS = "tpcc.new_orders"
_ORDER_LINE = "tpcc.order_line"

_DISTRICTS = 10
"""Of a warehouse."""
CUSTOMERS = 30
"""Of a district."""
_ITEMS = 100
MAX_LINES = 15
_DELIVERED_AT_ONCE = 10
_KEPT = 20
"""Orders, and payments, kept for each district."""
_DISTRICT_YTD = 30_000_00
_ENTERED = "2026-01-02T03:04:05.678901Z"
_DELIVERED = "2026-01-03T03:04:05.678901Z"


class _Order(NamedTuple):
    """An order, as its writer knows it."""

    id: int
    district: int
    customer: int
    lines: tuple[int, ...]
    cents: int


@dataclass(frozen=True, slots=True)
class TpccWorkload(Workload):
    """New-order, payment, order-status, delivery and stock-level.

    ``size`` is the number of customers, rounded to whole warehouses of 300.
    """

    name: ClassVar[str] = "tpcc"
    pipeline: Path = field(default=workload_pipeline("tpcc"), kw_only=True)

    @property
    def warehouses(self) -> int:
        return max(1, self.size // (_DISTRICTS * CUSTOMERS))

    def first(self) -> Iterator[BusinessTransaction]:
        for warehouse in range(1, self.warehouses + 1):
            yield BusinessTransaction(tuple(_first_rows(warehouse)))

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Terminal(self, writer, writers).transactions()


def _first_rows(warehouse: int) -> Iterator[Insert]:
    name = f"warehouse-{warehouse}"
    yield Insert(_WAREHOUSE, {"id": warehouse, "name": name, "ytd": money(_DISTRICTS * _DISTRICT_YTD)})
    for district in range((warehouse - 1) * _DISTRICTS + 1, warehouse * _DISTRICTS + 1):
        row: dict[str, Value] = {"id": district, "warehouse_id": warehouse, "ytd": money(_DISTRICT_YTD)}
        yield Insert(_DISTRICT, {**row, "name": f"district-{district}", "next_order": 1})
        for customer in range((district - 1) * CUSTOMERS + 1, district * CUSTOMERS + 1):
            row = {"id": customer, "district_id": district, "name": f"customer-{customer}"}
            amounts: dict[str, Value] = {"balance": money(0), "ytd_payment": money(0)}
            yield Insert(_CUSTOMER, {**row, **amounts, "payments": 0, "deliveries": 0})
    for item in range(1, _ITEMS + 1):
        row = {"id": _stock(warehouse, item), "warehouse_id": warehouse, "item": item, "quantity": 50}
        yield Insert(_STOCK, {**row, "ytd": 0, "order_count": 0})


def _stock(warehouse: int, item: int) -> int:
    return (warehouse - 1) * _ITEMS + item


class _Terminal:
    """One writer's stream."""

    def __init__(self, workload: TpccWorkload, writer: int, writers: int) -> None:
        self._random = workload.new_random(writer, writers)
        self._warehouses = workload.warehouses
        self._order_ids = count(1 + writer, writers)
        self._payment_ids = count(1 + writer, writers)
        self._waiting: deque[_Order] = deque()
        self._delivered: deque[_Order] = deque()
        self._payments: deque[int] = deque()
        self._kept = max(1, _KEPT * _DISTRICTS * self._warehouses // writers)

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        while True:
            choice = rng()
            if choice < 0.45:
                yield self._new_order(is_rolled_back=rng() < 0.01)
            elif choice < 0.88:
                yield BusinessTransaction(tuple(self._payment()))
            elif choice < 0.92:
                yield BusinessTransaction(tuple(self._order_status()))
            elif choice < 0.96:
                yield BusinessTransaction(tuple(self._delivery()))
            else:
                yield BusinessTransaction(tuple(self._stock_level()))

    def _new_order(self, *, is_rolled_back: bool) -> BusinessTransaction:
        rng = self._random
        district, customer = self._customer()
        items = sorted(rng.sample(range(1, _ITEMS + 1), rng.randint(5, MAX_LINES)))
        order_id = next(self._order_ids)
        lines = tuple(order_id * MAX_LINES + number for number in range(len(items)))
        quantities = [rng.randint(1, 10) for _ in items]
        amounts = [quantity * _price(item) for item, quantity in zip(items, quantities, strict=True)]
        order = _Order(order_id, district, customer, lines, sum(amounts))
        operations: list[Operation] = [*_entered(order)]
        for line, item, quantity, cents in zip(lines, items, quantities, amounts, strict=True):
            row: dict[str, Value] = {"id": line, "order_id": order_id, "item": item, "quantity": quantity}
            operations.append(Insert(_ORDER_LINE, {**row, "amount": money(cents), "delivered": None}))
        operations += self._taken(self._supplier(district), items, quantities)
        operations.append(Update(_DISTRICT, district, {"next_order": Plus(1)}))
        if not is_rolled_back:
            self._waiting.append(order)
        return BusinessTransaction(tuple(operations), is_rolled_back=is_rolled_back)

    def _taken(self, warehouse: int, items: list[int], quantities: list[int]) -> Iterator[Update]:
        """From stock, which is filled up by 91 as often as keeps it level."""
        for item, quantity in zip(items, quantities, strict=True):
            filled = 91 if self._random.random() < quantity / 91 else 0
            change: dict[str, Value | Plus] = {"quantity": Plus(filled - quantity)}
            change |= {"ytd": Plus(quantity), "order_count": Plus(1)}
            yield Update(_STOCK, _stock(warehouse, item), change)

    def _supplier(self, district: int) -> int:
        if self._random.random() < 0.01:
            return 1 + int(self._random.random() * self._warehouses)
        return _warehouse(district)

    def _payment(self) -> Iterator[Operation]:
        district, customer = self._customer()
        payment, cents = next(self._payment_ids), self._random.randint(1_00, 5_000_00)
        row: dict[str, Value] = {"id": payment, "customer_id": customer, "district_id": district}
        yield Insert(_HISTORY, {**row, "amount": money(cents)})
        self._payments.append(payment)
        if len(self._payments) > self._kept:
            yield Delete(_HISTORY, self._payments.popleft())
        paid = Plus(money(cents))
        change = {"balance": Plus(money(-cents)), "ytd_payment": paid, "payments": Plus(1)}
        yield Update(_CUSTOMER, customer, change)
        yield Update(_DISTRICT, district, {"ytd": paid})
        yield Update(_WAREHOUSE, _warehouse(district), {"ytd": paid})

    def _delivery(self) -> Iterator[Operation]:
        """The oldest orders of this terminal; those delivered long ago are removed."""
        customers: dict[int, tuple[int, int]] = {}
        carrier = self._random.randint(1, 10)
        for _ in range(min(len(self._waiting), _DELIVERED_AT_ONCE + len(self._waiting) // 10)):
            order = self._waiting.popleft()
            self._delivered.append(order)
            yield Delete(_NEW_ORDERS, order.id)
            yield Update(ORDERS, order.id, {"carrier": carrier})
            for line in order.lines:
                yield Update(_ORDER_LINE, line, {"delivered": _DELIVERED})
            number, cents = customers.get(order.customer, (0, 0))
            customers[order.customer] = number + 1, cents + order.cents
        while len(self._delivered) > self._kept:
            order = self._delivered.popleft()
            for line in order.lines:
                yield Delete(_ORDER_LINE, line)
            yield Delete(ORDERS, order.id)
        for customer, (number, cents) in sorted(customers.items()):
            yield Update(_CUSTOMER, customer, {"balance": Plus(money(cents)), "deliveries": Plus(number)})

    def _order_status(self) -> Iterator[Operation]:
        yield Read(_CUSTOMER, self._customer()[1])
        if self._waiting:
            order = self._waiting[-1]
            yield Read(ORDERS, order.id)
            for line in order.lines:
                yield Read(_ORDER_LINE, line)

    def _stock_level(self) -> Iterator[Operation]:
        district = self._customer()[0]
        yield Read(_DISTRICT, district)
        for item in range(1, MAX_LINES + 1):
            yield Read(_STOCK, _stock(_warehouse(district), item))

    def _customer(self) -> tuple[int, int]:
        """A district and one of its customers."""
        district = int(self._random.random() * _DISTRICTS * self._warehouses)
        return district + 1, district * CUSTOMERS + 1 + int(self._random.random() * CUSTOMERS)


def _entered(order: _Order) -> Iterator[Insert]:
    row: dict[str, Value] = {"id": order.id, "district_id": order.district, "customer_id": order.customer}
    yield Insert(ORDERS, {**row, "carrier": None, "line_count": len(order.lines), "entered": _ENTERED})
    yield Insert(_NEW_ORDERS, {"id": order.id, "district_id": order.district})


def _warehouse(district: int) -> int:
    return (district - 1) // _DISTRICTS + 1


def _price(item: int) -> int:
    return 100 + item * 37 % 9_900
