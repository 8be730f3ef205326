"""What holds for the files that images are built from; that they run is tested where a daemon is."""

import re
from pathlib import Path

import pytest

INFRA = Path(__file__).parents[2] / "infra"
OWN = sorted((INFRA / "images").glob("*/Dockerfile"))
NAMES = [path.parent.name for path in OWN]
OF_PRODUCT = [path for path in OWN if path.parent.name in ("sidecar", "spark")]


def stages(dockerfile: Path) -> list[tuple[str, str]]:
    """The base and the name of each stage."""
    found = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", dockerfile.read_text(), re.MULTILINE)
    return [(base, name) for base, name in found]


@pytest.mark.parametrize("dockerfile", OWN, ids=NAMES)
def test_every_base_is_an_argument_or_a_stage(dockerfile: Path) -> None:
    names = {name for _, name in stages(dockerfile)}
    arguments = re.findall(r"^ARG (\w+)", dockerfile.read_text(), re.MULTILINE)
    for base, _ in stages(dockerfile):
        assert base in names or base.removeprefix("${").removesuffix("}") in arguments


@pytest.mark.parametrize("dockerfile", OF_PRODUCT, ids=["sidecar", "spark"])
def test_bases_are_pinned_to_a_full_version(dockerfile: Path) -> None:
    defaults = re.findall(r"^ARG \w+_IMAGE=(\S+)$", dockerfile.read_text(), re.MULTILINE)
    assert defaults
    for default in defaults:
        assert re.search(r":\d+\.\d+\.\d+", default), default


@pytest.mark.parametrize("dockerfile", OF_PRODUCT, ids=["sidecar", "spark"])
def test_the_user_is_a_number_that_kubernetes_can_tell_from_root(dockerfile: Path) -> None:
    users = re.findall(r"^USER (\d+):(\d+)$", dockerfile.read_text(), re.MULTILINE)
    assert users == [("10001", "10001")]


def test_no_file_names_the_host_of_a_registry() -> None:
    host = re.compile(r"\b(?:[a-z0-9-]+\.)+(?:io|com|org|dev|net)(?::\d+)?/[a-z0-9./_-]+[:@][\w.-]+")
    parts = ("images", "compose", "charts")
    files = [path for part in parts for path in (INFRA / part).rglob("*") if path.is_file()]
    # Modules of Go look like images; they are named in the file that fetches them.
    texts = {path: path.read_text() for path in files if path.suffix not in (".pyc", ".py")}
    assert len(texts) > 10
    assert {str(path): found for path, text in texts.items() if (found := host.findall(text))} == {}
