"""``slackwater archive-classes``."""

import os

import click

from slackwater_command.errors import CommandInputError
from slackwater_command.invocation import start_command
from slackwater_command.output import Output


@click.command("archive-classes")
@click.pass_context
def archive_classes(ctx: click.Context) -> None:
    """Make pipelines on this machine start in half the CPU time.

    Starts Spark once and keeps the classes that Java loaded, 180 MB, in slackwater/spark in the user's cache
    folder; takes up to a minute. `slackwater run` with a local master uses them from then on, until Spark or
    Java is replaced: then run this again. Does nothing if they are there. `run.class_archive = false` has a
    run do without.

    \b
    Example, for an image: as the account that will run the pipeline
      slackwater archive-classes
    """
    from slackwater_spark.pipeline import default_class_archives, make_class_archive

    start_command(ctx)
    archives = default_class_archives(os.environ)
    if archives is None:
        problem = "this account has no home folder, and neither SLACKWATER_CACHE nor XDG_CACHE_HOME is set"
        raise CommandInputError(f"no archive of Spark's classes could be made: {problem}")
    Output().line(str(make_class_archive(archives)))
