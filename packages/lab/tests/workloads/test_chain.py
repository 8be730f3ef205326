"""The shop of the engine's scenarios."""

from itertools import islice
from typing import Any

import pytest

from slackwater_lab.workloads.chain import CUSTOMERS, LINES, ORDERS, ChainWorkload
from slackwater_lab.workloads.workload import BusinessTransaction, Delete, Insert, Update

SIZE = 40
Tables = dict[str, dict[int, dict[str, Any]]]


def executed(transactions: list[BusinessTransaction]) -> Tables:
    """The tables afterwards; fails where a row is missing or there twice."""
    tables: Tables = {CUSTOMERS: {}, ORDERS: {}, LINES: {}}
    for transaction in transactions:
        for operation in transaction.operations:
            match operation:
                case Insert(table, row):
                    assert row["id"] not in tables[table]
                    tables[table][int(str(row["id"]))] = dict(row)
                case Update(table, row_id, changes):
                    tables[table][row_id].update(changes)
                case Delete(table, row_id):
                    del tables[table][row_id]
    return tables


@pytest.mark.parametrize("writers", [1, 3])
def test_every_line_has_an_order_and_every_order_a_customer(writers: int) -> None:
    workload = ChainWorkload(3, SIZE)
    streams = [islice(workload.transactions(writer, writers), 600) for writer in range(writers)]
    tables = executed([*workload.first(), *(one for turn in zip(*streams, strict=True) for one in turn)])
    assert {line["order_id"] for line in tables[LINES].values()} <= tables[ORDERS].keys()
    assert {order["customer_id"] for order in tables[ORDERS].values()} <= tables[CUSTOMERS].keys()
    assert len(tables[ORDERS]) > 1


def test_the_same_seed_gives_the_same_transactions() -> None:
    first, second = (list(islice(ChainWorkload(7, SIZE).transactions(0, 2), 200)) for _ in range(2))
    assert first == second
    assert first != list(islice(ChainWorkload(8, SIZE).transactions(0, 2), 200))
