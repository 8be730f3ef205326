"""The command ``python -m slackwater_lab``: its arguments, its progress and what it prints at the end."""

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from slackwater.outputs.contract import SinkKind
from slackwater.protocol import SlackwaterError, SystemClock
from slackwater_certify import CertifyError
from slackwater_lab.chaos.output import JUDGED_OUTPUTS
from slackwater_lab.chaos.result import keep, newest_tables
from slackwater_lab.chaos.run import run_session
from slackwater_lab.chaos.schedule import (
    Round,
    consumer_schedule,
    output_schedule,
    random_schedule,
    short_schedule,
    text,
)
from slackwater_lab.chaos.system import EXECUTORS, LOCAL, System, SystemSettings
from slackwater_lab.conformance import command as conformance
from slackwater_lab.demo.command import terminate_as_interrupt
from slackwater_lab.differential.subject import Differential
from slackwater_lab.errors import RunFailedError, TestingError
from slackwater_lab.seeds import CaseT, CheckResult, Plan, ResultT, Subject, Tally, explain, run
from slackwater_lab.simulator.scenario import Reduction
from slackwater_lab.simulator.simulation import Simulator
from slackwater_lab.strange.run import StrangeRun, Verdict
from slackwater_lab.suites import run as suites
from slackwater_lab.workloads import WORKLOADS

_SIMULATE = """\
Simulates database, connector, broker, Redis, sidecars and a reader in one process and checks the promises of
docs/guarantees.md at every step. Everything follows from a seed. A seed that fails is made small and shown
with a trace and the command that repeats it; the exit code is then 1.
"""
_SIMULATE_EXAMPLES = """\
examples:
  python -m slackwater_lab simulate --seeds 100000 --jobs 2
  python -m slackwater_lab simulate --seeds 1000 --only snapshot,crashes
  python -m slackwater_lab simulate --seeds 300 --fault ends-not-awaited
"""
_DIFFERENTIAL = """\
Makes random schemas, views and histories of transactions, runs them through the engine (planner, stages,
state; no Spark, no servers), and compares its output with DuckDB: at every commit, or at the end of every
batch, the documents must be exactly the rows that the same SELECT gives on the tables as they are then.
Everything follows from a seed. A seed that fails is made small and shown with its schema, view,
transactions, both results and the command that repeats it; the exit code is then 1.
"""
_DIFFERENTIAL_EXAMPLES = """\
examples:
  python -m slackwater_lab differential --seeds 10000 --jobs 2
  python -m slackwater_lab differential --seeds 500 --only group,left-join,every-commit
  python -m slackwater_lab differential --seeds 1 --from 4711
  python -m slackwater_lab differential --seeds 300 --fault moved-rows-stay

reading a failure:
  "missing" are rows that the reference has and the engine has not; "too many" is the opposite.
  crashed: the engine raised; needless: it published something that says nothing new.
  What the planner refuses is no failure; --verbose lists the reasons.
"""
_CHAOS = """\
Kills, pauses, fills, cuts and delays the running product, then judges every record it published.

Starts PostgreSQL, two brokers, Connect with Debezium, Redis, two sidecars and a pipeline; writers commit
business transactions all the time. Whatever dies is started again after a second. At the end everything is
healed, the last commit becomes visible, and the certifier compares each document with the committed states
of the database.

Faults, their times and the workload follow from the seed: the same seed gives the same schedule. The exit
code is 0 only if nothing was torn, lost, repeated or late by minutes. Logs are kept when it is not.
"""
_CHAOS_EXAMPLES = """\
examples:
  python -m slackwater_lab chaos --minutes 30 --seed 7
  python -m slackwater_lab chaos --short
  python -m slackwater_lab chaos --short --output delta
  python -m slackwater_lab chaos --short --consumers
  python -m slackwater_lab chaos --seed 7 --show schedule
"""
_STRANGE = """\
Makes random tables of all types, partitions, publications, connector settings, changes and DDL, each against
a real PostgreSQL, connector, broker and sidecar, and computes views of the tables with the pipeline's own
planner, decoding, engine and state, without Spark. Each seed ends in one of two ways: the views equal
PostgreSQL, or something is refused by name. Anything else is shown with its statements, and the exit code
is then 1.
"""
_STRANGE_EXAMPLES = """\
examples:
  python -m slackwater_lab strange --seeds 200 --from 0
  python -m slackwater_lab strange --seeds 1 --from 4711 --verbose
"""
_SHOWN = 100
"""Rounds of an endless schedule that are printed."""
_SIZE = 500
"""Main rows of the workload."""
_PROGRESS_SECONDS = 2.0
_OUTPUT_HELP = "where the pipeline publishes (default kafka)"
_LARGEST_DRAWN = 10**9
_EXPLAINED = 3
"""This many failures are made small; the others are listed."""
_MOST_CHARACTERS = 200
"""Of the problem of a listed failure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater_lab", description="Tests that find what nobody thought of."
    )
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    simulate = _add(subcommands, "simulate", "random histories of the sidecar", _SIMULATE, _SIMULATE_EXAMPLES)
    _add_seed_arguments(simulate, Simulator, 1000)
    simulate.add_argument("--without", default="", metavar="PARTS", help="what shrinking left out")
    simulate.add_argument("--schedule", type=int, default=0, metavar="N", help="another order of steps")
    simulate.set_defaults(run=_simulate)
    summary = "random views against DuckDB"
    differential = _add(subcommands, "differential", summary, _DIFFERENTIAL, _DIFFERENTIAL_EXAMPLES)
    _add_seed_arguments(differential, Differential, 300)
    differential.set_defaults(run=lambda options: _run_seeds(Differential(), options))
    summary = "random schemas, DDL and settings against real servers"
    strange = _add(subcommands, "strange", summary, _STRANGE, _STRANGE_EXAMPLES)
    _add_seeds(strange, 200)
    strange.add_argument(
        "--folder", type=Path, metavar="FOLDER", help="data and logs (default: a temporary one)"
    )
    strange.add_argument("--verbose", action="store_true", help="show how every seed ends")
    strange.set_defaults(run=_run_strange)
    chaos = _add(subcommands, "chaos", "faults done to the running product", _CHAOS, _CHAOS_EXAMPLES)
    _add_chaos_arguments(chaos)
    chaos.set_defaults(run=_disturb)
    about = conformance.SUMMARY, conformance.DESCRIPTION, conformance.EXAMPLES
    conforms = _add(subcommands, "conformance", *about)
    conformance.add_arguments(conforms)
    conforms.set_defaults(run=conformance.run)
    of_suites = _add(subcommands, "suites", suites.SUMMARY, suites.DESCRIPTION, suites.EXAMPLES)
    suites.add_arguments(of_suites)
    of_suites.set_defaults(run=suites.run)
    return parser


def _add(
    subcommands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    description: str,
    epilog: str,
) -> argparse.ArgumentParser:
    return subcommands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _simulate(options: argparse.Namespace) -> int:
    try:
        reduction = Reduction.parse(options.without, options.schedule)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return _run_seeds(Simulator(reduction), options)


def _add_seeds(parser: argparse.ArgumentParser, seeds: int) -> None:
    parser.add_argument("--seeds", type=int, default=seeds, metavar="N", help=f"how many (default {seeds})")
    first = "the first seed (default 0); random: drawn, and printed"
    parser.add_argument("--from", type=_first_seed, default=0, dest="first", metavar="N", help=first)


def _add_seed_arguments(
    parser: argparse.ArgumentParser, subject: type[Simulator | Differential], seeds: int
) -> None:
    _add_seeds(parser, seeds)
    add = parser.add_argument
    add("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    only = "comma separated; without it all may occur: " + ", ".join(subject.features)
    add("--only", type=_words, default=(), metavar="FEATURES", help=only)
    planted = "plants a fault, to see it found: " + ", ".join(subject.faults)
    add("--fault", choices=sorted(subject.faults), metavar="NAME", help=planted)
    add("--stop", action="store_true", help="end soon after the first failure")
    add("--verbose", action="store_true", help="how often features occurred; what was set aside, and why")


def _run_seeds(subject: Subject[CaseT, ResultT], options: argparse.Namespace) -> int:
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


def _run_strange(options: argparse.Namespace) -> int:
    place = options.folder or Path(tempfile.mkdtemp(prefix="slackwater-strange-"))
    sys.stdout.write(f"seeds: --from {options.first} --seeds {options.seeds}\n")
    verdicts: Counter[Verdict] = Counter()
    logging.disable(logging.CRITICAL)  # what is refused is logged, too
    with terminate_as_interrupt(), StrangeRun(place) as run:
        for seed in range(options.first, options.first + options.seeds):
            found = run.run(seed)
            verdicts[found.verdict] += 1
            if found.verdict is Verdict.FAILED or options.verbose:
                sys.stdout.write(f"seed {seed}: {found.verdict} {found.text}\n")
                sys.stdout.flush()
    sums = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    sys.stdout.write(f"{options.seeds} seeds: {sums}\n")
    if options.folder is None and not verdicts[Verdict.FAILED]:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if verdicts[Verdict.FAILED] else 0


def _add_chaos_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, metavar="N", help="of faults (default 30)")
    add("--seed", type=int, default=1, metavar="N", help="of the schedule and the workload (default 1)")
    add("--short", action="store_true", help="each fault once, as the tests do, instead of random ones")
    rounds = "only these rounds of the schedule, to look at a failure"
    add("--rounds", type=_range, metavar="A-B", help=rounds)
    show = "print the schedule, or the tables of the newest runs that were kept; do nothing"
    add("--show", choices=("schedule", "table"), help=show)
    add("--output", type=SinkKind, choices=JUDGED_OUTPUTS, default=SinkKind.KAFKA, help=_OUTPUT_HELP)
    consumers = "services read the topics and the output, and are killed and paused, too"
    add("--consumers", action="store_true", help=consumers)
    add("--rate", type=float, default=300.0, metavar="N", help="row changes per second (default 300)")
    add("--folder", type=Path, metavar="FOLDER", help="data and logs (default: a temporary one)")


def _disturb(options: argparse.Namespace) -> int:
    try:
        if options.consumers and options.output is not SinkKind.KAFKA:
            raise RunFailedError("--consumers", "read outputs in Kafka; leave out --output")
        if options.show == "table":
            sys.stdout.write(newest_tables() + "\n")
            return 0
        if options.show == "schedule":
            sys.stdout.write(text([*islice(_rounds(options), _SHOWN)]) + "\n")
            return 0
        return _run_chaos(options)
    except (TestingError, CertifyError, SlackwaterError) as error:
        sys.stderr.write(f"seed {options.seed}: {error}\n")
        return 1


def _run_chaos(options: argparse.Namespace) -> int:
    clock, seed = SystemClock(), options.seed
    place = options.folder or Path(tempfile.mkdtemp(prefix="slackwater-chaos-"))
    settings = SystemSettings(
        folder=place / "run",
        workload=WORKLOADS["orders"](seed, _SIZE),
        changes_per_second=options.rate,
        master=LOCAL if options.short else EXECUTORS,
        output=options.output,
        has_consumers=options.consumers,
    )
    _say(f"seed {seed}; logs: {settings.logs}")
    is_whole = options.short or options.rounds
    with terminate_as_interrupt(), System(settings, clock) as system:
        found = run_session(
            system, _rounds(options), _say, float("inf") if is_whole else options.minutes * 60
        )
    if options.rounds is None:
        kind = "short" if options.short else f"{options.minutes:g} minutes"
        keep(found, seed=seed, kind=kind, output=options.output, clock=clock)
    sys.stdout.write(found.text + "\n")
    if not found.is_clean:
        _say(f"violations with seed {seed}; logs and data: {place}")
    elif options.folder is None:
        shutil.rmtree(place, ignore_errors=True)
    return 0 if found.is_clean else 1


def _rounds(options: argparse.Namespace) -> Iterator[Round]:
    seed, output = options.seed, options.output
    if not options.short:
        rounds = random_schedule(seed, output, has_consumers=options.consumers)
    elif options.consumers:
        rounds = iter(consumer_schedule(seed))
    else:
        rounds = iter(short_schedule(seed) if output is SinkKind.KAFKA else output_schedule(seed, output))
    first, last = options.rounds or (1, None)
    return islice(rounds, first - 1, last)


def _range(words: str) -> tuple[int, int]:
    first, _, last = words.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{words!r} is no range such as 5-8") from None


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
