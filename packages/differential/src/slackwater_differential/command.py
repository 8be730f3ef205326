"""The command ``python -m slackwater_differential``."""

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence

from slackwater_differential.case import Feature
from slackwater_differential.engines import ENGINES
from slackwater_differential.faults import FAULTS
from slackwater_differential.report import report
from slackwater_differential.runner import Plan, Tally, explain, run
from slackwater_protocol import SystemClock

_DESCRIPTION = """\
Makes random schemas, views and histories of transactions, runs them through the engine (planner, stages,
state; no Spark, no servers), and compares its output with DuckDB: at every commit, or at the end of every
batch, the documents must be exactly the rows that the same SELECT gives on the tables as they are then.
Everything follows from a seed. A seed that fails is made small and shown with its schema, view,
transactions, both results and the command that repeats it; the exit code is then 1.
"""
_EPILOG = """\
examples:
  python -m slackwater_differential --seeds 10000 --jobs 2 --keep-going
  python -m slackwater_differential --seeds 500 --only group,left-join,every-commit
  python -m slackwater_differential --seeds 1 --from 4711
  python -m slackwater_differential --seeds 300 --fault moved-rows-stay

reading a failure:
  "missing" are rows that the reference has and the engine has not; "too many" is the opposite.
  crashed: the engine raised; needless: it published something that says nothing new.
  What the planner refuses is no failure; --verbose lists the reasons.
"""
_PROGRESS_SECONDS = 2.0
_LARGEST_DRAWN = 10**9
_EXPLAINED = 3
"""So many failures are made small; the others are listed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    unknown = [word for word in options.only if word not in set(Feature)]
    if unknown:
        sys.stderr.write(f"--only: no feature {', '.join(unknown)}; there are {', '.join(Feature)}\n")
        return 2
    plan = Plan(
        options.first, options.seeds, tuple(options.only), options.engine, options.fault, options.keep_going
    )
    sys.stdout.write(f"seeds: --from {plan.first} --seeds {plan.count}\n")
    sys.stdout.flush()
    clock = SystemClock()
    started = clock.monotonic()
    tally = run(plan, options.jobs, _Progress(plan.count))
    seconds = clock.monotonic() - started
    _show_failures(tally, plan)
    if options.verbose:
        _show_details(tally)
    _summarise(tally, seconds)
    return 1 if tally.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater_differential",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = lambda text: [word for word in text.split(",") if word]  # noqa: E731 - for argparse only
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="how many (default 300)")
    first = "the first seed (default 0); random: drawn, and printed"
    parser.add_argument("--from", type=_first_seed, default=0, dest="first", metavar="N", help=first)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    features = "comma separated; without it all may occur: " + ", ".join(Feature)
    parser.add_argument("--only", type=words, default=[], metavar="FEATURES", help=features)
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, whatever fails")
    parser.add_argument("--verbose", action="store_true", help="features, refusals and their reasons")
    engines = "what is judged (default local): " + ", ".join(ENGINES)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="local", metavar="NAME", help=engines)
    faults = "plants a fault, to see it found: " + ", ".join(FAULTS)
    parser.add_argument("--fault", choices=sorted(FAULTS), metavar="NAME", help=faults)
    return parser


def _first_seed(text: str) -> int:
    return random.SystemRandom().randrange(_LARGEST_DRAWN) if text == "random" else int(text)


class _Progress:
    """A line on standard error every other second: rewritten in a terminal, else one below the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._clock = SystemClock()
        self._shown_at = self._started_at = self._clock.monotonic()
        self._end = "\r" if sys.stderr.isatty() else "\n"

    def __call__(self, seeds: int, failed: int) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at < _PROGRESS_SECONDS:
            return
        self._shown_at = now
        rate = seeds / (now - self._started_at)
        left = (self._count - seeds) / rate
        line = f"{seeds:,} of {self._count:,} seeds, {rate:.1f}/s, {failed} failed, {left:.0f} s left "
        sys.stderr.write(line + self._end)
        sys.stderr.flush()


def _show_failures(tally: Tally, plan: Plan) -> None:
    failed = sorted(tally.failed, key=lambda outcome: outcome.case.seed)
    for outcome in failed[:_EXPLAINED]:
        sys.stdout.write(report(explain(outcome, plan)) + "\n")
        sys.stdout.flush()
    for outcome in failed[_EXPLAINED:]:
        sys.stdout.write(f"seed {outcome.case.seed}: {outcome.verdict}: {outcome.problem[:200]}\n")


def _show_details(tally: Tally) -> None:
    for feature in Feature:
        share = tally.features[feature] / max(1, tally.checked)
        sys.stdout.write(f"{share:6.1%} {feature}\n")
    for reason, count in refusal_reasons(tally).most_common():
        example = next(seed for seed, text in tally.refusals if _reason(text) == reason)
        sys.stdout.write(f"refused {count} times, such as seed {example}: {reason}\n")
    for outcome in tally.impossible:
        sys.stdout.write(f"seed {outcome.case.seed} is impossible: {outcome.problem}\n")


def refusal_reasons(tally: Tally) -> Counter[str]:
    """How often the planner refused for which reason, places and names left out."""
    return Counter(_reason(text) for _, text in tally.refusals)


def _reason(text: str) -> str:
    """What is said behind the place in the SQL."""
    behind = re.sub(r"\A[^:]*:\d+:\d+( at `.*?`)?: ", "", text, flags=re.DOTALL)
    return re.sub(r"\b[ac]\d+\b|\bt\d\b|\bview\d\b|\bq\d+\b", "…", behind)


def _summarise(tally: Tally, seconds: float) -> None:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.verdicts.items()))
    sys.stdout.write(
        f"{tally.seeds:,} seeds ({verdicts}), {tally.states:,} states, {tally.rows:,} rows "
        f"({tally.repeats:,} documents repeated) in {seconds:.0f} s: {len(tally.failed)} failed\n"
    )
