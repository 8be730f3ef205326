"""``python -m infra.mutants``: plants one fault at a time and looks whether the tests notice."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from infra.mutants import trial
from infra.mutants.catalog import REVIEWED, Mechanism, Mutant, drawn, reviewed

_DESCRIPTION = """\
Plants one fault at a time in a checkout of HEAD and runs the quick tests of the mechanism that call the
changed function; if they pass, the simulator or the differential tests. Reviewed mutants are in
infra/mutants/reviewed, others are drawn from the syntax of the modules. What was judged is in
infra/mutants/results.jsonl and is not repeated as long as the module stays as it is, unless it
survived. The exit code is 1 if a mutant survives or a reviewed one does not fit the code.
"""
_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "infra/mutants/results.jsonl"
_PAGE = _ROOT / "docs/faults.md"
_LOGS = _ROOT / ".slackwater/mutants"
_HEADING = "## Mutants"
_HEAD = f"""\
{_HEADING}

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


_MECHANISMS = sorted(path.stem for path in REVIEWED.glob("*.toml"))


@click.command(help=_DESCRIPTION)
@click.argument("mechanism", nargs=-1, type=click.Choice(_MECHANISMS), metavar="[MECHANISM]...")
@click.option("--drawn", default=0, metavar="N", help="Draw N mutants of each mechanism instead.")
@click.option("--seed", default=0, metavar="N", help="The seed of the draw.")
@click.option("--only", default="", metavar="TEXT", help="Only mutants whose name contains a text.")
@click.option("--here", is_flag=True, help="Use the files as they are, not HEAD; repeat what is known.")
@click.option("--limit", default=trial.NO_LIMIT, metavar="SECONDS", help="Leave out slower tests.")
@click.option("--quick", is_flag=True, help="Run neither the simulator nor the differential tests.")
@click.option("--plain", is_flag=True, help="Leave out property tests, which are slow.")
@click.option("--page", is_flag=True, help="Only write docs/faults.md from the results.")
def main(**given: Any) -> None:
    """Runs the command."""
    sys.exit(_run_all(SimpleNamespace(**given)))


def _run_all(options: SimpleNamespace) -> int:
    """Does what the options say; returns the exit code."""
    names = options.mechanism or _MECHANISMS
    commit = _git("rev-parse", "--short", "HEAD")
    if options.page:
        mechanisms = [reviewed(_ROOT, name) for name in names]
        before = _PAGE.read_text().partition(_HEADING)[0]
        _PAGE.write_text(before + _section(mechanisms, _read()))
        return 0
    trial.load_libraries()
    open_ends = 0
    with _checkout(here=options.here) as root:
        for name in names:
            mechanism = reviewed(root, name)
            for problem in mechanism.drifted:
                sys.stdout.write(f"DRIFTED {name}: {problem}\n")
            open_ends += len(mechanism.drifted)
            mechanism.then = "" if options.quick else mechanism.then
            chosen = mechanism.mutants
            if options.drawn:
                chosen = drawn(root, mechanism, options.drawn, options.seed)
            done = [] if options.here else [r for r in _read() if r["mechanism"] == name and r["caught_by"]]
            known = {r["digest"] for r in done}
            chosen = [m for m in chosen if options.only in m.name and m.digest not in known]
            stamp = {"commit": commit, "kind": "drawn" if options.drawn else "reviewed"}
            is_partial = options.quick or options.plain or options.limit < trial.NO_LIMIT
            stamp["judged_by"] = "some" if is_partial else "all"
            results = Path(os.devnull) if options.here else _RESULTS
            open_ends += _run(root, mechanism, chosen, stamp, results, options)
    return 1 if open_ends else 0


def _run(
    root: Path,
    mechanism: Mechanism,
    chosen: list[Mutant],
    stamp: dict[str, str],
    results: Path,
    options: SimpleNamespace,
) -> int:
    """Judges mutants one after the other; returns how many survive."""
    if not chosen:
        return 0
    logs = _LOGS / ("here" if root == _ROOT else "head") / mechanism.name  # runs do not disturb each other
    logs.mkdir(parents=True, exist_ok=True)
    quick = trial.look(root, mechanism, logs, options.limit, has_properties=not options.plain)
    sys.stdout.write(f"{mechanism.name}: {len(chosen)} mutants, {len(quick.seconds)} tests\n")
    open_ends = 0
    for number, mutant in enumerate(chosen, 1):
        outcome = trial.judge(root, mechanism, quick, mutant, logs)
        result = {
            **stamp,
            "mechanism": mechanism.name,
            "name": mutant.name,
            "digest": mutant.digest,
            "caught_by": outcome.caught_by,
            "how": outcome.how,
            "seconds": round(outcome.seconds, 1),
        }
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        open_ends += not outcome.caught_by
        verdict = f"caught by {outcome.how}" if outcome.caught_by else f"SURVIVES {outcome.how}"
        sys.stdout.write(f"{number}/{len(chosen)} {outcome.seconds:.1f} s {mutant.name}: {verdict}\n")
        sys.stdout.flush()
    return open_ends


@contextmanager
def _checkout(*, here: bool) -> Iterator[Path]:
    """A checkout of HEAD that is thrown away, so that files may be edited meanwhile."""
    if here:
        yield _ROOT
        return
    with tempfile.TemporaryDirectory(prefix="slackwater-mutants-") as folder:
        root = Path(folder).resolve() / "checkout"
        _git("worktree", "add", "--detach", str(root), "HEAD")
        try:
            yield root
        finally:
            _git("worktree", "remove", "--force", str(root))


def _read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _RESULTS.read_text().splitlines()] if _RESULTS.exists() else []


def _git(*arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(_ROOT), *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def _section(mechanisms: Iterable[Mechanism], results: Iterable[Mapping[str, Any]]) -> str:
    """The section, of the newest result of each mutant."""
    all_of_them = {(r["mechanism"], r["digest"]): r for r in results}
    newest = {key: r for key, r in all_of_them.items() if r["caught_by"] or r["judged_by"] == "all"}
    rows = [
        "| mechanism | reviewed | by tests | by simulation | by nothing | not judged at this commit |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    notes = []
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
    return "\n".join([_HEAD, *rows, "", *notes]).rstrip() + "\n"


if __name__ == "__main__":
    main()
