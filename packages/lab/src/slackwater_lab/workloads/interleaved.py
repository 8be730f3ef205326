"""Long transactions stay open while many others commit.

The rows of a long one therefore lie in the log before commits that come before its own. Orders and lines as
in :mod:`slackwater_lab.workloads.orders`, with the same invariants, but nothing is shared among writers,
and the orders of a long transaction are left alone until it is committed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar

from slackwater_lab.workloads.orders import (
    FIRST_LINES,
    LINES,
    Line,
    adjust_order,
    first_lines,
    first_orders,
    insert_line,
    price,
)
from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Operation,
    Update,
    Workload,
    repository_pipeline,
)

_LONG_SHARE = 0.05
_MAX_HELD = 100
"""Other transactions that commit while one is open."""
_MAX_ORDERS = 10
"""Of a long transaction."""
MAX_LINES = 6


@dataclass(frozen=True, slots=True)
class InterleavedWorkload(Workload):
    """Short transactions of one order, and long ones of several that stay open.

    ``size`` is the number of orders.
    """

    name: ClassVar[str] = "interleaved"
    pipeline: Path = field(default=repository_pipeline("orders"), kw_only=True)

    def first(self) -> Iterator[BusinessTransaction]:
        return first_orders(self.size, self.seed)

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    def __init__(self, workload: InterleavedWorkload, writer: int, writers: int) -> None:
        self._seed = workload.seed
        self._random = workload.new_random(writer, writers)
        self._line_ids = count(FIRST_LINES * workload.size + 1 + writer, writers)
        self._free = list(range(1 + writer, workload.size + 1, writers))
        self._lines: dict[int, list[Line]] = {}
        self._held: deque[tuple[int, list[int]]] = deque()

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        for number in count():
            self._release(number)
            spare = len(self._free) - 1
            if rng() < _LONG_SHARE and spare > 0:
                orders = [self._take() for _ in range(min(spare, 1 + int(rng() * _MAX_ORDERS)))]
                held = 1 + int(rng() * _MAX_HELD)
                self._held.append((number + held, orders))
                yield BusinessTransaction(self._change(orders), held_open_for=held)
            elif self._free:
                orders = [self._free[int(rng() * len(self._free))]]
                is_rolled_back = rng() < 0.03
                known = {order_id: list(self._known(order_id)) for order_id in orders}
                yield BusinessTransaction(self._change(orders), is_rolled_back=is_rolled_back)
                if is_rolled_back:
                    self._lines.update(known)
            else:
                yield BusinessTransaction(())

    def _release(self, number: int) -> None:
        due = [each for each in self._held if each[0] < number]
        for each in due:
            self._held.remove(each)
            self._free += each[1]

    def _take(self) -> int:
        index = int(self._random.random() * len(self._free))
        self._free[index], self._free[-1] = self._free[-1], self._free[index]
        return self._free.pop()

    def _known(self, order_id: int) -> list[Line]:
        return self._lines.setdefault(order_id, first_lines(order_id, self._seed))

    def _change(self, orders: list[int]) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        headers: list[Operation] = []
        for order_id in sorted(orders):
            lines = self._known(order_id)
            before = len(lines), sum(line.amount for line in lines)
            operations += self._change_lines(order_id, lines)
            after = len(lines), sum(line.amount for line in lines)
            headers.append(adjust_order(order_id, after[0] - before[0], after[1] - before[1]))
        return (*operations, *headers)

    def _change_lines(self, order_id: int, lines: list[Line]) -> list[Operation]:
        """Changes one line, perhaps adds or removes another."""
        rng, operations = self._random.random, list[Operation]()
        choice = rng()
        if not lines or (choice < 0.25 and len(lines) < MAX_LINES):
            line_id = next(self._line_ids)
            lines.append(Line(line_id, 1 + line_id % 5, price(line_id, self._seed)))
            return [insert_line(order_id, lines[-1])]
        if choice > 0.75:
            operations.append(Delete(LINES, lines.pop(0).id))
        if lines:
            lines[-1] = lines[-1]._replace(quantity=1 + int(rng() * 9))
            operations.append(Update(LINES, lines[-1].id, {"quantity": lines[-1].quantity}))
        return operations
