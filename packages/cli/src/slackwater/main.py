"""Stands at the boundary of the process: finds the command, turns errors into lines and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 not there in time, 130 interrupted.
"""

import atexit
import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version

import click

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
@click.option("--config", metavar="FILE", help="Settings file.  [default: slackwater.toml, if it is there]")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least severe level to log."
)
@click.option("--log-file", metavar="FILE", help="Write the log here instead of to standard error.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How the log is written.")
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks. Same as SLACKWATER_DEBUG=1."
)
@click.pass_context
def cli(
    ctx: click.Context,
    config: str | None,
    log_level: str | None,
    log_file: str | None,
    log_format: str | None,
) -> None:
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
    from slackwater.invocation import Invocation  # the settings take 0.2 s; the list of commands needs none

    flags: dict[str, object] = {"log.level": log_level, "log.file": log_file, "log.format": log_format}
    ctx.obj = Invocation(config=config, flags=flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process. What ends it, or one of its threads, leaves a line."""
    faulthandler.enable()
    threading.excepthook = _log_thread
    atexit.register(_end_quietly)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    try:
        result = cli.main(list(arguments), prog_name="slackwater", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted")
        return 130
    except BrokenPipeError:
        return _without_reader()
    except Exception as error:  # noqa: BLE001 - the process boundary
        return _report(error, is_debug="--debug" in arguments or is_debug_set())


def is_debug_set() -> bool:
    """Says if SLACKWATER_DEBUG asks for tracebacks."""
    return os.environ.get("SLACKWATER_DEBUG", "").lower() not in ("", "0", "false", "no")


def _report(error: Exception, *, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exception(error)
    is_expected = type(error).__module__.startswith("slackwater") or isinstance(error, OSError)
    text = str(error) if is_expected else f"{type(error).__name__}: {error}"
    first, *more = text.splitlines() or [type(error).__name__]
    _tell(f"error: {first}")
    for line in more:
        _tell(f"       {line}")
    if not is_expected and not is_debug:
        _tell("       (unexpected; run again with --debug for the traceback)")
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def _tell(line: str) -> None:
    """Writes to standard error, as long as anybody reads it and its disk has room."""
    with suppress(OSError):
        click.echo(line, err=True)


def _log_thread(failed: threading.ExceptHookArgs) -> None:
    """Logs why a thread ended, in place of a traceback on standard error, which nobody may read."""
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        name = "a thread" if failed.thread is None else f"thread {failed.thread.name}"
        logging.getLogger(__name__).error("%s ended: %r", name, failed.exc_value, exc_info=failed.exc_value)


def _end_quietly() -> None:
    """Hides what DuckDB's binding reports about its own types while the interpreter is taken down."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _without_reader() -> int:
    """Writes nothing more, not even at exit: the reader of our output has gone, as with ``| head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
