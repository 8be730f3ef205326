"""Finds the command that was asked for."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

import click

from slackwater_command.boundary import run_command, watch_process
from slackwater_command.options import general_options

COMMANDS = {
    "dev": "Run a local stack: PostgreSQL, Kafka, Connect with Debezium, Redis.",
    "new": "Write a pipeline to begin with into DIR: a view, its tests, and all that makes a package of it.",
    "demo": "Run the whole product on this machine for a minute and check every result.",
    "sidecar": "Find the moments at which all topics of a source agree, and publish them.",
    "run": "Run the pipeline in DIR: publish its views to Kafka, PostgreSQL or a lake, exactly once.",
    "certify": "Check every output of a stream processor against the database it came from.",
    "test": "Run the tests of a pipeline's views, without servers.",
    "preview": "Show what the views in DIR say of a running source, and publish nothing.",
    "explain": "Show by which stages the pipeline in DIR computes its views, and why.",
    "schema": "Write the tables that a pipeline reads, or compare them with the database.",
    "state": "Look into a pipeline's state: sizes, contents, the rows of a key, damage.",
    "commits": "Show a pipeline's commit records: where in its output each transaction begins and ends.",
    "read": "Show views as of one commit: documents of one pipeline, or of several of one source.",
    "snapshots": "Show at which commit pipelines of a source can be read together, and who is waited for.",
    "lease": "Show, renew and end leases: views that stay readable at one commit for a reader.",
    "tail": "Show what commits change in a view, as they become visible.",
    "wait": "Wait until everything up to a commit is visible in the outputs of pipelines.",
    "transactions": "Show or end the Kafka transactions that keep a pipeline's readers from going on.",
    "messaging": "Check that the messages of a service are in their topics.",
    "indoubt": "Show and decide the prepared transactions that senders of messages have left in a database.",
    "revise": "Compare two revisions of a pipeline, and switch readers from one to the other.",
    "topology": "Show how sources, tables, pipelines and views are connected, and how far each pipeline is.",
    "pipeline": "List pipelines; let one start over from the beginning, or remove it.",
    "delay": "Show how late each view is, hop by hop, and whose fault it is.",
    "status": "Show a source: frontier, state, lag, open transactions, pipelines.",
    "doctor": "Say what is wrong with a source, why, and which command helps.",
    "connector": "Print, check or apply all that a database and Kafka Connect need for a source.",
    "source": "Decide about a source: skip a transaction, begin a timeline, pass a damaged record.",
    "token": "Make a token for the control plane, for whoever or whatever NAME is.",
    "archive-classes": "Make pipelines on this machine start in half the CPU time.",
    "config": "Show every setting, its value and where the value comes from.",
}
"""The commands in the order of the help text, each with the first sentence of its own."""


EXTRAS = {
    "slackwater_spark": "slackwater[spark]",
    "slackwater_sql": "slackwater[spark]",
    "slackwater_engine": "slackwater[spark]",
    "slackwater_certify": "slackwater[certify]",
    "slackwater_messaging": "slackwater[messaging]",
    "slackwater_devstack": "slackwater[dev]",
    "slackwater_testing": "slackwater[demo]",
    "psycopg": "slackwater[postgres]",
    "deltalake": "slackwater[lake]",
    "pyiceberg": "slackwater[lake]",
    "sqlalchemy": "slackwater[lake]",
    "starlette": "slackwater[control]",
    "uvicorn": "slackwater[control]",
}
"""What is installed only with an extra, and that extra."""


class _LazyGroup(click.Group):
    """Imports the module of a command only when that command is called.

    The module is named like the command. The list of commands is written without any of them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"slackwater.commands.{name}"), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.removesuffix(".")) for name, text in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("slackwater"), message="slackwater %(version)s")
@general_options
def cli() -> None:
    """Transactionally consistent views over Debezium change streams, with Kafka, Redis and PySpark.

    \b
    See it work on this machine, in about a minute:
      slackwater demo

    \b
    Against servers of your own:
      slackwater sidecar --source inv --bootstrap localhost:9092 --redis-url redis://localhost
      slackwater run pipelines/orders --bootstrap localhost:9092 --redis-url redis://localhost \\
          --checkpoint /var/lib/slackwater/orders
      slackwater status --source inv --bootstrap localhost:9092 --redis-url redis://localhost
      slackwater topology --bootstrap localhost:9092

    Every setting can also stand in the environment (SLACKWATER_BOOTSTRAP, SLACKWATER_REDIS_URL, ...) or in
    slackwater.toml; flags win over the environment, the environment over the file. `slackwater config`
    lists all settings, their values and where each comes from.

    `slackwater COMMAND --help` explains a command with examples. Read on in docs/: guarantees.md says what is
    promised, views.md which SQL a view may use, runbooks/ what to do when something is wrong.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process."""
    watch_process()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(cli, "slackwater", arguments, EXTRAS)
