"""``slackwater new``."""

from importlib.metadata import version
from pathlib import Path

import click

from slackwater.cli.new_pipeline import pipeline_files
from slackwater.command.invocation import search_path_lines, setting, start_command
from slackwater.command.output import Output
from slackwater.protocol import InputError


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: name of the folder]")
@setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.  [default: inv]")
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
    files = pipeline_files(name, source, version("slackwater"))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        output.line(f"{folder / path}")
    output.line()
    output.line(f"next: slackwater test {folder}")
    for line in search_path_lines():
        output.line(line)
