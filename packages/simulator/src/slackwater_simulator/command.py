"""The command ``python -m slackwater_simulator``."""

import argparse
import random
import sys
from collections.abc import Sequence

from slackwater_protocol import SystemClock
from slackwater_simulator.faults import FAULTS
from slackwater_simulator.runner import Plan, Tally, explain, run
from slackwater_simulator.scenario import Feature, Reduction, feature_names
from slackwater_simulator.simulation import Outcome

_DESCRIPTION = """\
Simulates database, connector, broker, Redis, sidecars and a reader in one process and checks the promises of
docs/guarantees.md at every step. Everything follows from a seed. A seed that fails is made small and shown
with a trace and the command that repeats it; the exit code is then 1.
"""
_EPILOG = """\
examples:
  python -m slackwater_simulator --seeds 100000 --jobs 2
  python -m slackwater_simulator --seeds 1000 --only snapshot,crashes
  python -m slackwater_simulator --seeds 300 --fault ends-not-awaited
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
    try:
        reduction = Reduction.parse(options.without, options.schedule)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    plan = Plan(options.first, options.seeds, tuple(options.only), reduction, options.fault)
    sys.stdout.write(f"seeds: --from {plan.first} --seeds {plan.count}\n")
    sys.stdout.flush()
    clock = SystemClock()
    started = clock.monotonic()
    tally = run(plan, options.jobs, _Progress(plan.count))
    seconds = clock.monotonic() - started
    for failed in tally.failed[:_EXPLAINED]:
        _show(explain(failed, plan))
    _summarise(tally, seconds)
    return 1 if tally.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater_simulator",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = lambda text: [word for word in text.split(",") if word]  # noqa: E731 - for argparse only
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default 1000)")
    first = "the first seed (default 0); random: drawn, and printed"
    parser.add_argument("--from", type=_first_seed, default=0, dest="first", metavar="N", help=first)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    features = "comma separated; without it all may occur: " + ", ".join(Feature)
    parser.add_argument("--only", type=words, default=[], metavar="FEATURES", help=features)
    parser.add_argument("--without", default="", metavar="PARTS", help="what shrinking left out")
    parser.add_argument("--schedule", type=int, default=0, metavar="N", help="another order of steps")
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

    def __call__(self, seeds: int, steps: int) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at < _PROGRESS_SECONDS:
            return
        self._shown_at = now
        rate = seeds / (now - self._started_at)
        left = (self._count - seeds) / rate
        sys.stderr.write(f"{seeds:,} of {self._count:,} seeds, {rate:.0f}/s, {left:.0f} s left {self._end}")
        sys.stderr.flush()


def _show(failed: Outcome) -> None:
    scenario = failed.scenario
    lines = [
        f"seed {scenario.seed} ({feature_names(scenario.features)})",
        *(f"  {line}" for line in failed.trace),
        f"  {failed.promise}: {failed.violation}",
        f"repeat: {scenario.command()}",
        "",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _summarise(tally: Tally, seconds: float) -> None:
    for failed in tally.failed[_EXPLAINED:]:
        sys.stdout.write(f"seed {failed.scenario.seed}: {failed.promise}: {failed.violation}\n")
    sys.stdout.write(
        f"{tally.seeds:,} seeds, {tally.steps:,} steps, {tally.cuts:,} cuts in {seconds:.0f} s: "
        f"{len(tally.failed)} failed\n"
    )
