"""Commands of extras that are not installed say which one is needed."""

import re
import sys
from collections.abc import Callable
from importlib.metadata import requires

import pytest

from slackwater.cli.main import EXTRAS, run

PARTS = (
    "slackwater.cli.commands.",
    "slackwater.api",
    "slackwater.dev",
    "slackwater.pipeline",
    "slackwater.outputs",
)
"""What is imported again, because it imports what is missing."""


class Absence:
    """Finds everything but some packages."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def forget(what: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets modules be imported again until the test ends; then everything is as it was."""
    for name, module in [(name, module) for name, module in sys.modules.items() if what(name)]:
        parent, _, child = name.rpartition(".")
        if hasattr(sys.modules.get(parent), child):
            monkeypatch.setattr(sys.modules[parent], child, module)
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["dev", "status"], "psutil", "slackwater[dev]"),
        (["demo"], "slackwater_lab", "slackwater-lab"),
        (["run", "anything", "--checkpoint", "c"], "pyspark", "slackwater[spark]"),
        (["certify", "--help"], "slackwater_certify", "slackwater[certify]"),
        (["indoubt", "--help"], "slackwater_messaging", "slackwater[messaging]"),
    ],
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    package: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forget(lambda name: name.partition(".")[0] == package or name.startswith(PARTS), monkeypatch)
    monkeypatch.setattr(sys, "meta_path", [Absence(package), *sys.meta_path])

    assert run(arguments) == 2

    assert extra in capsys.readouterr().err


def test_what_the_demo_needs_is_named_also_if_extras_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ("slackwater_certify", "slackwater_lab")
    parts = ("slackwater.cli.commands.", *missing)
    forget(lambda name: name.startswith(parts), monkeypatch)
    monkeypatch.setattr(sys, "meta_path", [Absence(*missing), *sys.meta_path])
    assert run(["demo"]) == 2
    assert "slackwater-lab" in capsys.readouterr().err


def module_of(distribution: str) -> str:
    """What is imported of a distribution, or its first part."""
    special = {"protobuf": "google", "pyyaml": "yaml"}
    if distribution.startswith("opentelemetry-"):
        return "opentelemetry"
    return special.get(distribution, distribution.replace("-", "_"))


def requirements() -> dict[str, list[str]]:
    """What each extra of the command brings by itself; that of no extra is under an empty name."""
    found: dict[str, list[str]] = {"": []}
    for line in requires("slackwater") or []:
        name = re.split(r"[^a-z0-9-]", line)[0]
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        found.setdefault(extra[1] if extra else "", []).append(name)
    return found


def test_the_package_itself_needs_no_spark_no_stack_and_no_tests() -> None:
    heavy = {"pyspark", "duckdb", "pyarrow", "slackwater-certify", "psutil", "slackwater-lab", "psycopg"}
    assert heavy & set(requirements()[""]) == set()


def test_what_a_command_may_miss_comes_with_the_extra_that_is_named() -> None:
    brought = {extra: set(map(module_of, names)) for extra, names in requirements().items()}
    assert EXTRAS["slackwater_lab"] == "slackwater-lab"  # no extra: it is a distribution of its own
    for module, words in EXTRAS.items() - {("slackwater_lab", "slackwater-lab")}:
        assert module in brought[words.removeprefix("slackwater[").removesuffix("]")], module


def test_everything_that_only_extras_bring_is_named() -> None:
    brought = requirements()
    own = {name for extra, names in brought.items() if extra for name in names} - set(brought[""])
    assert set(map(module_of, own - {"slackwater", "requests"})) | {"slackwater_lab"} == set(EXTRAS)
