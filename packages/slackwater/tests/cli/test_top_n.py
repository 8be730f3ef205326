"""First rows from a folder: `slackwater explain` says what is kept, and `slackwater test` runs its tests."""

from pathlib import Path

import pytest

from slackwater.cli import main

FILES = {
    "pipeline.toml": 'name = "top"\nsource = "inv"\n[output]\ntopic = "top"\n',
    "schema.sql": "CREATE TABLE s.orders (id bigint PRIMARY KEY, customer text, total numeric(10,2));\n",
    "tests/top.yaml": """
the next row enters when one leaves:
  - insert: {s.orders: [{id: 1, total: 5}, {id: 2, total: 7}, {id: 3, total: 7}]}
    expect: {dearest: [{id: 2, total: "7.00"}, {id: 3, total: "7.00"}]}
  - delete: {s.orders: [{id: 3}]}
    expect: {dearest: [{id: 2, total: "7.00"}, {id: 1, total: "5.00"}]}
""",
}
NOTE = "view dearest: ORDER BY has no effect without LIMIT: the rows of a view have no order"


def folder(path: Path, limit: str) -> str:
    view = f"SELECT TRANSACTIONALLY id, total FROM orders ORDER BY total DESC {limit}\n"  # noqa: S608 - our own
    for name, text in {**FILES, "views/dearest.sql": view}.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return str(path)


def test_what_is_kept_of_the_first_rows_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["explain", folder(tmp_path, "LIMIT 2")]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert "keeps for the one group: all rows in order, and shows row_number() from 1 to 2" in shown
    assert NOTE not in shown


def test_order_by_without_limit_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", folder(tmp_path, "")]) == 0

    assert NOTE in " ".join(capsys.readouterr().out.split())


def test_views_of_first_rows_are_tested_without_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["test", folder(tmp_path, "LIMIT 2")]) == 0

    assert "1 passed, 0 failed" in capsys.readouterr().out
