"""What executors get: the archive is unpacked and its Python asked what it finds."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slackwater.cli import main
from slackwater.cli.commands.package import PYTHON, read_project, required_distributions, write_archive
from slackwater.protocol import InputError

ASK = """
import importlib.metadata, json, sys
import slackwater.protocol, packaging
print(json.dumps({
    "pipelines": {
        each.name: each.dist.version
        for each in importlib.metadata.entry_points(group="slackwater.pipelines")
    },
    "modules": [slackwater.protocol.__file__, packaging.__file__],
    "arguments": sys.argv[1:],
}))
"""
SMALL = {name: importlib.metadata.distribution(name) for name in ("msgspec", "packaging", "slackwater")}
"""Some are installed as they are, one is a link to its sources here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert main.run(["new", str(tmp_path / "net-revenue")]) == 0
    return tmp_path / "net-revenue"


def unpacked(archive: Path, folder: Path) -> Path:
    shutil.unpack_archive(archive, folder)
    return folder


def test_its_python_finds_what_was_packed_and_the_pipeline_by_name_and_version(
    folder: Path, tmp_path: Path
) -> None:
    project = read_project(folder)
    write_archive(tmp_path / "a.tar.gz", folder, project, SMALL)
    environment = unpacked(tmp_path / "a.tar.gz", tmp_path / "executor" / "environment")
    asked = subprocess.run(
        (f"./environment/{PYTHON}", "-c", ASK, "one", "two words"),
        cwd=tmp_path / "executor",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/other"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(asked.stdout)
    assert found["pipelines"] == {"net-revenue": "0.1.0"}
    assert found["arguments"] == ["one", "two words"]
    assert [Path(file).is_relative_to(environment) for file in found["modules"]] == [True, True]
    pipeline = environment / "lib" / "slackwater_pipelines" / "net_revenue"
    packed = sorted(str(path.relative_to(pipeline)) for path in pipeline.rglob("*") if path.is_file())
    assert packed == ["pipeline.toml", "schema.sql", "views/revenue.sql"]


def test_the_same_installation_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    archives = [tmp_path / name for name in ("a.tar.gz", "b.tar.gz")]
    for archive in archives:
        write_archive(archive, folder, read_project(folder), SMALL)
        os.utime(folder / "schema.sql", (1, 1))
    first, second = (archive.read_bytes() for archive in archives)
    assert first == second
    assert sorted(path.name for path in tmp_path.glob("*.part")) == []


def test_what_is_required_is_packed_with_extras_and_without_spark_s_own() -> None:
    spark = required_distributions([Requirement("slackwater[spark]")])
    assert {"slackwater", "slackwater-sidecar", "duckdb", "pyarrow", "redis"} <= set(spark)
    assert not {"pyspark", "py4j", "pytest", "deltalake"} & set(spark)
    assert "deltalake" in required_distributions([Requirement("slackwater[lake,spark]")])


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ("no-such-library", "no-such-library is not installed here, and what is packed requires it"),
        ("duckdb<1", r"duckdb 2\.\S+ is installed here, what is packed requires duckdb<1"),
    ],
)
def test_what_is_not_installed_as_it_is_required_is_named(requirement: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        required_distributions([Requirement(requirement)])


def test_a_folder_that_is_no_project_is_said_to_be_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slackwater.cli.commands.package.required_distributions", lambda _: SMALL)
    target = tmp_path / "a.tar.gz"
    assert main.run(["package", str(folder), "-o", str(target)]) == 0
    assert f"{target}: net-revenue==0.1.0 and 3 distributions" in capsys.readouterr().out
    (folder / "pyproject.toml").unlink()
    assert main.run(["package", str(folder), "-o", str(target)]) == 0
    assert "has no pyproject.toml" in capsys.readouterr().out
    with tarfile.open(target) as packed:
        assert not [name for name in packed.getnames() if "slackwater_pipelines" in name]


@pytest.mark.parametrize(
    ("text", "says"), [("[project]\nname = 'x'\n", "KeyError: 'version'"), ("[", "TOMLDecodeError")]
)
def test_a_project_that_cannot_be_read_is_named(
    folder: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text(text)
    assert main.run(["package", str(folder), "-o", "a.tar.gz"]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["revenue", "-o", "a.zip"], "a.zip is no .tar.gz"),
        (["nowhere/revenue", "-o", "a.tar.gz"], "has no pipeline.toml"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["package", *arguments]) == 1
    assert says in capsys.readouterr().err
