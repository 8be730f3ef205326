"""``slackwater new``, and pipelines that are installed as packages."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slackwater.cli import main
from slackwater.cli.given_pipelines import folder_of, installed_pipelines

BUILD = "import hatchling.build; hatchling.build.build_wheel('dist')"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new pipeline; tests do not write into it."""
    folder = tmp_path_factory.mktemp("new") / "late-revenue"
    assert main.run(["new", str(folder), "--source", "erp"]) == 0
    return folder


@pytest.fixture(scope="module")
def wheel(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "late-revenue"
    shutil.copytree(made, folder)
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, check=True, capture_output=True)
    (path,) = (folder / "dist").glob("*.whl")
    return path


def install(wheel: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what an installer does with a wheel of data."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)


def test_a_new_pipeline_passes_its_own_tests(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["test", str(made)]) == 0
    assert "2 passed, 0 failed" in capsys.readouterr().out


def test_a_new_pipeline_is_told_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert main.run(["new", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"next: slackwater test {tmp_path / 'a'}"
    assert {Path(line) for line in lines[:-2]} == {
        path for path in (tmp_path / "a").rglob("*") if path.is_file()
    }


def test_a_pipeline_is_not_named_like_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["new", str(tmp_path / "erp"), "--source", "erp"]) == 1
    assert "--name" in capsys.readouterr().err
    assert not (tmp_path / "erp").exists()


def test_its_source_and_name_are_those_that_were_given(tmp_path: Path, made: Path) -> None:
    assert 'source = "erp"' in (made / "pipeline.toml").read_text()
    assert main.run(["new", str(tmp_path / "a"), "--name", "b"]) == 0
    assert 'name = "b"' in (tmp_path / "a" / "pipeline.toml").read_text()


def test_pytest_runs_the_same_tests(made: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made)]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout


def test_the_wheel_has_the_pipeline_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = "slackwater_pipelines/late_revenue"
    assert names == {f"{package}/{name}" for name in ("pipeline.toml", "schema.sql", "views/revenue.sql")}


def test_an_installed_pipeline_is_found_by_name_and_version(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(wheel, tmp_path / "site", monkeypatch)
    assert [str(each) for each in installed_pipelines()] == ["late-revenue==0.1.0"]
    package = tmp_path / "site" / "slackwater_pipelines" / "late_revenue"
    assert folder_of("late-revenue", "0.1.0") == folder_of("late-revenue", None) == package
    assert main.run(["explain", "late-revenue==0.1.0"]) == 0
    assert "late-revenue" in capsys.readouterr().out

    assert main.run(["explain", "late-revenue==0.2.0"]) == 1
    err = capsys.readouterr().err
    assert "late-revenue==0.2.0 is not installed, but late-revenue==0.1.0 is" in err
    assert "pip install --find-links DIST 'late-revenue==0.2.0'" in err
    assert main.run(["run", "revenue", "--bootstrap", "h:1", "--checkpoint", "c"]) == 1
    err = capsys.readouterr().err
    assert "there is neither a folder revenue here nor an installed pipeline of that name" in err
    assert "installed pipelines: late-revenue==0.1.0" in err


def test_a_name_of_two_distributions_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(wheel, tmp_path / "site", monkeypatch)
    other = tmp_path / "site" / "other-2.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2\n")
    (other / "entry_points.txt").write_text("[slackwater.pipelines]\nlate-revenue = other\n")
    assert main.run(["explain", "late-revenue"]) == 1
    assert "several distributions contain a pipeline late-revenue" in capsys.readouterr().err


def test_a_folder_wins_over_a_package(
    wheel: Path,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(wheel, tmp_path / "site", monkeypatch)
    monkeypatch.chdir(made.parent)
    (made.parent / "other").mkdir(exist_ok=True)
    assert main.run(["explain", made.name]) == 0
    assert main.run(["explain", "other"]) == 1
    assert "other/pipeline.toml: no such file" in capsys.readouterr().err


def test_nothing_is_written_over(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert main.run(["new", str(made)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["Orders", "a b", "1a", "a--b", "a.b"])
def test_a_name_that_no_package_may_have_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["new", str(tmp_path / name)]) == 1
    assert f"'{name}' is not a valid name of a pipeline" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
