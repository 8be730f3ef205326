"""The table in docs/mutants.md."""

from collections.abc import Iterable, Mapping
from typing import Any

from infra.mutants.catalog import Mechanism

_HEAD = """\
# Mutants

Faults that were planted one at a time, and what noticed them (`make mutants`).

- A *reviewed* mutant breaks a rule by hand; `infra/mutants/reviewed` has a file of them per mechanism.
- *Drawn* ones are made from the syntax of the same modules: comparisons, conditions, boundaries, dropped
  statements, returned values.

Each is judged by the quick tests of its mechanism that call the changed function; what passes those, by the
simulator or the differential tests. Whoever changes a rule changes its mutants: a text that is not found
exactly once is an error. A run takes hours and goes on where it was; what was not judged yet is not counted.
"""


def page(mechanisms: Iterable[Mechanism], results: Iterable[Mapping[str, Any]]) -> str:
    """The page, of the newest result of each mutant."""
    of_commits = [r for r in results if not r["commit"].endswith("+")]
    final = (r for r in of_commits if r["caught_by"] or r["judged_by"] == "all")
    newest = {(r["mechanism"], r["name"]): r for r in final}
    passed = {(r["mechanism"], r["name"]) for r in of_commits} - newest.keys()
    rows, notes = [], []
    for mechanism in mechanisms:
        outcomes = [(m, newest.get((mechanism.name, m.name))) for m in mechanism.mutants]
        known = [(m, r) for m, r in outcomes if r is not None]
        commits = dict.fromkeys(r["commit"] for _, r in known)
        real = [(m, r) for m, r in known if not m.equivalent]
        tests = sum(r["caught_by"] == "tests" for _, r in real)
        later = sum(bool(r["caught_by"]) for _, r in real) - tests
        left = [m for m, r in real if not r["caught_by"]]
        equal = [m for m in mechanism.mutants if m.equivalent]
        others = [r for (name, _), r in newest.items() if name == mechanism.name and r["kind"] == "drawn"]
        caught = sum(bool(r["caught_by"]) for r in others)
        rows.append(
            f"| {mechanism.title} | {len(mechanism.mutants)} | {len(known)} | {tests} | {later} "
            f"| {len(left)} | {len(equal)} | {caught} of {len(others)} | {next(reversed(commits), '')} |"
        )
        notes += [
            f"- {mechanism.title}: does not fit the code any more: {text}" for text in mechanism.drifted
        ]
        notes += [f"- {mechanism.title}: {m.name}: {m.survives or 'not explained'}" for m in left]
        notes += [
            f"- {mechanism.title}: {m.name}: passed the quickest tests, not judged by the others yet"
            for m in mechanism.mutants
            if (mechanism.name, m.name) in passed and not m.equivalent
        ]
        notes += [f"- {mechanism.title}: {m.name}: equivalent, {m.equivalent}" for m in equal]
    table = [
        "| mechanism | reviewed | judged | by tests | by simulation | left | equivalent | drawn | commit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *rows,
    ]
    return "\n".join([_HEAD, *table, "", "## What is left, and why", "", *notes, ""])
