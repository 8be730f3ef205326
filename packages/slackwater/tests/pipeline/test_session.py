import os
import shlex
from contextlib import suppress
from pathlib import Path

import javaproperties
import pytest

from slackwater.pipeline.session import submitted_settings
from slackwater.pipeline.spark_home import link_spark_home


def test_a_spark_home_of_our_own_has_all_of_pyspark_and_an_empty_work_folder(tmp_path: Path) -> None:
    for _ in range(2):
        home = link_spark_home(tmp_path / "home")
        assert list((home / "work").iterdir()) == []
        assert (home / "bin" / "spark-submit").is_file()
        assert list(home.rglob("*.zip")) == []
        (home / "work" / "app").mkdir()


def test_a_jvm_reads_its_settings_from_a_file_that_only_we_can_read_and_that_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    given = {"spark.a": "s3cret = 1:\\#!\n é𝄞", "spark.b": ""}
    with submitted_settings(given):
        option, path, defaults, *others = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        file = Path(path)
        assert (option, defaults) == ("--properties-file", "--load-spark-defaults")
        assert others == ["--verbose", "pyspark-shell"]
        assert file.stat().st_mode & 0o077 == 0
        text = file.read_text()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"
    assert not file.exists()
    assert javaproperties.loads(text) == given
    assert text.isascii(), "Java reads these files as Latin-1"


def test_without_submit_arguments_there_are_none_afterwards_even_if_the_launch_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    with suppress(FileNotFoundError), submitted_settings({}):
        assert os.environ["PYSPARK_SUBMIT_ARGS"].endswith(" pyspark-shell")
        raise FileNotFoundError
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
