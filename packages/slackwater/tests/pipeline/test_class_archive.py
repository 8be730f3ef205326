"""Whatever is wrong with an archive of Spark's classes, Spark starts all the same, only slower."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from slackwater.pipeline import RunSettings, default_class_archives, make_class_archive
from slackwater.pipeline import spark_home as spark_home_module
from slackwater.pipeline.session import spark_home
from slackwater.pipeline.spark_home import SparkHome, archived_home, run_small_batches, started_from
from slackwater.protocol import UnavailableError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Java and a PySpark that only look like it."""
    for name in ("java/bin/java", "pyspark/__init__.py", "pyspark/jars/spark-core.jar"):
        path = tmp_path / "installed" / name
        path.parent.mkdir(parents=True)
        path.write_text("first")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "installed" / "java"))
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "installed" / "pyspark" / "__init__.py"))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "installed"


@pytest.fixture
def archives(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives are made, but without a Java that writes them."""
    monkeypatch.setattr(spark_home_module, "_record", recorded(b"classes"))
    return tmp_path / "cache" / "spark"


def recorded(content: bytes, meanwhile: Callable[[], object] = lambda: None) -> Callable[[Path, Path], Path]:
    def record(home: Path, scratch: Path) -> Path:
        assert (home / "jars" / "spark-core.jar").is_file()
        meanwhile()
        (scratch / "classes.jsa").write_bytes(content)
        return scratch / "classes.jsa"

    return record


def archive_of(home: SparkHome | None) -> Path:
    assert home is not None
    options = dict(option.split("=", 1) for option in home.java_options if "=" in option)
    return Path(options["-XX:SharedArchiveFile"])


def test_an_archive_is_used_with_the_home_that_it_was_made_with(archives: Path) -> None:
    assert archived_home(archives) is None
    made = make_class_archive(archives)
    home = archived_home(archives)
    assert archive_of(home) == made
    assert home is not None
    assert home.folder == made.parent / "home"
    assert made.read_bytes() == b"classes"
    assert archives.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in made.parent.iterdir()} == {"home", made.name}


def test_an_archive_that_is_there_is_not_made_again(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_class_archive(archives)
    monkeypatch.setattr(spark_home_module, "_record", None)
    assert make_class_archive(archives) == made


def test_an_archive_without_its_end_is_not_used_and_made_again(archives: Path) -> None:
    """Java would crash."""
    made = make_class_archive(archives)
    os.truncate(made, 3)
    assert archived_home(archives) is None
    assert make_class_archive(archives) == made
    assert archive_of(archived_home(archives)).read_bytes() == b"classes"


@pytest.mark.parametrize("replaced", ["java/bin/java", "pyspark/jars/spark-core.jar"])
def test_another_java_or_spark_does_not_use_it_and_its_own_takes_its_place(
    archives: Path, installed: Path, replaced: str
) -> None:
    old = make_class_archive(archives)
    (installed / replaced).write_text("other")
    os.utime(installed / replaced, (1, 1))
    assert archived_home(archives) is None
    assert archive_of(SparkHome(old.parent, (f"-XX:SharedArchiveFile={old}",))).is_file()
    new = make_class_archive(archives)
    assert archive_of(archived_home(archives)) == new
    assert (new.is_file(), old.exists(), (old.parent / "home").is_dir()) == (True, False, True)


def test_an_archive_of_a_spark_that_is_installed_elsewhere_stays(
    archives: Path, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_class_archive(archives)
    elsewhere = tmp_path / "elsewhere" / "__init__.py"
    (elsewhere.parent / "jars").mkdir(parents=True)
    (elsewhere.parent / "jars" / "spark-core.jar").write_text("other")
    monkeypatch.setattr(pyspark, "__file__", str(elsewhere))
    assert make_class_archive(archives) != first
    assert first.is_file()


def test_two_may_make_it_at_once(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[Path] = []

    def other() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(spark_home_module, "_record", recorded(b"another"))
            others.append(make_class_archive(archives))

    monkeypatch.setattr(spark_home_module, "_record", recorded(b"classes", other))
    made = make_class_archive(archives)
    assert others == [made]
    assert archive_of(archived_home(archives)) == made
    assert (made.parent / "home" / "jars" / "spark-core.jar").is_file()


def test_a_folder_that_others_can_open_is_not_used(archives: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An archive is code."""
    make_class_archive(archives)
    archives.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert archived_home(archives) is None
    assert "only this account can open" in caplog.text
    archives.chmod(0o700)
    linked = archives.with_name("link")
    linked.symlink_to(archives)
    assert archived_home(linked) is None


def test_a_folder_of_another_account_is_not_used(archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_class_archive(archives)
    monkeypatch.setattr(os, "getuid", lambda: archives.stat().st_uid + 1)
    assert archived_home(archives) is None
    with pytest.raises(UnavailableError, match="belongs to another account"):
        make_class_archive(archives)


def test_what_cannot_be_read_is_not_used(
    archives: Path, installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_class_archive(archives)
    (installed / "pyspark" / "jars" / "gone.jar").symlink_to(installed / "nowhere")
    with caplog.at_level(logging.INFO):
        assert archived_home(archives) is None
    assert "gone.jar" in caplog.text


def test_without_java_there_is_none(archives: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_class_archive(archives)
    (installed / "java" / "bin" / "java").unlink()
    assert archived_home(archives) is None
    with pytest.raises(UnavailableError, match="there is no Java"):
        make_class_archive(archives)


def test_the_java_on_path_counts_unless_another_is_named(
    archives: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "java" / "bin" / "java").chmod(0o755)
    made = make_class_archive(archives)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(installed / "java" / "bin"))
    assert archive_of(archived_home(archives)) == made


def test_a_cache_that_cannot_be_written_is_an_error_of_who_makes_it(archives: Path) -> None:
    archives.parent.mkdir()
    archives.write_text("a file")
    with pytest.raises(UnavailableError, match="the archive of Spark's classes could not be created"):
        make_class_archive(archives)
    assert archived_home(archives) is None


def test_it_is_not_made_where_spark_runs_already(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(UnavailableError, match="started Spark already"):
        make_class_archive(tmp_path / "spark")
    assert list((tmp_path / "spark").glob("*/making-*")) == []


@pytest.mark.parametrize(("code", "is_written"), [(1, True), (-9, True), (0, False)])
def test_what_a_java_leaves_that_did_not_end_in_order_is_thrown_away(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_written: bool
) -> None:
    @contextmanager
    def started(_name: str, _settings: RunSettings, home: SparkHome) -> Iterator[object]:
        if is_written:
            Path(home.java_options[-1].partition("=")[2]).write_text("half")
        yield lambda: None

    monkeypatch.setattr("slackwater.pipeline.session.starting_spark", started)
    monkeypatch.setattr("slackwater.pipeline.spark_home.run_small_batches", lambda _: 1)
    monkeypatch.setattr("slackwater.pipeline.spark_home.end_jvm", lambda: code)
    with pytest.raises(UnavailableError, match=rf"Java did not write it \(exit code {code}"):
        make_class_archive(tmp_path / "spark")
    assert archived_home(tmp_path / "spark") is None
    assert list((tmp_path / "spark").glob("*/making-*")) == []


@pytest.mark.parametrize(
    ("master", "is_used"),
    [("local", True), ("local[2]", True), ("local-cluster[1,1,512]", False), ("spark://h:7077", None)],
)
def test_drivers_on_this_machine_use_it_unless_executors_need_a_home_of_their_own(
    archives: Path, tmp_path: Path, master: str, is_used: bool | None
) -> None:
    make_class_archive(archives)
    home = spark_home(master, archives, tmp_path / "own")
    assert (None if home is None else home.folder != tmp_path / "own") == is_used


def test_without_an_archive_or_if_none_is_wanted_each_run_has_a_home_of_its_own(
    archives: Path, tmp_path: Path
) -> None:
    own = SparkHome(tmp_path / "own")
    assert spark_home("local[*]", archives, own.folder) == own
    make_class_archive(archives)
    assert spark_home("local[*]", archives, own.folder) != own
    assert spark_home("local[*]", None, own.folder) == own


def test_the_spark_that_the_environment_names_is_left_alone(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_class_archive(archives)
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home("local[*]", archives, tmp_path / "own") is None


def test_a_home_is_named_in_the_environment_only_while_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=b")
    with started_from(SparkHome(Path("/h"), ("-XX:SharedArchiveFile=/a folder/a.jsa",))):
        assert os.environ["SPARK_HOME"] == "/h"
        assert os.environ["SPARK_SUBMIT_OPTS"] == "'-XX:SharedArchiveFile=/a folder/a.jsa' -Da=b"
    assert ("SPARK_HOME" in os.environ, os.environ["SPARK_SUBMIT_OPTS"]) == (False, "-Da=b")
    with started_from(None):
        assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/slackwater/spark")),
        ({}, Path.home() / ".cache" / "slackwater" / "spark"),
    ],
)
def test_archives_are_in_the_user_s_cache_folder(environment: dict[str, str], folder: Path) -> None:
    assert default_class_archives(environment) == folder


def test_without_a_home_folder_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert default_class_archives({}) is None


@pytest.fixture(scope="module")
def real() -> SparkHome:
    """Of the user's cache, where all pipelines of the tests look; made if it is not there."""
    make = "import sys; from pathlib import Path; from slackwater.pipeline import make_class_archive;"
    folder = default_class_archives(os.environ)
    assert folder is not None
    subprocess.run(
        [sys.executable, "-c", f"{make} make_class_archive(Path(sys.argv[1]))", folder], check=True
    )
    home = archived_home(folder)
    assert home is not None
    return home


def classes_from_archive(home: SparkHome, tmp_path: Path) -> int:
    """How many a JVM takes from it that Spark's own scripts start."""
    log = tmp_path / "classes.log"
    logged = SparkHome(home.folder, (*home.java_options, f"-Xlog:class+load:file={log}"))
    with started_from(logged):
        done = subprocess.run(
            [home.folder / "bin" / "spark-submit", "--version"], capture_output=True, text=True, check=True
        )
    assert f"version {pyspark.__version__}" in done.stderr
    return sum("shared objects file (top)" in line for line in log.read_text().splitlines())


@pytest.mark.spark
def test_java_takes_spark_s_classes_from_a_real_archive(real: SparkHome, tmp_path: Path) -> None:
    """Fails when the class path is not the one that the archive was made with."""
    assert classes_from_archive(real, tmp_path) > 100


@pytest.mark.full
@pytest.mark.spark
def test_java_starts_without_a_real_archive_whose_bytes_have_changed(real: SparkHome, tmp_path: Path) -> None:
    """Java crashes when it is not told to verify."""
    copy = tmp_path / "classes.jsa"
    copy.write_bytes(archive_of(real).read_bytes())
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size // 4)
        file.write(b"\xff" * 200_000)
    options = (*real.java_options[:-1], f"-XX:SharedArchiveFile={copy}")
    assert classes_from_archive(SparkHome(real.folder, options), tmp_path) == 0


@pytest.mark.spark
def test_the_batches_behind_an_archive_have_both_forms(spark: SparkSession) -> None:
    """A small one and a divided one: without that an archive would lack the classes of exchanges."""
    assert run_small_batches(spark.sparkContext) == 1 + sum(range(1, 3))
