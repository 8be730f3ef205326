"""Runs the queries of a suite, each as a view over random histories, and writes what came of them."""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from slackwater.protocol import SystemClock
from slackwater_lab.differential.case import Batch, Case, Choices
from slackwater_lab.differential.check import Checked, Reference, Verdict, check
from slackwater_lab.differential.engines import ChangedDocument, Event, JudgedEngine
from slackwater_lab.differential.history import play
from slackwater_lab.differential.history_generator import make_transactions
from slackwater_lab.differential.subject import Differential
from slackwater_lab.results import RESULTS, new_result
from slackwater_lab.suites.suite import FOLDER, SUITES, Query, queries

SUMMARY = "TPC-H, TPC-DS and Nexmark as views"
DESCRIPTION = """\
Runs each query of the suites as a view, through the engine (planner, stages, state; no Spark, no servers),
over a small random history whose values are those that the query asks for, and compares the documents at
every commit with what DuckDB answers then. The exit code is 1 if a view is planned and not right.
"""
EXAMPLES = """\
examples:
  python -m slackwater_lab suites
  python -m slackwater_lab suites tpcds --only q05,q77
"""
_COMMITS = 14
_TRIALS = 8
"""This many histories at most are drawn; the one in which the result has rows most often is run."""
_ENOUGH = 0.6
_LOOKED_AT = 4
"""The share of filled results is that after every one of this many commits."""
_NULL_SHARES = (0.0, 0.0, 0.0, 0.08)
_SOMETHING = re.compile(r":(?!null[,}]|0[,}])")
"""In the document of a row that has a value which is neither NULL nor zero."""
_SHOWN = 200
"""Characters of a problem that are kept."""
_RESULTS = RESULTS / "suites.jsonl"
_PAGE = FOLDER / "README.md"
_TABLE = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a query.

    Attributes:
        query: Its name.
        verdict: As of `Checked`.
        problem: Why it is not right; for a refusal what the planner says.
        filled: Share of the commits after which the result had rows.
        stages: Of its plan.
        cpu_ms: CPU time of the engine per changed row, in milliseconds.
    """

    query: str
    verdict: Verdict
    problem: str = ""
    filled: float = 0
    stages: int = 0
    cpu_ms: float = 0


class _MeasuredEngine(JudgedEngine):
    """Counts changed rows and CPU seconds."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.rows = 0
        self.seconds = 0.0

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        begun = time.process_time()
        documents = super().run(events, batch, first_lsn)
        self.seconds += time.process_time() - begun
        self.rows += len(events)
        return documents


def judge(query: Query, commits: int = _COMMITS, trials: int = _TRIALS) -> tuple[Judged, Checked]:
    """Runs a query as a view and compares every state."""
    engines: list[_MeasuredEngine] = []

    def measured(case: Case) -> _MeasuredEngine:
        engines.append(_MeasuredEngine(case))
        return engines[-1]

    filled, case = _best(_case(query, seed, commits) for seed in range(trials))
    checked = check(case, measured)
    judged = Judged(query.name, checked.verdict, checked.problem, round(filled, 2))
    for engine in engines:
        judged = replace(judged, stages=engine.stages, cpu_ms=round(1000 * engine.seconds / engine.rows, 2))
    return judged, checked


def _best(cases: Iterable[Case]) -> tuple[float, Case]:
    """The first case whose result is filled often enough, or the one that is filled most often."""
    found = []
    for case in cases:
        found.append((_filled(case), case))
        if found[-1][0] > _ENOUGH:
            break
    return max(found, key=lambda each: each[0])


def _case(query: Query, seed: int, commits: int) -> Case:
    transactions = make_transactions(Choices(seed), query.tables, commits, _NULL_SHARES)
    batches = (Batch(2), *(Batch(3, tasks=2) for _ in range(commits // 3)))
    return Case(
        seed=seed,
        tables=query.tables,
        views=(query.view,),
        transactions=transactions,
        batches=batches,
        buckets=2,
        every_commit=True,
    )


def _filled(case: Case) -> float:
    """The share of some of the commits after which the reference has rows that say something."""
    try:
        with Reference(case.tables, case.views) as reference:
            found = []
            for number, commit in enumerate(play(case.tables, case.transactions)):
                reference.apply(commit)
                if number % _LOOKED_AT == 1:
                    found.append(any(_SOMETHING.search(row) for rows in reference.rows() for row in rows))
            return sum(found) / len(found)
    except duckdb.Error:
        return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("suite", nargs="?", choices=SUITES, help="this one (default: all)")
    parser.add_argument("--only", default="", metavar="QUERIES", help="such as q05,q77; nothing is written")
    parser.add_argument("--verbose", action="store_true", help="show the first wrong state")


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    only = [word for word in options.only.split(",") if word]
    failed = 0
    for suite in [options.suite] if options.suite else SUITES:
        found = []
        for query in queries(suite, only):
            judged, checked = judge(query)
            found.append(judged)
            sys.stdout.write(f"{suite} {_line(judged)}\n")
            sys.stdout.flush()
            if options.verbose and checked.verdict is not Verdict.RIGHT:
                sys.stdout.write(Differential().report(checked))
        failed += sum(each.verdict not in {Verdict.RIGHT, Verdict.REFUSED} for each in found)
        if not only:
            _keep(suite, found)
    if not only:
        _PAGE.write_text(_TABLE.sub(lambda _: _table(), _PAGE.read_text()))
    return 1 if failed else 0


def _line(judged: Judged) -> str:
    words = f"{judged.query} {judged.verdict}"
    if judged.verdict is Verdict.RIGHT:
        return f"{words}: {judged.stages} stages, {judged.cpu_ms} ms a row, filled {judged.filled:.0%}"
    return f"{words}: {judged.problem}"


def _table() -> str:
    """The newest runs of the suites, as a table."""
    lines = map(json.loads, _RESULTS.read_text().splitlines())
    newest = {line["parameters"]["suite"]: line for line in lines}
    head = "| suite | queries | planned | right | CPU ms per changed row (median) | commit | refused |\n"
    rows = (
        _row(suite, newest[suite]["commit"], newest[suite]["details"]) for suite in SUITES if suite in newest
    )
    return head + "|---|---|---|---|---|---|---|\n" + "".join(rows)


def _row(suite: str, commit: str, found: Mapping[str, Sequence[Any]]) -> str:
    refused = [name for name, (verdict, *_) in found.items() if verdict == Verdict.REFUSED]
    costs = sorted(cpu_ms for verdict, cpu_ms, *_ in found.values() if verdict == Verdict.RIGHT)
    planned, middle = len(found) - len(refused), costs[len(costs) // 2] if costs else 0
    cells = suite, len(found), planned, len(costs), middle, commit, ", ".join(refused)
    return f"| {' | '.join(map(str, cells))} |\n"


def _keep(suite: str, found: Sequence[Judged]) -> None:
    result = new_result(
        "suites",
        1,
        clock=SystemClock(),
        versions={"duckdb": duckdb.__version__},
        parameters={"suite": suite, "commits": _COMMITS},
        value=sum(each.verdict is Verdict.RIGHT for each in found),
        unit="right queries",
        details={
            each.query: (each.verdict, each.cpu_ms, each.stages, each.filled, each.problem[:_SHOWN])
            for each in found
        },
    )
    with _RESULTS.open("a") as file:
        file.write(result.line() + "\n")
