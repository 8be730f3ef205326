"""The process boundary around a command that ends in the way its argument says; see ``test_endings.py``."""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable

import click

from slackwater.cli import main
from slackwater.command.invocation import start_command
from slackwater.observe.stopping import StopRequest, stop_on_signals
from slackwater.protocol import InputError


def wait(stop: StopRequest) -> None:
    click.echo("ready")
    assert any(stop.event.wait(1) for _ in range(300))  # a signal just before a wait does not shorten it


def hang(_: StopRequest) -> None:
    click.echo("ready")
    for _second in range(300):
        threading.Event().wait(1)


def fail_in_thread(_: StopRequest) -> None:
    def fail() -> None:
        raise ValueError("of a thread")

    thread = threading.Thread(target=fail, name="listener")
    thread.start()
    thread.join()


def print_to_nobody(_: StopRequest) -> None:
    sys.stdin.read()  # until the reader of our output has gone
    for _line in range(100_000):
        click.echo("a line")


def broken_pipe(_: StopRequest) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"to a process of Spark's")


def raising(error: BaseException) -> Callable[[StopRequest], None]:
    def fail(_: StopRequest) -> None:
        raise error

    return fail


WAYS: dict[str, Callable[[StopRequest], None]] = {
    "return": lambda _: None,
    "wait": wait,
    "hang": hang,
    "known error": raising(InputError("what happened", "what helps")),
    "unknown error": raising(ValueError("unexpected")),
    "exit": raising(SystemExit(3)),
    "broken pipe": broken_pipe,
    "print to nobody": print_to_nobody,
    "thread": fail_in_thread,
    "crash": lambda _: faulthandler._sigsegv(),  # type: ignore[attr-defined]  # noqa: SLF001
}


@click.command()
@click.argument("way")
@click.pass_context
def end(ctx: click.Context, way: str) -> None:
    """End."""
    start_command(ctx)
    with stop_on_signals("the command") as stop:
        WAYS[way](stop)
    ctx.exit(stop.exit_code)


if __name__ == "__main__":
    main.COMMANDS["end"] = "slackwater.cli.commands.end"
    sys.modules["slackwater.cli.commands.end"] = sys.modules["__main__"]
    main.main(sys.argv[1:])
