"""Commands of extras that are not installed say which one is needed."""

import sys
from importlib.metadata import requires

import pytest

from slackwater.main import run


class Absence:
    """Finds everything but one package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["dev", "status"], "slackwater_devstack", "slackwater[dev]"),
        (["demo"], "slackwater_testing", "slackwater[demo]"),
    ],
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    package: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package or ".demo" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absence(package), *sys.meta_path])

    assert run(arguments) == 2

    assert extra in capsys.readouterr().err


def test_the_package_itself_needs_no_stack_and_no_tests() -> None:
    needed = [each for each in requires("slackwater") or [] if "extra ==" not in each]
    assert [each for each in needed if each.startswith(("slackwater-devstack", "slackwater-testing"))] == []
