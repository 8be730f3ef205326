"""``slackwater demo``."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slackwater.command.invocation import Invocation, search_path_lines, start_command
from slackwater.command.output import Output
from slackwater.protocol import SystemClock

if TYPE_CHECKING:  # heavy, and its help needs none of it
    from slackwater_certify import Certificate
    from slackwater_lab.demo.run import Demo


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=45.0, show_default=True, help="How long to write."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random transactions.")
@click.option(
    "--rate",
    "changes_per_second",
    type=click.FloatRange(min=1),
    default=2000.0,
    show_default=True,
    help="Row changes/s.",
)
@click.option(
    "--writers",
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    help="Number of writing connections.",
)
@click.option("--keep", is_flag=True, help="Leave everything running, and print how to inspect it.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers here."
)
@click.option(
    "--pipeline",
    type=click.Path(file_okay=False, path_type=Path),
    help="The pipeline to run.  [default: pipelines/orders of this repository]",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for data and logs.  [default: a new one in .slackwater/demo]",
)
@click.pass_context
def demo(
    ctx: click.Context, /, json_file: Path | None, pipeline: Path | None, folder: Path | None, **options: Any
) -> None:
    """Run the whole product on this machine for a minute and check every result.

    Starts PostgreSQL, Kafka, Connect with Debezium and Redis on free ports, then the sidecar and a pipeline
    that joins orders with their lines. Several connections write business transactions: inserts, updates,
    deletes, lines that move to another order, savepoints, rollbacks, and some transactions with thousands of
    rows. In every committed state, line_count and total of each order agree with its lines.

    \b
    At the end it checks
      (a)  every published document against that invariant,
      (b)  the final state of the view against PostgreSQL,
      G1   each published commit against the state of the source at its LSN,
      (c)  how many torn documents a reader without Slackwater would have published from the same topics, and
      (d)  that a consumer in another process, which reads the topics and the output with slackwater.client,
           received every transaction completely, exactly once, and in commit order.

    The exit code is 0 only if something was measured and a, b, d and G1 found no error. Everything except the
    logs is removed at the end, unless you give --keep.

    \b
    Examples:
      slackwater demo
      slackwater demo --keep --seconds 120 --seed 7

    The pipeline is in pipelines/orders. README.md and docs/guarantees.md explain what the demo shows.
    """
    from slackwater_lab.demo.run import Demo, DemoSettings

    invocation: Invocation = ctx.obj
    clock, output = SystemClock(), Output()
    settings = DemoSettings(
        pipeline=pipeline or find_pipeline(),
        folder=folder or Path(f".slackwater/demo/{clock.now():%Y%m%d-%H%M%S}"),
        **options,
    )
    if invocation.flags.get("log.file") is None:
        invocation.flags["log.file"] = str(settings.logs / "demo.log")
    start_command(ctx)
    try:
        with terminate_as_interrupt(), Demo(settings, output, clock) as run:
            report = run.run()
            output.end_progress()
    finally:
        output.end_progress()
        output.line(f"logs: {settings.logs}")
    output.table(report.rows())
    for line in run.answers:
        output.line(line)
    _print_examples(report.certificate, output)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    if run.is_kept:
        _print_how_to_look(run, output)
    for line in search_path_lines():
        output.line(line)
    ctx.exit(0 if report.has_passed else 1)


def find_pipeline() -> Path:
    """Returns ``pipelines/orders`` of the current folder or one above it, else of this file's repository."""
    here = Path.cwd()
    places = [*(folder / "pipelines/orders" for folder in (here, *here.parents))]
    places += [folder / "pipelines/orders" for folder in Path(__file__).resolve().parents]
    return next((place for place in places if (place / "pipeline.toml").is_file()), places[0])


def _print_examples(certificate: "Certificate", output: Output) -> None:
    for kind, texts in certificate.examples.items():
        output.line(f"{kind}, for example:")
        for text in texts:
            output.line(f"  {text[:400]}")


def _print_how_to_look(run: "Demo", output: Output) -> None:
    redis, folder = run.stack.redis.url, run.settings.folder
    pids = " ".join(str(program.pid) for program in run.product.programs.values())
    output.line("")
    output.line("Everything is still running. To inspect it:")
    output.table(
        [
            ("  the database", f"psql {run.dsn}"),
            ("  the frontier", f"slackwater status --source inv --redis-url {redis}"),
            ("  the page", run.control_plane),
            ("  the delays", f"slackwater delay --bootstrap {run.bootstrap}"),
            ("  the output", f"slackwater dev read {run.topic} --bootstrap {run.bootstrap} --last 5"),
            (
                "  its commits",
                f"slackwater dev read {run.topic}.commits --bootstrap {run.bootstrap} --last 5",
            ),
            (
                "  a certificate",
                f"slackwater certify {run.settings.pipeline} --bootstrap {run.bootstrap} --dsn {run.dsn}",
            ),
        ]
    )
    output.line("To stop it:")
    output.line(f"  kill {pids}; slackwater dev down --folder {folder}")


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM unwind the stack as Ctrl-C does, because the demo has to tidy up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
