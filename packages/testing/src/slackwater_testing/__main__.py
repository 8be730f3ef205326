"""The command ``python -m slackwater_testing``."""

import argparse
import sys
from collections.abc import Sequence

from slackwater_testing.chaos import command as chaos
from slackwater_testing.differential import Differential
from slackwater_testing.differential.engines import ENGINES
from slackwater_testing.seeds.command import add_arguments, run_command
from slackwater_testing.simulator import Reduction, Simulator

_SIMULATE = """\
Simulates database, connector, broker, Redis, sidecars and a reader in one process and checks the promises of
docs/guarantees.md at every step. Everything follows from a seed. A seed that fails is made small and shown
with a trace and the command that repeats it; the exit code is then 1.
"""
_SIMULATE_EXAMPLES = """\
examples:
  python -m slackwater_testing simulate --seeds 100000 --jobs 2
  python -m slackwater_testing simulate --seeds 1000 --only snapshot,crashes
  python -m slackwater_testing simulate --seeds 300 --fault ends-not-awaited
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
  python -m slackwater_testing differential --seeds 10000 --jobs 2
  python -m slackwater_testing differential --seeds 500 --only group,left-join,every-commit
  python -m slackwater_testing differential --seeds 1 --from 4711
  python -m slackwater_testing differential --seeds 300 --fault moved-rows-stay

reading a failure:
  "missing" are rows that the reference has and the engine has not; "too many" is the opposite.
  crashed: the engine raised; needless: it published something that says nothing new.
  What the planner refuses is no failure; --verbose lists the reasons.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slackwater_testing", description="Tests that find what nobody thought of."
    )
    subcommands = parser.add_subparsers(required=True, metavar="COMMAND")
    simulate = _add(subcommands, "simulate", "random histories of the sidecar", _SIMULATE, _SIMULATE_EXAMPLES)
    add_arguments(simulate, Simulator.features, Simulator.faults, seeds=1000)
    simulate.add_argument("--without", default="", metavar="PARTS", help="what shrinking left out")
    simulate.add_argument("--schedule", type=int, default=0, metavar="N", help="another order of steps")
    simulate.set_defaults(run=_simulate)
    summary = "random views against DuckDB"
    differential = _add(subcommands, "differential", summary, _DIFFERENTIAL, _DIFFERENTIAL_EXAMPLES)
    add_arguments(differential, Differential.features, Differential.faults, seeds=300)
    judged = "what is judged (default local): " + ", ".join(ENGINES)
    differential.add_argument(
        "--engine", choices=sorted(ENGINES), default="local", metavar="NAME", help=judged
    )
    differential.set_defaults(run=lambda options: run_command(Differential(options.engine), options))
    disturb = _add(subcommands, "chaos", chaos.SUMMARY, chaos.DESCRIPTION, chaos.EXAMPLES)
    chaos.add_arguments(disturb)
    disturb.set_defaults(run=chaos.run_command)
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
    return run_command(Simulator(reduction), options)


if __name__ == "__main__":
    sys.exit(main())
