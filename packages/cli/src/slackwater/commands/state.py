"""``slackwater state``."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from slackwater.errors import CommandInputError
from slackwater.invocation import required, setting, start_command
from slackwater.output import Output
from slackwater.state_report import key_lines, keys_json, rescaled_line, state_json, state_lines
from slackwater_protocol import NO_SERVERS
from slackwater_spark.state import check_rescaling, inspect_state, kept_rows
from slackwater_spark.state import rescale as rescale_state
from slackwater_sql.plan import EnginePlan

if TYPE_CHECKING:  # Spark takes a second to import; the help text does not need it
    from pyspark.sql import SparkSession

SHOWN = 5


class _ShowsByDefault(click.Group):
    """``slackwater state DIR`` means ``slackwater state show DIR``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowsByDefault)
def state() -> None:
    """Look into a pipeline's state, or distribute it over more or fewer tasks.

    \b
    Examples:
      slackwater state pipelines/orders --checkpoint /var/lib/slackwater/orders
      slackwater state /var/lib/slackwater/orders
      slackwater state pipelines/orders --key '{"id": 5}'
      slackwater state rescale pipelines/orders --partitions 16

    Read on in docs/state.md.
    """


@state.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@click.option("--key", metavar="JSON", help="Show what the stages keep under this key: its columns' values.")
@click.option("--top", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Of the largest.")
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.pass_context
def show(ctx: click.Context, place: Path, key: str | None, top: int, as_json: bool) -> None:
    """Show what the state holds; DIR is a pipeline or a checkpoint.

    For each stage: buckets, keys, rows of each input, what is live and what the logs take, the largest
    buckets and keys. Reads the newest committed batch from the checkpoint alone, whether the pipeline runs or
    not. It reads all of the state, with a Spark of its own on this machine.
    """
    output = Output()
    target = _target(ctx, place)
    wanted = None if key is None else target.key(key)
    plan = target.plan if wanted is None else target.known_plan()
    with target.session() as session:
        if wanted is not None and plan is not None:
            found = kept_rows(session, target.checkpoint, plan, wanted, buckets=target.known_buckets())
            text = keys_json(found) if as_json else None
            lines = key_lines(found)
        else:
            report = inspect_state(session, target.checkpoint, top=top)
            text = state_json(report, plan, top) if as_json else None
            lines = state_lines(report, plan, top)
    if text is not None:
        click.echo(text)
        return
    for line in lines:
        output.line(line)


@state.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--partitions", type=click.IntRange(min=1), required=True, metavar="N", help="From then on.")
@setting("run.checkpoint", "--checkpoint", metavar="DIR", help="Where Spark keeps offsets and state.")
@click.pass_context
def rescale(ctx: click.Context, place: Path, partitions: int) -> None:
    """Distribute the state over N partitions, the number of tasks that each stage has.

    The pipeline must be stopped, and its last batch be finished (`slackwater run --available-now`). All state
    is written anew; what was there is compared with what is there afterwards. Interrupted, call it again with
    the same number. DIR is a pipeline or a checkpoint.
    """
    output = Output()
    target = _target(ctx, place)
    buckets = target.known_buckets()
    check_rescaling(target.checkpoint, partitions, buckets)
    output.progress(f"{target.name}: starting Spark")
    with target.session() as session:
        done = rescale_state(
            session,
            target.checkpoint,
            partitions,
            buckets=buckets,
            on_progress=lambda text: output.progress(f"{target.name}: {text}"),
        )
    output.end_progress()
    output.line(f"{target.name}: {rescaled_line(done, partitions)}")


@dataclass(frozen=True, slots=True)
class _Target:
    """Names the checkpoint that a command is about, with what is known of its pipeline."""

    name: str
    checkpoint: Path
    buckets: int | None
    plan: EnginePlan | None
    """None if only the checkpoint was named."""
    driver_memory: str
    class_archives: Path | None = None
    """Where an archive of Spark's classes may be."""

    def known_buckets(self) -> int:
        """Returns how many buckets each stage has.

        Raises:
            CommandInputError: nobody has said.
        """
        if self.buckets is None:
            problem = "it does not say how many buckets its stages have"
            raise CommandInputError(f"{self.checkpoint}: {problem}", "name the pipeline's folder")
        return self.buckets

    def known_plan(self) -> EnginePlan:
        """Returns the plan that says what the rows mean.

        Raises:
            CommandInputError: only the checkpoint was named.
        """
        if self.plan is None:
            problem = "only the pipeline's views say what its rows mean"
            raise CommandInputError(f"{self.checkpoint}: {problem}", "name the pipeline's folder")
        return self.plan

    def key(self, text: str) -> dict[str, Any]:
        """Reads a key as a person writes it.

        Raises:
            CommandInputError: it is no JSON object.
        """
        try:
            key = json.loads(text)
        except ValueError:
            key = None
        if not isinstance(key, dict):
            problem = f"""--key is {text!r}, expected a JSON object such as '{{"id": 5}}'"""
            raise CommandInputError(f"{self.checkpoint}: {problem}")
        return key

    @contextmanager
    def session(self) -> Iterator["SparkSession"]:
        """Starts a Spark on this machine that can read the state."""
        from slackwater_spark.pipeline import RunSettings
        from slackwater_spark.pipeline.session import spark_session

        settings = RunSettings(
            servers=NO_SERVERS,
            checkpoint=self.checkpoint,
            driver_memory=self.driver_memory,
            shuffle_partitions=8,
            class_archives=self.class_archives,
        )
        with (
            TemporaryDirectory(prefix="slackwater-state-") as logs,
            spark_session(f"state of {self.name}", settings, Path(logs) / "spark.log") as session,
        ):
            yield session


def _target(ctx: click.Context, place: Path) -> _Target:
    """Finds out what a folder given to the command is: a checkpoint or a pipeline.

    Raises:
        CommandConfigError: it is a pipeline, and its checkpoint was not given.
        PipelineError: it is neither.
    """
    from slackwater_spark.pipeline import RunSettings, default_class_archives, load_pipeline
    from slackwater_spark.state import Checkpoint

    run = start_command(ctx).run
    memory, archives = run.driver_memory, default_class_archives(os.environ) if run.class_archive else None
    if Checkpoint(place).exists():
        name, buckets = _written_in(place)
        return _Target(name or place.name, place, buckets, None, memory, archives)
    definition = load_pipeline(place)
    folder = required(run.checkpoint, "run.checkpoint", "--checkpoint", "where its state is")
    checkpoint = definition.checkpoint(RunSettings.local_folder(folder))
    return _Target(definition.name, checkpoint, definition.buckets, definition.plan, memory, archives)


def _written_in(checkpoint: Path) -> tuple[str | None, int | None]:
    """Reads name and buckets of the pipeline, as its first run noted them."""
    from slackwater_spark.pipeline.fingerprint import FINGERPRINT_FILE

    try:
        noted = json.loads((checkpoint / FINGERPRINT_FILE).read_text(encoding="utf-8"))
        return str(noted["name"]), int(noted["buckets"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
