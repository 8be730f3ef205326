"""``slackwater state``."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from slackwater.errors import CommandInputError
from slackwater.invocation import required, setting, start_command
from slackwater.output import Output, aligned
from slackwater_protocol import NO_SERVERS
from slackwater_spark.state import (
    BucketState,
    KeptRows,
    PipelineState,
    Rescaled,
    StageState,
    check_rescaling,
    inspect_state,
    kept_rows,
    name_kinds,
    show_key,
)
from slackwater_spark.state import rescale as rescale_state
from slackwater_sql.plan import EnginePlan, StagePlan

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


def state_lines(state: PipelineState, plan: EnginePlan | None, top: int) -> list[str]:
    """Writes the state for people."""
    lines = [f"{state.checkpoint}: batch {state.batch}, {state.partitions} partitions"]
    for stage in state.stages:
        lines += ["", *_stage_lines(stage, _plan_of(stage, plan), top)]
    return lines


def _stage_lines(stage: StageState, plan: StagePlan | None, top: int) -> Iterator[str]:
    contents = stage.contents
    key = f", keyed by {', '.join(column.name for column in plan.key) or 'nothing'}" if plan else ""
    fingerprint = ", ".join(each[:12] for each in stage.fingerprints)
    yield f"stage {stage.stage}{key}: plan {fingerprint}, format {stage.buckets[0].version}"
    yield f"  {len(stage.buckets):,} buckets, {contents.keys:,} keys"
    rows = [
        (f"    {name}", f"{amount.entries:,}", size(amount.size))
        for name, amount in zip(name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
    ]
    yield from aligned(rows)
    yield (
        f"  live {size(stage.live_bytes)}, log {size(stage.log_bytes)} in {stage.blobs:,} blobs "
        f"({size(stage.compressed_bytes)} compressed), {stage.due:,} buckets due for compaction"
    )
    yield "  largest buckets"
    yield from aligned(
        (
            f"    {each.bucket}",
            f"{each.contents.keys:,} keys",
            f"live {size(each.meta.live_bytes)}",
            f"log {size(each.meta.log_bytes)}",
            f"partition {each.partition}",
        )
        for each in stage.largest_buckets(top)
    )
    yield "  largest keys"
    yield from aligned(
        (f"    {show_key(plan, each.key)}", f"{each.entries:,} entries", size(each.size))
        for each in contents.largest
    )


def state_json(state: PipelineState, plan: EnginePlan | None, top: int) -> str:
    """Writes the state for tools."""
    return json.dumps(
        {
            "checkpoint": str(state.checkpoint),
            "batch": state.batch,
            "partitions": state.partitions,
            "stages": [_stage_facts(stage, _plan_of(stage, plan), top) for stage in state.stages],
        },
        indent=2,
    )


def _stage_facts(stage: StageState, plan: StagePlan | None, top: int) -> dict[str, Any]:
    contents = stage.contents
    return {
        "stage": stage.stage,
        "fingerprints": stage.fingerprints,
        "format_version": stage.buckets[0].version,
        "buckets": len(stage.buckets),
        "keys": contents.keys,
        "kept": [
            {"what": name, "entries": amount.entries, "bytes": amount.size}
            for name, amount in zip(name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
        ],
        "live_bytes": stage.live_bytes,
        "log_bytes": stage.log_bytes,
        "compressed_bytes": stage.compressed_bytes,
        "blobs": stage.blobs,
        "buckets_due_for_compaction": stage.due,
        "largest_buckets": [_bucket_facts(each) for each in stage.largest_buckets(top)],
        "largest_keys": [
            {"key": show_key(plan, each.key), "entries": each.entries, "bytes": each.size}
            for each in contents.largest
        ],
    }


def _bucket_facts(bucket: BucketState) -> dict[str, Any]:
    return {
        "bucket": bucket.bucket,
        "partition": bucket.partition,
        "keys": bucket.contents.keys,
        "live_bytes": bucket.meta.live_bytes,
        "log_bytes": bucket.meta.log_bytes,
        "compressed_bytes": bucket.compressed_bytes,
        "blobs": len(bucket.meta.blobs),
    }


def key_lines(found: Sequence[KeptRows]) -> list[str]:
    """Writes what is kept under a key, for people."""
    if not found:
        return ["nothing is kept under this key"]
    lines = []
    for each in found:
        lines.append(f"stage {each.stage}, bucket {each.bucket}")
        if not each.rows:
            lines.append("  nothing")
        for kind, rows in each.rows.items():
            lines.append(f"  {kind}")
            lines += [f"    {json.dumps(row, ensure_ascii=False, default=str)}" for row in rows]
    return lines


def keys_json(found: Sequence[KeptRows]) -> str:
    """Writes the same for tools."""
    facts = [{"stage": each.stage, "bucket": each.bucket, "kept": dict(each.rows)} for each in found]
    return json.dumps(facts, indent=2, default=str)


def rescaled_line(done: Rescaled | None, partitions: int) -> str:
    """Writes what a change of partitions did."""
    if done is None:
        return f"has {partitions} partitions already; nothing to do"
    return (
        f"{done.before} partitions became {done.after} (batch {done.batch}): {done.buckets:,} buckets with "
        f"{done.blobs:,} blobs, {size(done.bytes)}, all of them equal to what they were"
    )


def size(count: int) -> str:
    """Bytes in a unit that keeps them short."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _plan_of(stage: StageState, plan: EnginePlan | None) -> StagePlan | None:
    numbers = {each.number: each for each in plan.stages} if plan else {}
    return numbers.get(stage.stage)
