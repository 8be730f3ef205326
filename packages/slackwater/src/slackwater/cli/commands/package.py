"""``slackwater package``."""

import sys
import sysconfig
from pathlib import Path

import click
from packaging.requirements import Requirement

from slackwater.cli.executor_archive import PYTHON, read_project, required_distributions, write_archive
from slackwater.cli.pipeline_folders import installed_distribution, pipeline_folder
from slackwater.command.output import Output
from slackwater.protocol import InputError

ENVIRONMENT = "environment"
"""The folder in which executors find what is packed."""
_SUFFIX = ".tar.gz"
_MEBIBYTE = 1 << 20


@click.command()
@click.argument("pipeline", metavar="DIR")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The archive to write, a {_SUFFIX}.",
)
@click.option(
    "--extra",
    "extras",
    multiple=True,
    metavar="NAME",
    help="An extra of slackwater to pack beside spark, such as lake; for drivers that run from the archive.",
)
def package(pipeline: str, target: Path, extras: tuple[str, ...]) -> None:
    """Pack the Python environment that executors need for the pipeline in DIR into one file.

    The file contains Slackwater, the pipeline and their dependencies, in exactly the versions that are
    installed here, and `bin/python`, which starts the machine's Python with them. Spark ships it to each
    executor, where only Java, Spark and the same minor version of Python have to be installed. Compiled
    libraries are packed as they are, so executors need the same platform.

    Instead of a folder DIR may be NAME or NAME==VERSION of a pipeline that is installed as a package. A
    folder with a pyproject.toml is packed as that package, in the version that it names there; its
    dependencies must be installed here.

    \b
    Examples:
      slackwater package revenue -o revenue.tar.gz
      spark-submit --master spark://spark:7077 --archives revenue.tar.gz#environment \\
          --conf spark.pyspark.python=./environment/bin/python \\
          --conf spark.pyspark.driver.python="$(command -v python)" \\
          "$(command -v slackwater-run.py)" revenue --checkpoint s3a://state/revenue

    Read on in docs/spark.md.
    """
    if not target.name.endswith(_SUFFIX):
        raise InputError(f"{target} is no {_SUFFIX}", "Spark takes an archive by the end of its name")
    output, folder = Output(), pipeline_folder(pipeline)
    if not (folder / "pipeline.toml").is_file():
        raise InputError(f"{folder} has no pipeline.toml", "name the folder of a pipeline")
    project = read_project(folder)
    roots = [Requirement(f"slackwater[{','.join(sorted({'spark', *extras}))}]")]
    installed = installed_distribution(pipeline)
    if project is not None:
        roots += project.dependencies
    elif installed is not None:
        roots.append(Requirement(installed))
    distributions = required_distributions(roots)
    try:
        size = write_archive(target, folder, project, distributions)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error}") from error
    named = f"{project.name}=={project.version}" if project else installed or "no pipeline"
    output.line(f"{target}: {named} and {len(distributions)} distributions, {size / _MEBIBYTE:,.0f} MiB")
    if named == "no pipeline":
        output.line(
            f"{folder} has no pyproject.toml; drivers that run from the archive have to bring it along"
        )
    output.line(
        f"next: spark-submit --archives {target}#{ENVIRONMENT} "
        f"--conf spark.pyspark.python=./{ENVIRONMENT}/{PYTHON} "
        f"--conf spark.pyspark.driver.python={sys.executable} {_script()} {pipeline} ..."
    )


def _script() -> Path:
    """Returns where ``slackwater-run.py`` is installed."""
    return Path(sysconfig.get_path("scripts"), "slackwater-run.py")
