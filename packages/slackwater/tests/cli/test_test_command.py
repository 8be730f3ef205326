"""``slackwater test``: which tests pass, what differs, and the exit code."""

import shutil
from pathlib import Path

import pytest

from slackwater.cli import main

ORDERS = Path(__file__).parents[4] / "pipelines" / "orders"


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pipeline, in the current folder."""
    shutil.copytree(ORDERS, tmp_path / "orders")
    monkeypatch.chdir(tmp_path)
    return Path("orders")


def test_the_tests_of_a_pipeline_pass(orders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["test", str(orders)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      orders/tests/orders.yaml:3  an order and its lines become visible together",
        "ok      orders/tests/orders.yaml:22  a line moves to another order",
        "2 passed, 0 failed",
    ]


def test_a_test_that_fails_says_in_what(orders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = orders / "views" / "orders_with_lines.sql"
    view.write_text(view.read_text().replace("'price': l.price}", "'price': l.price + 1}"))
    assert main.run(["test", str(orders)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAILED  orders/tests/orders.yaml:3  an order and its lines become visible together"
    assert (
        lines[1] == "        orders/tests/orders.yaml:11: view orders_with_lines differs after transaction 1:"
    )
    assert lines[3].startswith('            lines: expected [{"id": 11, ')
    assert lines[-1] == "1 passed, 1 failed"


def test_a_test_that_is_impossible_fails_and_the_others_run(
    orders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = orders / "tests" / "orders.yaml"
    path.write_text(path.read_text().replace("customer: ada, status", "custmer: ada, status"))
    assert main.run(["test", str(orders)]) == 1
    out = capsys.readouterr().out
    assert "orders.yaml:6: inventory.orders has no column custmer; did you mean customer?" in out
    assert "1 passed, 1 failed" in out


def test_no_test_at_all_is_an_error(orders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(orders / "tests")
    assert main.run(["test", str(orders)]) == 1
    assert "orders/tests contains no tests (no .yaml, .yml or .json file)" in capsys.readouterr().err
