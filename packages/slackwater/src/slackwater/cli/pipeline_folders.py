"""Finds the pipeline that a command is given: a folder, or an installed distribution."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from slackwater.protocol import InputError
from slackwater.settings.errors import installing

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

    Args:
        name: By which its distribution announces it.
        version: The one that it must have; None: any.

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
    found = {(each.name, each.value, _version(each)) for each in entry_points(group=ENTRY_POINTS)}
    for name, module, version in sorted(found):
        yield InstalledPipeline(name, version, module)


def _version(entry: EntryPoint) -> str:
    return entry.dist.version if entry.dist is not None else "?"
