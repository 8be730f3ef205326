"""Opens the outputs of pipelines that a command was given by their folders or by their names."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.cli.pipeline_folders import pipeline_folder
from slackwater.client import PipelineOutput, TopicOutput
from slackwater.command.boundary import options
from slackwater.command.invocation import kafka_settings, setting
from slackwater.control import known_runs
from slackwater.cuts import PipelineLog, TopicUnavailableError
from slackwater.protocol import ConfigError, LakeSettings
from slackwater.settings.errors import CommandConfigError, unknown
from slackwater.settings.model import Settings

if TYPE_CHECKING:
    from slackwater.outputs.lake.table import Lake

KINDS = ("kafka", "postgres", "delta", "iceberg")
"""The kinds of outputs, as pipeline.toml has them."""


@dataclass(frozen=True, slots=True)
class NamedPipeline:
    """A pipeline whose outputs are to be read."""

    name: str
    """As written in the output."""
    kind: str
    """Of its outputs."""
    views: Mapping[str, str] = field(default_factory=dict)
    """By view the name by which its output is read, if the folder was given."""
    is_of_one_commit: bool = True
    """False: it has scope ``aggregate``, as its folder says. Of a name alone that is not known."""


pipelines_to_read = options(
    click.argument("folders", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path)),
    click.option(
        "--pipeline",
        "names",
        metavar="NAME",
        multiple=True,
        help="A pipeline's name, in place of its folder; may be repeated.",
    ),
    click.option(
        "--kind",
        type=click.Choice(KINDS),
        default=KINDS[0],
        show_default=True,
        help="Kind of the outputs of each --pipeline; folders contain this information.",
    ),
    setting("kafka.bootstrap", "The brokers of the outputs."),
    setting("timeline", "Of the LSN that is asked for.  [default: 1]"),
)
"""The arguments and options that say which pipelines, and where their outputs are."""


def named_pipelines(folders: Sequence[Path], names: Sequence[str], kind: str) -> list[NamedPipeline]:
    """Returns the pipelines that a command was given.

    Raises:
        CommandConfigError: None was given, or one twice.
        InputError: A name is neither a folder nor an installed pipeline.
        ConfigError: A folder cannot be read.
    """
    found = [*map(_of_folder, folders), *(NamedPipeline(name, kind) for name in names)]
    if not found:
        raise CommandConfigError("no pipeline was specified", "specify folders, or --pipeline NAME")
    twice = {each.name for each in found if sum(other.name == each.name for other in found) > 1}
    if twice:
        raise CommandConfigError(f"pipeline {min(twice)!r} is specified twice", "specify it once")
    return found


def _of_folder(folder: Path) -> NamedPipeline:
    from slackwater.pipeline import load_pipeline  # Spark's libraries take a second to import

    definition = load_pipeline(pipeline_folder(str(folder)))
    kind = str(definition.outputs[0].kind)
    # A database's ledger knows tables by the views, everything else by the output's own name.
    views = {each.view: each.view if kind == "postgres" else each.name for each in definition.outputs}
    return NamedPipeline(definition.name, kind, views, definition.scope == "strict")


def names_in_outputs(views: Sequence[str], pipelines: Sequence[NamedPipeline]) -> list[str]:
    """Returns the names by which outputs know views; what no folder has is taken for such a name.

    Raises:
        CommandConfigError: Several of the pipelines have such a view.
    """
    found = []
    for view in views:
        names = sorted({each.views[view] for each in pipelines if view in each.views} - {view})
        if len(names) > 1:
            hint = f"use the name of the output: {', '.join(names)}"
            raise CommandConfigError(f"several pipelines have a view {view!r}", hint)
        found.append(names[0] if names else view)
    return found


@contextmanager
def open_outputs(settings: Settings, pipelines: Sequence[NamedPipeline]) -> Iterator[list[PipelineOutput]]:
    """Opens the outputs of pipelines, in their order.

    Raises:
        CommandConfigError: Nothing says where they are.
        UnavailableError: A server does not answer.
        InputError: What is done with them fails, and nobody has registered a pipeline of such a name.
        NotVisibleError: What is done with them asks for a commit that is not visible.
    """
    with ExitStack() as opened:
        try:
            yield [opened.enter_context(closing(_open(settings, each))) for each in pipelines]
        except CommandConfigError:
            raise
        except ConfigError:
            _check_names(settings, [each.name for each in pipelines if not each.views])
            raise


def _check_names(settings: Settings, names: Sequence[str]) -> None:
    """Refuses names that no pipeline has registered; allows all if it cannot be known who has.

    Raises:
        InputError: A name is probably another one.
    """
    if settings.kafka.bootstrap is None:
        return
    try:
        kafka = kafka_settings(settings, "where pipelines register")
        with closing(PipelineLog(kafka)) as log:
            known = {run.registration.pipeline for run in known_runs(log.read())}
    except TopicUnavailableError:
        return
    for name in names:
        if known and name not in known:
            raise unknown("pipeline", name, known, "the name includes the revision, as in orders.v2")


def _open(settings: Settings, pipeline: NamedPipeline) -> PipelineOutput:
    """Opens an output; imports its library only then."""
    if pipeline.kind == "kafka":
        return TopicOutput(kafka_settings(settings, "where the output is"), pipeline.name)
    if pipeline.kind == "postgres":
        return _open_tables(settings, pipeline.name)
    from slackwater.client.lake_views import LakeOutput

    return LakeOutput(open_lake(settings, pipeline.kind, pipeline.name), pipeline.name)


def open_lake(settings: Settings, kind: str, pipeline: str) -> "Lake":
    """Returns the lake with a pipeline's tables.

    Args:
        settings: Say where it is.
        kind: ``delta`` or ``iceberg``.
        pipeline: For the error.

    Raises:
        CommandConfigError: Nothing says where it is.
    """
    if kind == "delta":
        from slackwater.outputs.lake.delta import DeltaLake

        return DeltaLake(_lake(settings.delta, "delta.location", pipeline))
    from slackwater.outputs.lake.iceberg import IcebergLake

    return IcebergLake(_lake(settings.iceberg, "iceberg.catalog", pipeline))


def _open_tables(settings: Settings, pipeline: str) -> PipelineOutput:
    from slackwater.client.table_views import TableOutput

    return TableOutput(tables_url(settings, pipeline), pipeline)


def tables_url(settings: Settings, pipeline: str) -> str:
    """Returns the address of the database with a pipeline's tables, as libpq takes it, with the password.

    Raises:
        CommandConfigError: Nothing says where it is.
    """
    from psycopg.conninfo import make_conninfo

    server = settings.postgres.output()
    if server is None:
        raise _nowhere("postgres.output_url", pipeline)
    return make_conninfo(server.url, password=server.password)


def _lake(lake: LakeSettings, path: str, pipeline: str) -> LakeSettings:
    if not lake.place:
        raise _nowhere(path, pipeline)
    return lake


def _nowhere(path: str, pipeline: str) -> CommandConfigError:
    section, _, key = path.partition(".")
    variable = f"SLACKWATER_{section}_{key}".upper()
    hint = f"set {variable}, or write `{key} = …` under [{section}] in slackwater.toml"
    return CommandConfigError(f"missing setting {path} (where the output of {pipeline} is)", hint)
