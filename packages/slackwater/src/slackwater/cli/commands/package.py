"""``slackwater new`` and ``package``: a pipeline as a Python project, and packed with its environment."""

import gzip
import io
import re
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from importlib.resources import files
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any, Final

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slackwater.cli.given_pipelines import ENTRY_POINTS, NAMESPACE, installed_distribution, pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.command.invocation import search_path_lines, setting
from slackwater.command.output import Output
from slackwater.protocol import InputError
from slackwater.settings.errors import installing
from slackwater.settings.model import Settings

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
    script = Path(sysconfig.get_path("scripts"), "slackwater-run.py")
    output.line(
        f"next: spark-submit --archives {target}#{ENVIRONMENT} "
        f"--conf spark.pyspark.python=./{ENVIRONMENT}/{PYTHON} "
        f"--conf spark.pyspark.driver.python={sys.executable} {script} {pipeline} ..."
    )


PYTHON: Final = "bin/python"
"""The program in an archive that Spark starts as Python."""

_LIBRARIES: Final = "lib"
_SPARK: Final = frozenset({"pyspark", "py4j"})
_LEFT_OUT: Final = frozenset({"__pycache__", ".git"})
_PIPELINE_FILES: Final = ("pipeline.toml", "*.sql", "views/**/*", "*.py")
_COMPRESSION_LEVEL: Final = 1  # twice as fast as the default, and hardly larger

_LAUNCHER: Final = """\
#!/bin/sh
# Python {version} of this machine, with the libraries beside this file before those that are installed.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/{libraries}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec python{version} "$@"
"""


@dataclass(frozen=True, slots=True)
class Project:
    """What the ``pyproject.toml`` of a pipeline's folder says."""

    name: str
    version: str
    dependencies: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of an archive."""

    name: str
    content: Path | bytes
    mode: int = 0o644


def read_project(folder: Path) -> Project | None:
    """Returns what makes a package of a pipeline's folder; None if it is none.

    Raises:
        InputError: ``pyproject.toml`` cannot be read, or has neither name nor version.
    """
    path = folder / "pyproject.toml"
    try:
        project: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        dependencies = tuple(map(Requirement, project.get("dependencies", ())))
        return Project(project["name"], project["version"], dependencies)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        problem = f"{path} cannot be used: {type(error).__name__}: {error}"
        raise InputError(problem, "it needs [project] with name and version") from error


def required_distributions(roots: Iterable[Requirement]) -> dict[str, Distribution]:
    """Returns the installed distributions that some requirements need, by name, but for Spark's.

    Raises:
        InputError: one of them is not installed, or in another version.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, "what is packed") for root in roots]
    while waiting:
        requirement, by = waiting.pop()
        name = canonicalize_name(requirement.name)
        place = name, frozenset(requirement.extras)
        if name in _SPARK or place in seen:
            continue
        seen.add(place)
        found[name] = installed = _installed(requirement, by)
        for text in installed.requires or ():
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append((needed, name))
    return dict(sorted(found.items()))


def write_archive(
    target: Path, folder: Path, project: Project | None, distributions: Mapping[str, Distribution]
) -> int:
    """Writes an archive; the same installation and pipeline give the same bytes. Returns its size.

    Without a project, the pipeline is not packed.

    Raises:
        OSError: The file cannot be written, or something installed cannot be read.
    """
    files = {file.name: file for file in _files(folder, project, distributions)}
    draft = target.with_name(f"{target.name}.part")
    with (
        draft.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in sorted(files.items()):
            content = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), file.mode
            archive.addfile(entry, io.BytesIO(content))
    draft.rename(target)
    return target.stat().st_size


def _installed(requirement: Requirement, by: str) -> Distribution:
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError as error:
        problem = f"{requirement.name} is not installed here, and {by} requires it"
        raise InputError(problem, installing(str(requirement))) from error
    if not requirement.specifier.contains(found.version, prereleases=True):
        problem = f"{requirement.name} {found.version} is installed here, {by} requires {requirement}"
        raise InputError(problem, installing(str(requirement)))
    return found


def _files(
    folder: Path, project: Project | None, distributions: Mapping[str, Distribution]
) -> Iterator[_File]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    launcher = _LAUNCHER.format(version=version, libraries=_LIBRARIES)
    yield _File(PYTHON, launcher.encode(), 0o755)
    for installed in distributions.values():
        yield from _distribution_files(installed)
    if project is not None:
        yield from _pipeline_files(folder, project)


def _distribution_files(installed: Distribution) -> Iterator[_File]:
    """Yields the modules of a distribution, also if it is installed as a link to its sources."""
    for path in installed.files or ():
        place = Path(str(installed.locate_file(path)))
        if ".." in path.parts or _LEFT_OUT & set(path.parts):
            continue
        if path.suffix == ".pth":
            yield from _linked_files(place)
        elif place.is_file():
            yield _File(f"{_LIBRARIES}/{PurePosixPath(path)}", place)


def _linked_files(link: Path) -> Iterator[_File]:
    for line in link.read_text(encoding="utf-8").splitlines():
        root = Path(line)
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            if path.is_file() and not _LEFT_OUT & set(path.parts):
                yield _File(f"{_LIBRARIES}/{path.relative_to(root).as_posix()}", path)


def _pipeline_files(folder: Path, project: Project) -> Iterator[_File]:
    """Yields the pipeline's files where its wheel would have them, and what makes a package of them."""
    module = canonicalize_name(project.name).replace("-", "_")
    for pattern in _PIPELINE_FILES:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not _LEFT_OUT & set(path.parts):
                inner = path.relative_to(folder).as_posix()
                yield _File(f"{_LIBRARIES}/{NAMESPACE}/{module}/{inner}", path)
    info = f"{_LIBRARIES}/{module}-{project.version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n"
    yield _File(f"{info}/METADATA", metadata.encode())
    entry = f"[{ENTRY_POINTS}]\n{project.name} = {NAMESPACE}.{module}\n"
    yield _File(f"{info}/entry_points.txt", entry.encode())


@settings_command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: name of the folder]")
@setting("source", "The connector's topic.prefix.  [default: inv]")
def new(settings: Settings, folder: Path, name: str | None) -> None:
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
    output = Output()
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
