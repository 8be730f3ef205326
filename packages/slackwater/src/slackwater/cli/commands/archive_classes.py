"""``slackwater archive-classes``."""

import os

import click

from slackwater.command.invocation import start_command
from slackwater.command.output import Output
from slackwater.protocol import InputError


@click.command("archive-classes")
@click.pass_context
def archive_classes(ctx: click.Context) -> None:
    """Halve the CPU time that pipelines on this machine need to start.

    Starts Spark once and stores the classes that Java loaded (180 MB) in slackwater/spark in the user's cache
    folder. This takes up to a minute. From then on, `slackwater run` with a local master uses them until
    Spark or Java is replaced. Then run this command again. It does nothing if the classes are already stored.
    Set `run.class_archive = false` to run without them.

    \b
    Example, when you build an image: run it as the user that will run the pipeline
      slackwater archive-classes
    """
    from slackwater.pipeline import default_class_archives, make_class_archive

    start_command(ctx)
    archives = default_class_archives(os.environ)
    if archives is None:
        problem = "this account has no home folder, and neither SLACKWATER_CACHE nor XDG_CACHE_HOME is set"
        raise InputError(f"the archive of Spark's classes could not be created: {problem}")
    Output().line(str(make_class_archive(archives)))
