"""``slackwater share``."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import read_topology
from slackwater.command.invocation import YES, setting
from slackwater.command.output import Output
from slackwater.control import PipelineNode, Topology
from slackwater.protocol import InputError
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline.definition import PipelineDefinition
    from slackwater.pipeline.joint import Parts


@settings_command()
@click.argument("pipelines", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="The folder to write; its name becomes that of the new pipeline.",
)
@click.option(
    "--emit",
    type=click.Choice(["transactions"]),
    help="Join also pipelines with emit = latest; their readers then get every commit.",
)
@setting("kafka.bootstrap", "The brokers of the pipelines.")
@YES
def share(settings: Settings, pipelines: tuple[str, ...], into: Path, emit: str | None, yes: bool) -> int:
    """Write a pipeline that keeps once what several pipelines of a source have in common.

    It has the views of all of them, and one pipeline computes and keeps equal stages once. It is the next
    revision of each of them: you start it beside them, and `slackwater revise` compares, and switches readers
    to it and back. Nothing changes for the pipelines. DIR is the folder of one as it runs, or NAME or
    NAME==VERSION of an installed one.

    Shows what is kept once, what this saves, and what readers will read, and asks before it writes. If the
    folder exists, the command only compares, and fails if the pipelines have changed since it was written.

    \b
    Examples:
      slackwater share pipelines/left pipelines/right --into pipelines/both
      slackwater share revenue==1.2.0 pipelines/stock --into pipelines/shop --yes

    For details see docs/sharing-state.md.
    """
    from slackwater.outputs.contract import Emit
    from slackwater.pipeline.folder import load_pipeline
    from slackwater.pipeline.joint import changed_files, check_joined, joined_files, write_folder
    from slackwater.pipeline.toml_table import read_labels

    parts = {folder: load_pipeline(folder) for folder in map(pipeline_folder, pipelines)}
    topology, output, name = read_topology(settings), Output(), into.resolve().name
    nodes = [_registered(topology, *part) for part in parts.items()]
    names = {each.base_name for each in parts.values()}
    known = [node.revision for node in topology.pipelines if not names.isdisjoint(node.base_names)]
    revision = read_labels(into).revision if into.exists() else max(known) + 1
    files = joined_files(parts, name, revision, Emit(emit) if emit else None)
    if into.exists():
        changed = changed_files(into, files)
        output.lines(f"changed: {into / each}" for each in changed)
        output.line(f"{into} has {'no longer ' if changed else ''}the views of {', '.join(pipelines)}")
        return int(bool(changed))
    with TemporaryDirectory() as folder:
        write_folder(Path(folder, name), files)
        joint = load_pipeline(Path(folder, name))
    output.lines(_plan(nodes, joint, parts, check_joined(joint, parts)))
    if not yes:
        if not sys.stdin.isatty():
            output.line("nothing was written; --yes writes it")
            return 0
        click.confirm(f"write {into}?", abort=True)
    write_folder(into, files)
    output.line(
        f"written: {into}; start it beside the others, then `slackwater revise rollout` moves readers"
    )
    return 0


def _registered(topology: Topology, folder: Path, definition: "PipelineDefinition") -> PipelineNode:
    """Returns a pipeline as it runs, which must be as in its folder."""
    found = next((each for each in topology.pipelines if each.name == definition.name), None)
    if found is None:
        raise unknown(
            "pipeline", definition.name, (each.name for each in topology.pipelines), "start it first"
        )
    runs = (found.source, found.emit, [each.identity for each in found.stages])
    if runs != (definition.source, definition.emit, [each.identity for each in definition.plan.stages]):
        raise InputError(f"{folder} is not {found.name} as it runs", "name its folder as it was started")
    return found


def _plan(
    nodes: Sequence[PipelineNode], joint: "PipelineDefinition", parts: "Parts", saved: int
) -> Iterator[str]:
    from slackwater.pipeline.explain import explain, shared_lines

    kept = (
        (node.state_bytes.get(str(each.number), 0), each.identity) for node in nodes for each in node.stages
    )
    sizes = {identity: size for size, identity in sorted(kept, reverse=True)}  # the smallest one is saved
    known = {stage.number: sizes[stage.identity] for stage in joint.plan.stages if stage.identity in sizes}
    names = ", ".join(each.base_name for each in parts.values())
    yield f"{joint.name}: revision {joint.revision} of {names}; {saved} stages fewer keep state"
    yield from shared_lines(explain(joint, with_sql=False, state_bytes=known))
    now = ", ".join(f"{node.name} {sum(node.state_bytes.values()):,} bytes" for node in nodes)
    yield f"state now  {now}, before compression; kept until the pipelines are retired"
    yield f"to read    {', '.join(sorted(joint.input_topics))}, from the beginning, or copied states"
    places = {output.view: output.name for output in joint.outputs}
    for part in parts.values():
        every = "" if part.emit is joint.emit else ", and every commit, not only the end of each batch"
        for each in part.outputs:
            place = f"{places[each.view]}, now {each.name}{every}"
            yield f"readers    view {each.view} of {part.base_name}: {place}"
