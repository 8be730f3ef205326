"""The table in docs/mutants.md."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.mutants.catalog import Mechanism, drawn

_HEAD = """\
# Mutants

Faults that were planted one at a time, and what noticed them (`make mutants`).

- A *reviewed* mutant breaks a rule by hand; `infra/mutants/reviewed` has a file of them per mechanism.
- *Drawn* ones are made from the syntax of the same modules: comparisons, conditions, boundaries, dropped
  statements, returned values.

Each is judged by the quick tests of its mechanism that call the changed function; what passes those, by the
simulator or the differential tests. Whoever changes a rule changes its mutants: a text that is not found
exactly once is an error. A run takes hours and goes on where it was: `infra/mutants/results.jsonl` says what
was judged, and holds for a mutant as long as the module it changes stays as it is; what survives without an
explanation is judged again by every run. The rest is not counted.
"""


def page(root: Path, mechanisms: Iterable[Mechanism], results: Iterable[Mapping[str, Any]]) -> str:
    """The page, of the newest result of each mutant."""
    all_of_them = {(r["mechanism"], r["digest"]): r for r in results}
    newest = {key: r for key, r in all_of_them.items() if r["caught_by"] or r["judged_by"] == "all"}
    passed = all_of_them.keys() - newest.keys()
    rows, notes = [], []
    for mechanism in mechanisms:
        outcomes = [(m, newest.get((mechanism.name, m.digest))) for m in mechanism.mutants]
        known = [(m, r) for m, r in outcomes if r is not None]
        commits = dict.fromkeys(r["commit"] for _, r in known)
        real = [(m, r) for m, r in known if not m.equivalent]
        tests = sum(r["caught_by"] == "tests" for _, r in real)
        later = sum(bool(r["caught_by"]) for _, r in real) - tests
        left = [m for m, r in real if not r["caught_by"]]
        equal = [m for m in mechanism.mutants if m.equivalent]
        others = [
            newest[key]
            for m in drawn(root, mechanism, sys.maxsize, 0)
            if (key := (mechanism.name, m.digest)) in newest and newest[key]["kind"] == "drawn"
        ]
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
            if (mechanism.name, m.digest) in passed and not m.equivalent
        ]
        notes += [f"- {mechanism.title}: {m.name}: equivalent, {m.equivalent}" for m in equal]
    table = [
        "| mechanism | reviewed | judged | by tests | by simulation | left | equivalent | drawn | commit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *rows,
    ]
    return "\n".join([_HEAD, *table, "", "## What is left, and why", "", *notes, ""])
