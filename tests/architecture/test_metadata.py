"""What each member says of itself: version, licence, description, and what it needs."""

import importlib
import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(
    path.parent for path in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("*/pyproject.toml")]
)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
members = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def requirements(folder: Path) -> list[Requirement]:
    table = project(folder)
    extras = table.get("optional-dependencies", {}).values()
    return [
        Requirement(text) for text in [*table["dependencies"], *(text for extra in extras for text in extra)]
    ]


def locked() -> dict[str, set[Version]]:
    """Versions of each library in the lock; some differ by version of Python."""
    found: dict[str, set[Version]] = {}
    for name, version in re.findall(
        r"^([a-z0-9-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    ):
        found.setdefault(name, set()).add(Version(version))
    return found


def is_member(requirement: Requirement) -> bool:
    return requirement.name in {project(folder)["name"] for folder in FOLDERS}


@members
def test_a_member_has_the_version_of_the_repository(folder: Path) -> None:
    assert project(folder)["version"] == VERSION
    assert metadata(project(folder)["name"])["Version"] == VERSION
    for module in (folder / "src").iterdir():
        if (module / "__init__.py").exists():
            assert importlib.import_module(module.name).__version__ == VERSION


@members
def test_a_member_needs_others_of_exactly_its_version(folder: Path) -> None:
    assert {str(each.specifier) for each in requirements(folder) if is_member(each)} <= {f"=={VERSION}"}


@members
def test_a_library_has_a_lowest_and_a_highest_version_and_the_lock_is_between(folder: Path) -> None:
    versions = locked()
    for each in requirements(folder):
        if is_member(each):
            continue
        assert sorted(bound.operator for bound in each.specifier) == ["<", ">="], each
        assert all(each.specifier.contains(version) for version in versions[each.name]), each


def test_all_members_have_the_same_bounds_for_a_library() -> None:
    bounds: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for each in requirements(folder):
            bounds.setdefault(each.name, set()).add(str(each.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


@members
def test_a_member_says_what_it_is_and_under_which_licence(folder: Path) -> None:
    table = project(folder)
    assert table["license"] == "Apache-2.0"
    assert table["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / table["readme"]).read_text().startswith("# ")
    assert table["description"].endswith(".")
    assert table["requires-python"] == ">=3.11"
    assert "Typing :: Typed" in table["classifiers"]


def test_every_library_of_a_member_is_named_for_the_lock() -> None:
    named = {
        Requirement(line).name
        for line in (ROOT / "requirements.in").read_text().splitlines()
        if line and line[0] != "#"
    }
    needed = {each.name for folder in FOLDERS for each in requirements(folder) if not is_member(each)}
    assert needed - named == {"py4j"}  # pyspark pins it


def test_every_command_that_installs_a_package_says_where_its_wheel_is() -> None:
    """No package index has the project: without the folder, pip would look for a stranger's package."""
    shown = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    shown += [ROOT / "requirements.in", *ROOT.glob("packages/*/README.md"), *ROOT.glob("infra/**/*.md")]
    for folder in FOLDERS:
        shown += [
            path for path in (folder / "src").rglob("*") if path.suffix in {".py", ".html", ".js", ".md"}
        ]
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in shown
        for line in path.read_text().splitlines()
        if re.search(r"\b(pip3?|pipx|uv|uvx) (install|add|run --with)\b(?! build pytest)", line)
    ]
    assert len(lines) >= 8, "the commands have been found"
    assert [line for line in lines if "install --find-links " not in line] == []
