"""The subcommand ``chaos``: faults done to the running product."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from slackwater_certify import CertifyError
from slackwater_devstack import DevStackError
from slackwater_protocol import SystemClock
from slackwater_testing.chaos.result import ChaosResult, keep, newest_table
from slackwater_testing.chaos.run import run_session
from slackwater_testing.chaos.schedule import Round, random_schedule, short_schedule, text
from slackwater_testing.chaos.system import EXECUTORS, LOCAL, System, SystemSettings
from slackwater_testing.errors import TestingError
from slackwater_testing.workloads.registry import WORKLOADS

SUMMARY = "faults done to the running product"
DESCRIPTION = """\
Kills, pauses, fills, cuts and delays the running product, then judges every record it published.

Starts PostgreSQL, two brokers, Connect with Debezium, Redis, two sidecars and a pipeline; writers commit
business transactions all the time. Whatever dies is started again after a second. At the end everything is
healed, the last commit becomes visible, and the certifier compares each document with the committed states
of the database.

Faults, their times and the workload follow from the seed: the same seed gives the same schedule. The exit
code is 0 only if nothing was torn, lost, repeated or late by minutes. Logs are kept when it is not.
"""
EXAMPLES = """\
examples:
  python -m slackwater_testing chaos --minutes 30 --seed 7
  python -m slackwater_testing chaos --short
  python -m slackwater_testing chaos --seed 7 --show schedule
"""
_SHOWN = 100
"""Rounds of an endless schedule that are printed."""
_SIZE = 500
"""Main rows of the workload."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the subcommand."""
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, metavar="N", help="of faults (default 30)")
    add("--seed", type=int, default=1, metavar="N", help="of the schedule and the workload (default 1)")
    add("--short", action="store_true", help="each fault once, as the tests do, instead of random ones")
    rounds = "only these rounds of the schedule, to look at a failure"
    add("--rounds", type=_range, metavar="A-B", help=rounds)
    show = "print the schedule, or the table of the newest run that was kept; do nothing"
    add("--show", choices=("schedule", "table"), help=show)
    add("--rate", type=float, default=300.0, metavar="N", help="row changes per second (default 300)")
    add("--folder", type=Path, metavar="FOLDER", help="data and logs (default: a temporary one)")


def run_command(options: argparse.Namespace) -> int:
    """Does what was asked for; returns the exit code."""
    try:
        if options.show == "table":
            sys.stdout.write(newest_table() + "\n")
            return 0
        if options.show == "schedule":
            sys.stdout.write(text([*islice(_rounds(options), _SHOWN)]) + "\n")
            return 0
        return _run(options)
    except (TestingError, CertifyError, DevStackError) as error:
        sys.stderr.write(f"seed {options.seed}: {error}\n")
        return 1


def _run(options: argparse.Namespace) -> int:
    clock, seed = SystemClock(), options.seed
    place = options.folder or Path(tempfile.mkdtemp(prefix="slackwater-chaos-"))
    settings = SystemSettings(
        folder=place / "run",
        workload=WORKLOADS["orders"](seed, _SIZE),
        changes_per_second=options.rate,
        master=LOCAL if options.short else EXECUTORS,
    )
    _say(f"seed {seed}; logs: {settings.logs}")
    is_whole = options.short or options.rounds
    with _terminated_as_interrupted(), System(settings, clock) as system:
        found = run_session(
            system, _rounds(options), _say, float("inf") if is_whole else options.minutes * 60
        )
    if options.rounds is None:
        keep(found, seed=seed, kind="short" if options.short else f"{options.minutes:g} minutes", clock=clock)
    sys.stdout.write(found.text + "\n")
    return _finish(found, seed, place, is_ours=options.folder is None)


def _finish(found: ChaosResult, seed: int, place: Path, *, is_ours: bool) -> int:
    if not found.certificate.is_clean:
        _say(f"violations with seed {seed}; logs and data: {place}")
        return 1
    if is_ours:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def _rounds(options: argparse.Namespace) -> Iterator[Round]:
    rounds = iter(short_schedule(options.seed)) if options.short else random_schedule(options.seed)
    if options.rounds is None:
        return rounds
    first, last = options.rounds
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


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Lets SIGTERM unwind the stack as Ctrl-C does, so that everything is stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
