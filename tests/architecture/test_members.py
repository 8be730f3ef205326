"""The rules of the repository that no other tool checks."""

import re
import tomllib
from pathlib import Path

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


def test_every_member_has_a_place_in_the_layers() -> None:
    layers = SETTINGS["tool"]["importlinter"]["contracts"][0]["layers"]
    assert {name.strip() for layer in layers for name in layer.split("|")} == modules()


def test_every_member_is_installed_by_the_bootstrap() -> None:
    text = (ROOT / "infra/bootstrap/bootstrap.py").read_text()
    listed = set(re.findall(r'^    "([a-z/]+)",$', text, re.MULTILINE))
    assert listed == {str(member.relative_to(ROOT)) for member in MEMBERS}


def test_every_member_has_a_readme_and_types() -> None:
    for member in MEMBERS:
        assert (member / "README.md").exists(), member
        assert list((member / "src").glob("*/py.typed")), member


def test_init_modules_only_re_export() -> None:
    for member in MEMBERS:
        for path in (member / "src").glob("**/__init__.py"):
            assert not re.search(r"^(def|class) ", path.read_text(), re.MULTILINE), path


def test_no_module_is_too_long_to_read() -> None:
    for member in MEMBERS:
        for path in (member / "src").glob("**/*.py"):
            assert len(path.read_text().splitlines()) <= 600, path
