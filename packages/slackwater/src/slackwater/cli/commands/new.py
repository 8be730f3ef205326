"""``slackwater new``."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from slackwater.cli.given_pipelines import ENTRY_POINTS, NAMESPACE
from slackwater.command.invocation import search_path_lines, setting, start_command
from slackwater.command.output import Output
from slackwater.protocol import InputError


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: name of the folder]")
@setting("source", "The connector's topic.prefix.  [default: inv]")
@click.pass_context
def new(ctx: click.Context, folder: Path, name: str | None) -> None:
    """Create a working pipeline in DIR, with a view, its tests and the files of a Python package.

    Replace the example with your own tables in schema.sql (`slackwater schema pull` generates them) and your
    own views in views/. `slackwater test DIR` checks at any time whether the views pass the tests in tests/.

    DIR is also a Python project. You can build a wheel from it, install it like any other package, and run
    the pipeline by name and version. Needs no server. Nothing is overwritten: DIR must be new or empty.

    \b
    Example:
      slackwater new revenue
      slackwater test revenue

    For details see docs/packages.md.
    """
    settings, output = start_command(ctx), Output()
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty", "choose a folder that does not exist yet")
    name, source = name or folder.resolve().name, settings.source or "inv"
    if name == source:
        reason = (
            f"a pipeline named like its source {source!r} would write topics that are named like its tables"
        )
        raise InputError(reason, "give it another name with --name")
    for path, text in pipeline_files(name, source, version("slackwater")).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        output.line(f"{folder / path}")
    output.line()
    output.line(f"next: slackwater test {folder}")
    output.lines(search_path_lines())


_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def pipeline_files(name: str, source: str, version: str) -> Mapping[str, str]:
    """Returns the text of each file, by its path in the folder.

    The version is the oldest one of Slackwater that the package is for.

    Raises:
        InputError: the name is not one that a distribution may have.
    """
    if not _NAME.fullmatch(name):
        hint = (
            "expected lower case letters and digits, with '-' or '_' between them; use --name for "
            "another name"
        )
        raise InputError(f"{name!r} is not a valid name of a pipeline", hint)
    module = name.replace("-", "_")
    values = {
        "name": name,
        "module": module,
        "package": f"{NAMESPACE}/{module}",
        "entry": f"{NAMESPACE}.{module}",
        "group": ENTRY_POINTS,
        "source": source,
        "version": version,
    }
    _, *parts = (files("slackwater.cli") / "new_pipeline.txt").read_text("utf-8").split(">>> ")
    paths = (part.partition("\n") for part in parts)
    return {path: Template(text).substitute(values) for path, _, text in paths}
