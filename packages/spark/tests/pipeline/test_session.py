import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_protocol import NO_SERVERS
from slackwater_spark import worker_daemon
from slackwater_spark.pipeline import RunSettings
from slackwater_spark.pipeline.session import (
    REQUIRED_CONF,
    executor_memory,
    master_with_retries,
    session_conf,
    submitted_settings,
)
from slackwater_spark.pipeline.spark_home import link_spark_home

SETTINGS = RunSettings(servers=NO_SERVERS, checkpoint="c")


@pytest.mark.parametrize(
    ("master", "made"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,9]", "local[2,9]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_repeat_failed_tasks(master: str, made: str) -> None:
    assert master_with_retries(master) == made


@pytest.mark.parametrize("name", REQUIRED_CONF)
def test_what_tasks_need_wins_over_a_person_s_settings(name: str) -> None:
    settings = replace(SETTINGS, spark_conf={name: "other", "spark.x": "1"})
    conf = session_conf("orders", settings, Path("log"))
    assert (conf[name], conf["spark.x"]) == (REQUIRED_CONF[name], "1")


def test_a_person_s_settings_win_over_the_defaults() -> None:
    settings = replace(SETTINGS, spark_conf={"spark.ui.enabled": "true"})
    assert session_conf("orders", settings, Path("log"))["spark.ui.enabled"] == "true"


def test_workers_are_forked_by_the_daemon_that_leaves_archives_out() -> None:
    assert (
        session_conf("orders", SETTINGS, Path("log"))["spark.python.daemon.module"] == worker_daemon.__name__
    )


def test_the_driver_stays_small_and_opens_no_port_to_the_world() -> None:
    conf = session_conf("orders", SETTINGS, Path("log"))
    assert (conf["spark.driver.memory"], conf["spark.ui.enabled"]) == ("768m", "false")
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"


def test_an_executor_of_a_local_cluster_gets_the_memory_of_its_worker() -> None:
    assert executor_memory("local-cluster[2, 1, 512]") == {"spark.executor.memory": "512m"}
    assert executor_memory("local[2]") == executor_memory("spark://host:7077") == {}


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
    with submitted_settings({"spark.a": "s3cret = 1:\\#!\n é𝄞", "spark.b": ""}):
        option, path, defaults, *others = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        file = Path(path)
        assert (option, defaults) == ("--properties-file", "--load-spark-defaults")
        assert others == ["--verbose", "pyspark-shell"]
        assert file.stat().st_mode & 0o077 == 0
        first, second = file.read_text().splitlines()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--verbose pyspark-shell"
    assert not file.exists()
    assert second == "spark.b="
    assert first == (
        "spark.a=s3cret\\u0020\\u003d\\u00201\\u003a\\u005c\\u0023\\u0021\\u000a\\u0020\\u00e9\\ud834\\udd1e"
    )


def test_without_submit_arguments_there_are_none_afterwards_even_if_the_launch_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    with suppress(FileNotFoundError), submitted_settings({}):
        assert os.environ["PYSPARK_SUBMIT_ARGS"].endswith(" pyspark-shell")
        raise FileNotFoundError
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
