"""The hand-written fold itself, as a program of this environment would use it."""

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slackwater_bench.peers.registry import PROGRAMS

ORDER = {"id": 1, "customer": "a", "status": "new", "line_count": 1, "total": "3.00"}
LINE = {"id": 7, "order_id": 1, "product": "p", "quantity": 3, "price": "1.00"}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stand_in = SimpleNamespace(loads=json.loads, dumps=lambda value: json.dumps(value).encode())
    monkeypatch.setitem(sys.modules, "orjson", stand_in)
    spec = importlib.util.spec_from_file_location("fold_program", PROGRAMS / "fold" / "program.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def event(before: Any, after: Any) -> bytes:
    return json.dumps({"before": before, "after": after}).encode()


def documents(fold: Any) -> dict[int, Any]:
    return {key: value and json.loads(value) for key, value in fold.documents()}


def test_a_document_has_the_lines_that_were_read(program: ModuleType) -> None:
    fold = program.Fold()
    fold.apply("orders", event(None, ORDER))
    assert documents(fold) == {1: {**ORDER, "lines": []}}
    fold.apply("order_lines", event(None, LINE))
    line = {name: value for name, value in LINE.items() if name != "order_id"}
    assert documents(fold) == {1: {**ORDER, "lines": [line]}}
    assert documents(fold) == {}


def test_lines_wait_for_their_order(program: ModuleType) -> None:
    fold = program.Fold()
    fold.apply("order_lines", event(None, LINE))
    assert documents(fold) == {}
    fold.apply("orders", event(None, ORDER))
    assert [len(document["lines"]) for document in documents(fold).values()] == [1]


def test_a_line_that_moves_changes_both_orders(program: ModuleType) -> None:
    fold = program.Fold()
    fold.apply("orders", event(None, ORDER))
    fold.apply("orders", event(None, {**ORDER, "id": 2}))
    fold.apply("order_lines", event(None, LINE))
    documents(fold)
    fold.apply("order_lines", event(LINE, {**LINE, "order_id": 2}))
    assert {key: len(document["lines"]) for key, document in documents(fold).items()} == {1: 0, 2: 1}


def test_a_deleted_order_is_a_tombstone(program: ModuleType) -> None:
    fold = program.Fold()
    fold.apply("orders", event(None, ORDER))
    documents(fold)
    fold.apply("orders", event(ORDER, None))
    assert documents(fold) == {1: None}
