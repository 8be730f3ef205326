"""The section on mutants at the end of docs/faults.md."""

from collections.abc import Iterable, Mapping
from typing import Any

from infra.mutants.catalog import Mechanism

HEADING = "## Mutants"
_HEAD = f"""\
{HEADING}

Faults that were planted in the code one at a time, and what noticed them (`make mutants`).

- A *reviewed* mutant breaks a promise; `infra/mutants/reviewed` has a file of them per mechanism. Each names
  a function and a small piece of syntax in it, and a test keeps all of them applicable.
- *Drawn* mutants are made from the syntax of the same modules: comparisons, conditions, boundaries, dropped
  statements, returned values.

Each is judged by the quick tests of its mechanism that call the changed function, SQL by the tests over real
servers that its file names, and what passes the quick tests by the simulator or the differential tests. A
result holds for a mutant as long as the module that it changes stays as it is
(`infra/mutants/results.jsonl`). The others are *not judged at this commit*; a run takes hours.
"""


def section(mechanisms: Iterable[Mechanism], results: Iterable[Mapping[str, Any]]) -> str:
    """The section, of the newest result of each mutant."""
    all_of_them = {(r["mechanism"], r["digest"]): r for r in results}
    newest = {key: r for key, r in all_of_them.items() if r["caught_by"] or r["judged_by"] == "all"}
    rows, notes = [], []
    for mechanism in mechanisms:
        outcomes = [(m, newest.get((mechanism.name, m.digest))) for m in mechanism.mutants]
        known = [(m, r) for m, r in outcomes if r is not None]
        tests = sum(r["caught_by"] == "tests" for _, r in known)
        later = sum(bool(r["caught_by"]) for _, r in known) - tests
        left = [m for m, r in known if not r["caught_by"]]
        reviewed = len(mechanism.mutants)
        rows.append(
            f"| {mechanism.title} | {reviewed} | {tests} | {later} | {len(left)} | {reviewed - len(known)} |"
        )
        notes += [f"- {mechanism.title}: does not fit the code: {text}" for text in mechanism.drifted]
        notes += [f"- {mechanism.title}: nothing noticed: {m.name}" for m in left]
    table = [
        "| mechanism | reviewed | by tests | by simulation | by nothing | not judged at this commit |",
        "|---|---:|---:|---:|---:|---:|",
        *rows,
    ]
    return "\n".join([_HEAD, *table, "", *notes]).rstrip() + "\n"
