"""The part of the command that is the same for every subject: seeds, processes, progress, failures, sums."""

import argparse
import random
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slackwater_protocol import SystemClock
from slackwater_testing.seeds.faults import PlantedFault
from slackwater_testing.seeds.run import Plan, Tally, explain, run
from slackwater_testing.seeds.subject import CaseT, CheckResult, ResultT, Subject

_PROGRESS_SECONDS = 2.0
_LARGEST_DRAWN = 10**9
_EXPLAINED = 3
"""So many failures are made small; the others are listed."""
_MOST_CHARACTERS = 200
"""Of the problem of a listed failure."""


def add_arguments(
    parser: argparse.ArgumentParser, features: Collection[str], faults: Mapping[str, PlantedFault], seeds: int
) -> None:
    """Adds the arguments that every subject has.

    Args:
        parser: The parser of the subject's subcommand.
        features: The names that ``--only`` takes.
        faults: The names that ``--fault`` takes.
        seeds: How many seeds are run without ``--seeds``.
    """
    add = parser.add_argument
    add("--seeds", type=int, default=seeds, metavar="N", help=f"how many (default {seeds})")
    first = "the first seed (default 0); random: drawn, and printed"
    add("--from", type=_first_seed, default=0, dest="first", metavar="N", help=first)
    add("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    only = "comma separated; without it all may occur: " + ", ".join(features)
    add("--only", type=_words, default=(), metavar="FEATURES", help=only)
    planted = "plants a fault, to see it found: " + ", ".join(faults)
    add("--fault", choices=sorted(faults), metavar="NAME", help=planted)
    add("--stop", action="store_true", help="end soon after the first failure")
    add("--verbose", action="store_true", help="how often features occurred; what was set aside, and why")


def run_command(subject: Subject[CaseT, ResultT], options: argparse.Namespace) -> int:
    """Runs the seeds that were asked for and shows what came of them; returns the exit code."""
    unknown = [word for word in options.only if word not in subject.features]
    if unknown:
        known = ", ".join(subject.features)
        sys.stderr.write(f"--only: no feature {', '.join(unknown)}; there are {known}\n")
        return 2
    plan = Plan(subject, options.first, options.seeds, options.only, options.fault, options.stop)
    sys.stdout.write(f"seeds: --from {plan.first} --seeds {plan.count}\n")
    sys.stdout.flush()
    clock = SystemClock()
    started = clock.monotonic()
    tally = run(plan, options.jobs, _Progress(plan.count))
    seconds = clock.monotonic() - started
    _show_failures(tally, plan)
    if options.verbose:
        _show_details(tally, subject.features)
    _show_sums(tally, seconds)
    return 1 if tally.failed else 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _first_seed(text: str) -> int:
    return random.SystemRandom().randrange(_LARGEST_DRAWN) if text == "random" else int(text)


class _Progress:
    """A line on standard error every other second: rewritten in a terminal, else one below the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._clock = SystemClock()
        self._shown_at = self._started_at = self._clock.monotonic()
        self._end = "\r" if sys.stderr.isatty() else "\n"

    def __call__(self, tally: Tally[Any]) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at < _PROGRESS_SECONDS:
            return
        self._shown_at = now
        rate = tally.seeds / (now - self._started_at)
        left = (self._count - tally.seeds) / rate
        line = f"{tally.seeds:,} of {self._count:,} seeds, {rate:.1f}/s, {len(tally.failed)} failed, "
        sys.stderr.write(f"{line}{left:.0f} s left {self._end}")
        sys.stderr.flush()


def _show_failures(tally: Tally[ResultT], plan: Plan[CaseT, ResultT]) -> None:
    for failed in tally.failed[:_EXPLAINED]:
        sys.stdout.write(explain(failed, plan) + "\n")
        sys.stdout.flush()
    _list(tally.failed[_EXPLAINED:])


def _show_details(tally: Tally[Any], features: Iterable[str]) -> None:
    for feature in features:
        sys.stdout.write(f"{tally.features[feature] / max(1, tally.checked):6.1%} {feature}\n")
    _list(tally.set_aside)


def _list(results: Iterable[CheckResult[Any]]) -> None:
    for result in results:
        line = f"seed {result.case.seed}: {result.verdict}: {result.problem[:_MOST_CHARACTERS]}"
        sys.stdout.write(line + "\n")


def _show_sums(tally: Tally[Any], seconds: float) -> None:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.verdicts.items()))
    counts = "".join(f", {count:,} {noun}" for noun, count in sorted(tally.counts.items()))
    line = f"{tally.seeds:,} seeds ({verdicts}){counts} in {seconds:.0f} s: {len(tally.failed)} failed\n"
    sys.stdout.write(line)
