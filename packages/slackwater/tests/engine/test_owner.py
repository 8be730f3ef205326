"""Scope ``aggregate``: all rows of a engine key come from one partition, or the query stops."""

import json
from collections.abc import Callable
from operator import itemgetter

import pytest

from slackwater.engine.index import BucketIndex
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.settings import Scope
from slackwater.protocol import InputError
from slackwater.sql.plan import EnginePlan

MakeIndex = Callable[[], BucketIndex]
ORDERS, LINES = "inventory.orders", "inventory.order_lines"


def order(lsn: int, order_id: int = 1, customer: str = "a") -> ChangeEvent:
    row = {"id": order_id, "customer": customer, "total": None}
    return ORDERS, "u", lsn, None, json.dumps(row).encode()


def no_order(lsn: int, order_id: int = 1) -> ChangeEvent:
    return ORDERS, "d", lsn, json.dumps({"id": order_id}).encode(), None


def line(lsn: int, order_id: int = 1, before: int | None = None, line_id: int = 7) -> ChangeEvent:
    images = [
        None if each is None else json.dumps({"id": line_id, "order_id": each, "product": "x"}).encode()
        for each in (before, order_id)
    ]
    return LINES, "c" if before is None else "u", lsn, images[0], images[1]


def no_line(lsn: int, order_id: int = 1, line_id: int = 7) -> ChangeEvent:
    return LINES, "d", lsn, json.dumps({"id": line_id, "order_id": order_id, "product": "x"}).encode(), None


@pytest.fixture
def engine(plan: EnginePlan, make_index: MakeIndex) -> LocalEngine:
    return LocalEngine(plan, make_index, scope=Scope.AGGREGATE)


def test_keys_of_several_partitions_have_documents_at_their_own_lsn(engine: LocalEngine) -> None:
    found = engine.run_partitions({0: [order(10), line(20)], 3: [order(90, 2), order(95, 2, "b")]})[0]
    stamps = sorted((json.loads(key)["id"], lsn) for lsn, key, _ in found)
    assert stamps == [(1, 20), (2, 95)]
    assert [lsn for lsn, _, _ in engine.run_partitions({0: [line(30, 1, line_id=8)]})[0]] == [30]


def test_with_transactions_each_document_has_the_lsn_of_its_commit(plan: EnginePlan) -> None:
    engine = LocalEngine(plan, every_commit=True, scope=Scope.AGGREGATE)
    found = engine.run_partitions({0: [order(10), line(20)], 3: [order(5, 2)]})[0]
    assert sorted(map(itemgetter(0), found)) == [5, 10, 20]


def test_a_key_with_rows_in_two_partitions_of_a_batch_stops_the_query(engine: LocalEngine) -> None:
    with pytest.raises(InputError) as caught:
        engine.run_partitions({0: [order(10)], 2: [line(10)]})
    error = str(caught.value)
    assert f'{LINES}, key {{"id":1}}, commit LSN 10: a row in partition 2' in error
    assert "rows of this key came from partition 0" in error
    assert "message.key.columns" in error


def test_a_key_with_rows_in_another_partition_than_long_ago_stops_the_query(engine: LocalEngine) -> None:
    engine.run_partitions({0: [order(10)]})
    engine.run_partitions({0: [order(11, customer="b")]})
    for bucket in range(3):
        engine.lose_index(1, bucket)
    with pytest.raises(InputError, match="partition 2, but rows of this key came from partition 0"):
        engine.run_partitions({2: [line(20)]})
    engine.run_partitions({0: [line(20)]})


def test_a_row_that_moves_to_a_key_of_another_partition_without_moving_itself_stops_the_query(
    engine: LocalEngine,
) -> None:
    engine.run_partitions({0: [order(10), line(10)], 1: [order(10, 2)]})
    with pytest.raises(InputError, match="partition 0, but rows of this key came from partition 1"):
        engine.run_partitions({0: [line(20, 2, before=1)]})


def test_a_key_without_rows_belongs_to_nobody_and_costs_nothing(engine: LocalEngine) -> None:
    engine.run_partitions({0: [order(10)]})
    engine.run_partitions({0: [no_order(20)]})
    assert not any(index.update(lambda c: list(c.entries())) for index in engine.indexes.values())
    engine.run_partitions({1: [order(30)]})


@pytest.mark.parametrize("change", [no_line(20), order(20)], ids=["one row is gone", "nothing changes"])
def test_a_key_of_which_nothing_new_is_stored_keeps_its_owner_as_long_as_it_has_rows(
    engine: LocalEngine, change: ChangeEvent
) -> None:
    engine.run_partitions({0: [order(10), line(10)]})
    engine.run_partitions({0: [change]})
    with pytest.raises(InputError, match="partition 1, but rows of this key came from partition 0"):
        engine.run_partitions({1: [line(30, line_id=8)]})


def test_documents_without_rows_of_the_first_table_keep_their_owner(engine: LocalEngine) -> None:
    """Lines without an order make no document, but they are rows of the key."""
    assert engine.run_partitions({0: [line(10)]})[0] == []
    with pytest.raises(InputError):
        engine.run_partitions({1: [order(20)]})


def test_truncate_stops_the_query(engine: LocalEngine) -> None:
    engine.run_partitions({0: [order(10)], 1: [order(10, 2)]})
    with pytest.raises(InputError, match=r"TRUNCATE of inventory\.orders, commit LSN 20"):
        engine.run_partitions({1: [(ORDERS, "t", 20, None, None)]})


def test_scope_strict_takes_rows_of_a_key_from_anywhere(plan: EnginePlan) -> None:
    engine = LocalEngine(plan)
    found = engine.run_partitions({0: [order(10)], 2: [line(10)]})[0]
    assert [lsn for lsn, _, _ in found] == [10]
