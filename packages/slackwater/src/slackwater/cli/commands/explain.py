"""``slackwater explain`` and ``slackwater check``."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import read_topology
from slackwater.command.invocation import setting
from slackwater.command.output import Output, json_option
from slackwater.control import EqualStages, Sharing, find_equal_stages
from slackwater.protocol import ConfigError, InputError
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import RunSection, Settings

_LOOK_SECONDS = 0.3

if TYPE_CHECKING:  # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline.definition import PipelineDefinition


@settings_command()
@click.argument("pipeline", metavar="[DIR]", required=False)
@click.option("--sql", "with_sql", is_flag=True, help="Also show the statements that the stages evaluate.")
@setting("run.checkpoint", "Also show what the stages keep in this checkpoint.")
@click.option(
    "--sharing", is_flag=True, help="Show stages that several pipelines have in common; without DIR."
)
@setting("kafka.bootstrap", "For --sharing: the brokers of the pipelines.")
@click.option("--source", metavar="NAME", help="For --sharing: only this source and what is derived from it.")
@json_option("one JSON object, including the statements")
def explain(
    settings: Settings, pipeline: str | None, with_sql: bool, sharing: bool, source: str | None, as_json: bool
) -> None:
    """Show the stages in which the pipeline in DIR computes its views, and explain them.

    For each stage, shows its key, the columns that it reads from each table, the state that it keeps, what it
    computes when something changes, where its results go, and which views share it. For each view, shows the
    topic, record key and columns. Needs no server. An unsupported view is rejected, with its place in the
    file.

    With --sharing, shows what several pipelines of a source compute and keep in common, according to their
    registrations, and what a single pipeline with all of their views would save.

    \b
    Examples:
      slackwater explain pipelines/orders
      slackwater explain pipelines/orders --sql
      slackwater explain pipelines/shop --checkpoint /var/lib/slackwater/shop
      slackwater explain --sharing --bootstrap localhost:9092

    docs/views.md describes views, docs/state.md what the stages keep, and docs/control-plane.md what is
    computed only once.
    """
    if (pipeline is None) != sharing:
        raise click.UsageError("specify the folder of a pipeline, or --sharing")
    output = Output()
    if pipeline is None:
        found = find_equal_stages(read_topology(settings, source))
        output.report(found, sharing_lines(found), as_json=as_json)
        return
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.explain import explain as explained
    from slackwater.pipeline.explain import explanation_lines

    if source is not None:
        raise click.UsageError("--source can only be used with --sharing")
    run, definition = settings.run, load_pipeline(pipeline_folder(pipeline))
    sizes = None if run.checkpoint is None else _state_bytes(run, definition)
    explanation = explained(definition, with_sql=with_sql or as_json, state_bytes=sizes)
    text = orjson.dumps(explanation, option=orjson.OPT_INDENT_2).decode()
    output.report(text, explanation_lines(explanation), as_json=as_json)


@settings_command()
@click.argument("folder", metavar="DIR")
@click.option("--watch", is_flag=True, help="Check again whenever a file changes, until interrupted.")
@json_option("per check a JSON array of mistakes: path, line, column, text, problem, hint")
def check(settings: Settings, folder: str, watch: bool, as_json: bool) -> int:
    """Find all mistakes in the files of the pipeline in DIR.

    Checks pipeline.toml, the declared tables and all views, and shows each mistake with its place in the file
    and what to do. Needs no server. The exit code is 1 if there are mistakes.

    \b
    Examples:
      slackwater check pipelines/orders
      slackwater check pipelines/orders --watch --json     # for an editor
    """
    output, path, before = Output(), pipeline_folder(folder), None
    while True:
        files = _versions(path)
        if files != before:
            found = list(_mistakes(path))
            lines = [line for _, line in found] or [f"{path}: no mistakes"]
            output.report([each for each, _ in found], lines, as_json=as_json)
        if not watch:
            return 1 if found else 0
        before = files
        time.sleep(_LOOK_SECONDS)


def _versions(folder: Path) -> dict[Path, int]:
    """Returns the files that make a pipeline, with the moments of their last changes."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "name the folder that contains pipeline.toml")
    paths = (path for form in ("*.toml", "**/*.sql") for path in folder.glob(form))
    return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}


def _mistakes(folder: Path) -> Iterator[tuple[dict[str, str | int], str]]:
    """Yields each mistake for tools, and as a line."""
    from slackwater.outputs.contract import SinkKind
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.folder import read_sql
    from slackwater.pipeline.sinks import check_table
    from slackwater.sql.errors import SqlTextError

    try:
        try:
            definition = load_pipeline(folder)
            for view, output in zip(definition.plan.views, definition.outputs, strict=True):
                if output.kind not in (SinkKind.KAFKA, SinkKind.OPENSEARCH):
                    check_table(view, lambda *_: None)
        except SqlTextError:
            raise
        except (ConfigError, InputError) as error:
            place: dict[str, str | int] = {
                "path": str(folder / "pipeline.toml"),
                "line": 0,
                "column": 0,
                "text": "",
            }
            yield {**place, "problem": error.problem, "hint": error.hint}, str(error)
            with suppress(ConfigError):  # of the same folder
                sql = read_sql(folder)
                sql.plan(sql.view_names)
    except SqlTextError as error:
        for each in (SqlTextError(*error.args[:3]), *error.others):
            yield {**asdict(each.place), "problem": each.problem, "hint": each.hint}, str(each)


def _state_bytes(run: RunSection, definition: "PipelineDefinition") -> dict[int, int]:
    """Reads what each stage keeps in the checkpoint."""
    from slackwater.engine.state.inspection import find_state
    from slackwater.pipeline.checkpoint import Checkpoint
    from slackwater.pipeline.settings import revision_checkpoint

    checkpoint = Checkpoint(revision_checkpoint(run.checkpoint or "", definition.revision), run.spark_conf)
    found = find_state(checkpoint.store)
    if not found.is_of(definition.plan):
        hint = "specify the checkpoint of the current version of this pipeline"
        raise CommandConfigError(
            f"checkpoint {checkpoint.store.address} contains the state of different views", hint
        )
    return found.state.stage_bytes()


def sharing_lines(found: Sharing) -> Iterator[str]:
    """Writes what several pipelines have in common, for people."""
    if not found.equal:
        yield "no two pipelines have a stage in common; revisions of the same pipeline are not compared"
    for each in found.equal:
        yield from _equal_lines(each)
    for name in found.unknown:
        yield (
            f"not compared: {name}, which has not registered what its stages compute (an older "
            "version, or Python)"
        )


def _bytes(count: int | None) -> str:
    return "not known" if count is None else f"{count:,} bytes"


def _equal_lines(each: EqualStages) -> Iterator[str]:
    names = ", ".join(f"{copy.pipeline} (stage {copy.stage})" for copy in each.copies)
    yield f"source {each.source}: {names} {each.why}, by {', '.join(each.key) or 'nothing'}"
    if each.tables:
        yield f"  reads  {', '.join(each.tables)}"
    yield f"  keeps  {', '.join(f'{copy.pipeline} {_bytes(copy.state_bytes)}' for copy in each.copies)}"
    saved = _bytes(each.saved_bytes)
    yield f"  one pipeline with all of their views would keep it once, and save {saved} of state"
    if len({copy.emit for copy in each.copies}) > 1:
        emits = ", ".join(f"{copy.pipeline} {copy.emit}" for copy in each.copies)
        yield f"  emit   {emits}: one of them has to change"
    yield ""
