"""Tests as files: what they may say, and where a mistake in them is."""

import json
import re
import shutil
from pathlib import Path

import pytest

from slackwater.api import ViewTest
from slackwater.pipeline.testing.cases import read_cases, read_placed
from slackwater.pipeline.testing.locations import case_files, pipeline_of
from slackwater.protocol import InputError

pytest_plugins = ["pytester"]

GOOD = """\
one invoice:
  - insert:
      public.invoice:
        - {id: 1, customer: ada, amount: 10.50, due: 2026-01-02}
    expect:
      revenue:
        - {customer: ada, amount: 10.5, due: 2026-01-02}
  - update: {invoice: [{id: 1, amount: 11}]}
    expect:
      revenue: [{customer: ada, amount: 11, due: 2026-01-02}]
  - delete: {invoice: [{id: 1}]}
    expect: {revenue: []}
  - sql: rows.sql
    truncate: [public.line]
    expect:
      revenue: [{customer: no, amount: 1, due: null}]
      invoices: []
"""
ROWS = """
INSERT INTO invoice (id, customer, amount) VALUES (1, 'no', 1);
INSERT INTO line VALUES (1, 1, 1);
COMMIT;
"""


def run(test: ViewTest, path: Path) -> None:
    for case in read_cases(path):
        case.run(test)


def written(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    (folder / "rows.sql").write_text(ROWS)
    return path


def test_transactions_are_run_in_order(test: ViewTest, tmp_path: Path) -> None:
    run(test, written(tmp_path, GOOD))
    assert test.commits == 5


def test_a_file_may_be_json(test: ViewTest, tmp_path: Path) -> None:
    row = {"id": 1, "customer": 'a\t"b" \U0001f600', "amount": 0.1}
    document = {"customer": row["customer"], "amount": "0.10", "due": None}
    case = {"an invoice": [{"insert": {"invoice": [row]}, "expect": {"revenue": [document]}}]}
    run(test, written(tmp_path, json.dumps(case, indent=1), "a.json"))
    assert test.documents("revenue") == [document]


def test_each_test_begins_without_rows(test: ViewTest, tmp_path: Path) -> None:
    one = "  - insert: {invoice: [{id: 1, customer: a, amount: 1}]}\n"
    run(test, written(tmp_path, f"first:\n{one}second:\n{one}"))


WRONG = [
    ("a:\n  - insert:\n      invoice:\n        - {id: 1}\n        - {ids: 2}\n", ":4: column customer of"),
    ("a:\n  - insert:\n      invoces: [{id: 1}]\n", ":3: no table invoces is declared; did you mean"),
    ("a:\n\n  - inser: {}\n", ":3: a transaction has no part inser; did you mean insert?"),
    ("a:\n  - expect:\n      revenu: []\n", ":3: there is no view revenu; did you mean revenue?"),
    (
        "a:\n  - expect: {revenue: [{amunt: 1}]}\n",
        ":2: view revenue has no column amunt; did you mean amount?",
    ),
    ("a:\n  - truncate: [lines]\n", ":2: no table lines is declared"),
    ("a:\n  - sql: SELECT 1\n", ":2: `SELECT 1` does not change rows"),
    ("a:\n  - sql: gone.sql\n", "gone.sql cannot be read"),
    ("a:\n  - sql: 7\n", ":2: expected SQL as text"),
    ("a:\n  - insert: [1]\n", ":2: expected rows by table, as a mapping"),
    ("a:\n  - insert: {invoice: {id: 1}}\n", ":2: expected rows, as a list"),
    ("a: 7\n", ":1: expected transactions, as a list"),
    ("- 7\n", ":1: expected a test with its name"),
    ("", ":1: expected a test with its name"),
    ("a: []\na: []\n", ":2: a occurs twice"),
    ("a: [\n", ":2: while parsing a flow"),
    ("a:\n  - insert: {invoice: [{[1]: 2}]}\n", ":2: expected a name before the colon"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_a_mistake_is_named_with_its_line(test: ViewTest, tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as failed:
        run(test, written(tmp_path, text))
    assert str(tmp_path / "a.yaml") in str(failed.value)


def test_a_difference_is_named_with_the_line_of_the_view(test: ViewTest, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("amount: 11,", "amount: 12,"))
    with pytest.raises(AssertionError) as failed:
        run(test, path)
    assert str(failed.value).splitlines() == [
        f"{path}:10: view revenue differs after 2 transactions:",
        '  customer = "ada":',
        '    amount: expected 12, got "11.00"',
    ]


def test_numbers_keep_their_digits_and_words_stay_words(tmp_path: Path) -> None:
    text = "[1, -0.10, 1e3, yes, no, 0x1F, 1_000, 12:30, 2026-01-02, true, null, ~, '7', .5]"
    plain = read_placed(written(tmp_path, text)).plain()
    assert [str(each) for each in plain] == [
        "1", "-0.10", "1E+3", "yes", "no", "0x1F", "1_000", "12:30", "2026-01-02",
        "True", "None", "None", "7", "0.5",
    ]  # fmt: skip
    assert [type(each).__name__ for each in plain[:4]] == ["int", "Decimal", "Decimal", "str"]
    assert isinstance(plain[12], str)


def test_pytest_runs_the_files_of_a_pipeline_and_no_others(folder: Path, pytester: pytest.Pytester) -> None:
    pipeline = pytester.path / "billing"
    shutil.copytree(folder, pipeline)
    (pipeline / "tests" / "deep").mkdir(parents=True)
    written(pipeline / "tests", GOOD)
    bad = written(pipeline / "tests" / "deep", GOOD.replace("amount: 11,", "amount: 12,"), "b.json")
    worse = written(pipeline / "tests", "a: [\n", "c.yml")
    other = written(pipeline, "certainly: no: test")
    assert [pipeline_of(path) for path in (bad, worse, other)] == [pipeline, pipeline, None]
    assert [path.name for path in case_files(pipeline)] == ["a.yaml", "c.yml", "b.json"]

    result = pytester.runpytest_inprocess(
        "-q", str(pipeline), "--deselect", str(worse), "-p", "no:cacheprovider"
    )
    result.stdout.fnmatch_lines([f"*{worse.name}:2: while parsing a flow node*"])
    worse.unlink()
    result = pytester.runpytest_inprocess("-q", str(pipeline), "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*b.json:10: view revenue differs after 2 transactions:", "*amount: expected 12*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
