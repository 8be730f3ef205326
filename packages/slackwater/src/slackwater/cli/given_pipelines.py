"""The pipelines that a command is given, by folders, distributions or names, and their outputs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.command.boundary import options
from slackwater.command.invocation import Value, kafka_settings, required, setting
from slackwater.protocol import ConfigError, InputError
from slackwater.protocol.keys import names_in_topics
from slackwater.settings.errors import CommandConfigError, installing, unknown
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # a new pipeline needs no library of Kafka or a lake
    from slackwater.client import PipelineOutput
    from slackwater.outputs.lake.table import Lake
    from slackwater.outputs.search.server import SearchServer

ENTRY_POINTS = "slackwater.pipelines"
"""The group of entry points by which a distribution says which pipelines it has: name = module."""
NAMESPACE = "slackwater_pipelines"
"""The folder of a package below which each pipeline has its own: names of modules stay clear of others."""
_INSTALLED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(==(?P<version>[A-Za-z0-9.+!_-]+))?")


@dataclass(frozen=True, slots=True)
class InstalledPipeline:
    """A pipeline of a distribution that is installed."""

    name: str
    version: str
    """Of the distribution."""
    module: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def pipeline_folder(text: str) -> Path:
    """Returns the folder that is meant by DIR, or by NAME or NAME==VERSION of an installed pipeline.

    Raises:
        InputError: no such pipeline is installed, or another version of it.
    """
    path, found = Path(text), _INSTALLED.fullmatch(text)
    if path.exists() or found is None:
        return path
    return folder_of(found["name"], found["version"])


def folder_of(name: str, version: str | None) -> Path:
    """Returns the folder of an installed pipeline.

    Without a version, any one will do.

    Raises:
        InputError: it is not there, or in another version.
    """
    installed = list(installed_pipelines())
    found = [each for each in installed if each.name == name]
    wanted = name if version is None else f"{name}=={version}"
    if not found:
        there = ", ".join(map(str, installed)) or "none"
        raise InputError(
            f"there is neither a folder {name} here nor an installed pipeline of that name",
            f"installed pipelines: {there}; `slackwater new {name}` creates one; to install its wheel, put "
            f"it into DIST: {installing(wanted)}",
        )
    if len(found) > 1:
        raise InputError(f"several distributions contain a pipeline {name}", "uninstall all but one")
    if version not in (None, found[0].version):
        raise InputError(
            f"{wanted} is not installed, but {found[0]} is", f"put its wheel into DIST: {installing(wanted)}"
        )
    spec = find_spec(found[0].module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{found[0]} is installed without its folder, {found[0].module}", "reinstall it")
    return Path(next(iter(spec.submodule_search_locations)))


def installed_distribution(text: str) -> str | None:
    """Returns ``name==version`` of the distribution that has a pipeline; None: the text names a folder."""
    found = _INSTALLED.fullmatch(text)
    if Path(text).exists() or found is None:
        return None
    has = (each for each in entry_points(group=ENTRY_POINTS) if each.name == found["name"])
    return next((f"{each.dist.name}=={each.dist.version}" for each in has if each.dist is not None), None)


def installed_pipelines() -> Iterator[InstalledPipeline]:
    """Yields the pipelines of all installed distributions, each once, by name."""
    entries = entry_points(group=ENTRY_POINTS)
    found = {(each.name, each.dist.version if each.dist else "?", each.value) for each in entries}
    yield from (InstalledPipeline(*each) for each in sorted(found))


OF_A_PIPELINE = options(
    click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path)),
    click.option("--pipeline", metavar="NAME", help="The name of the pipeline, instead of its folder."),
    setting("kafka.bootstrap", "The brokers of the output."),
)
"""The options of commands that are about one pipeline; see :func:`pipeline_name`."""


def pipeline_name(folder: Path | None, name: str | None) -> str:
    """Returns the name of a pipeline that a command was given by its folder or by its name.

    Raises:
        CommandConfigError: by neither, or by both.
        InputError: there is neither such a folder nor such an installed pipeline.
        ConfigError: the folder cannot be read.
    """
    if (folder is None) == (name is None):
        raise CommandConfigError("no pipeline was specified", "specify either its folder or --pipeline")
    if folder is None:
        return name or ""
    from slackwater.pipeline import load_pipeline  # Spark's libraries take a second to import

    return load_pipeline(pipeline_folder(str(folder))).name


KINDS = ("kafka", "postgres", "delta", "iceberg")
"""The kinds of outputs that can be read, as pipeline.toml has them."""
INDEXES = "opensearch"
"""The kind of outputs that are only searched."""


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
        type=click.Choice((*KINDS, INDEXES)),
        metavar=f"[{'|'.join(KINDS)}]",
        default=KINDS[0],
        show_default=True,
        help="Kind of the outputs of each --pipeline; folders contain this information.",
    ),
    click.option(
        "--source", metavar="NAME", help="All pipelines that derive from this source, directly or in chains."
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
        hint = "specify folders, --pipeline NAME, or --source NAME"
        raise CommandConfigError("no pipeline was specified", hint)
    twice = {each.name for each in found if sum(other.name == each.name for other in found) > 1}
    if twice:
        raise CommandConfigError(f"pipeline {min(twice)!r} is specified twice", "specify it once")
    return found


def _of_folder(folder: Path) -> NamedPipeline:
    from slackwater.pipeline import load_pipeline  # Spark's libraries take a second to import

    definition = load_pipeline(pipeline_folder(str(folder)))
    kind = str(definition.outputs[0].kind)
    places = {each.view: each.name for each in definition.outputs}
    views = views_in_output(kind, places)
    return NamedPipeline(definition.name, kind, views, definition.scope == "strict")


def views_in_output(kind: str, places: Mapping[str, str]) -> dict[str, str]:
    """Returns by view the name by which the output knows it, given the topic or table of each view.

    A database's ledger knows tables by the views.
    """
    return {view: view for view in places} if kind == "postgres" else names_in_topics(places)


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
def open_outputs(settings: Settings, pipelines: Sequence[NamedPipeline]) -> "Iterator[list[PipelineOutput]]":
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
    """Refuses names that no pipeline has registered; allows all if it cannot be known who has."""
    from slackwater.control import known_runs
    from slackwater.cuts import PipelineLog, TopicUnavailableError

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


def _open(settings: Settings, pipeline: NamedPipeline) -> "PipelineOutput":
    """Opens an output; imports its library only then."""
    if pipeline.kind == "kafka":
        from slackwater.client import TopicOutput

        return TopicOutput(kafka_settings(settings, "where the output is"), pipeline.name)
    if pipeline.kind == "postgres":
        from slackwater.client.table_views import TableOutput

        return TableOutput(tables_url(settings, pipeline.name), pipeline.name)
    if pipeline.kind not in KINDS:
        raise InputError(
            f"pipeline {pipeline.name!r} writes search indexes, which are not read here",
            "search the aliases of its views; see docs/search-index.md",
        )
    from slackwater.client.lake_views import LakeOutput

    return LakeOutput(open_lake(settings, pipeline.kind, pipeline.name), pipeline.name)


def open_lake(settings: Settings, kind: str, pipeline: str) -> "Lake":
    """Returns the lake with a pipeline's tables.

    Raises:
        CommandConfigError: Nothing says where it is.
    """
    lake = settings.delta if kind == "delta" else settings.iceberg
    path = "delta.location" if kind == "delta" else "iceberg.catalog"
    placed = _located(lake if lake.place else None, path, pipeline)
    if kind == "delta":
        from slackwater.outputs.lake.delta import DeltaLake

        return DeltaLake(placed)
    from slackwater.outputs.lake.iceberg import IcebergLake

    return IcebergLake(placed)


def open_cluster(settings: Settings, pipeline: str) -> "SearchServer":
    """Returns the search cluster with a pipeline's indexes.

    Raises:
        CommandConfigError: Nothing says where it is.
    """
    from slackwater.outputs.search.server import SearchServer

    _located(settings.opensearch.url, "opensearch.url", pipeline)
    return SearchServer(settings.opensearch)


def tables_url(settings: Settings, pipeline: str) -> str:
    """Returns the address of the database with a pipeline's tables, as libpq takes it, with the password.

    Raises:
        CommandConfigError: Nothing says where it is.
    """
    from psycopg.conninfo import make_conninfo

    server = _located(settings.postgres.output(), "postgres.output_url", pipeline)
    return make_conninfo(server.url, password=server.password)


def _located(place: Value | None, path: str, pipeline: str) -> Value:
    return required(place, path, f"where the output of {pipeline} is")
