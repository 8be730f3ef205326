"""Commands of extras that are not installed say which one is needed."""

import re
import sys
from importlib.metadata import metadata, requires

import pytest

from slackwater.main import EXTRAS, run

SERVERS = ["--bootstrap", "127.0.0.1:1", "--redis-url", "redis://127.0.0.1:1"]


class Absence:
    """Finds everything but some packages."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["dev", "status"], "slackwater_devstack", "slackwater[dev]"),
        (["demo"], "slackwater_testing", "slackwater[demo]"),
        (["run", "anything", "--checkpoint", "c"], "slackwater_spark", "slackwater[spark]"),
        (["certify", "--help"], "slackwater_certify", "slackwater[certify]"),
        (
            ["sidecar", "--source", "inv", *SERVERS, "--control", "127.0.0.1:0"],
            "uvicorn",
            "slackwater[control]",
        ),
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
    of_commands = ("slackwater.commands.", "slackwater.demo")
    of_package = [name for name in sys.modules if name.partition(".")[0] == package]
    for name in [*of_package, *(name for name in sys.modules if name.startswith(of_commands))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absence(package), *sys.meta_path])

    assert run(arguments) == 2

    assert extra in capsys.readouterr().err


def test_the_extra_of_the_demo_is_named_also_if_smaller_ones_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ("slackwater_certify", "slackwater_testing")
    for name in [*sys.modules]:
        if name.startswith(("slackwater.commands.", "slackwater.demo", *missing)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absence(*missing), *sys.meta_path])
    assert run(["demo", "--help"]) == 0
    assert run(["demo"]) == 2
    assert "slackwater[demo]" in capsys.readouterr().err


def requirements() -> dict[str, list[str]]:
    """What each extra of the command brings by itself; that of no extra is under an empty name."""
    found: dict[str, list[str]] = {"": []}
    for line in requires("slackwater") or []:
        name = re.split(r"[^a-z0-9-]", line)[0]
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        found.setdefault(extra[1] if extra else "", []).append(name)
    return found


def test_the_package_itself_needs_no_spark_no_stack_and_no_tests() -> None:
    heavy = {"slackwater-spark", "slackwater-certify", "slackwater-devstack", "slackwater-testing", "psycopg"}
    assert heavy & set(requirements()[""]) == set()


def test_what_a_command_may_miss_comes_with_the_extra_that_is_named() -> None:
    brought = requirements()
    lake = metadata("slackwater-client").get_all("Provides-Extra") or []
    assert {"delta", "iceberg"} <= set(lake)
    for module, words in EXTRAS.items():
        extra = words.removeprefix("slackwater[").removesuffix("]")
        name = module.replace("_", "-")
        indirect = {
            ("lake", "deltalake"),
            ("lake", "pyiceberg"),
            ("telemetry", "opentelemetry"),
            ("hdfs", "hdfs-native"),
        }
        assert name in brought[extra] or (extra, name) in indirect


def test_everything_that_only_extras_bring_is_named() -> None:
    brought = requirements()
    own = {name for extra, names in brought.items() if extra for name in names} - set(brought[""])
    assert {name.replace("-", "_") for name in own - {"slackwater"}} <= set(EXTRAS)
