import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater.pipeline import RunSettings, worker_daemon
from slackwater.pipeline.spark_conf import (
    REQUIRED_CONF,
    configured_defaults,
    executor_memory,
    index_root,
    master_with_retries,
    session_conf,
    without_effect,
    workers_python,
)
from slackwater.protocol import NO_SERVERS, ConfigError
from slackwater.protocol.log_fields import FIELDS

SETTINGS = RunSettings(servers=NO_SERVERS, checkpoint="c")
LOG = Path("log")


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
@pytest.mark.parametrize("of_the_run", [True, False])
def test_what_tasks_cannot_work_with_is_refused_whoever_has_said_it(name: str, of_the_run: bool) -> None:
    other = {name: "other"}
    settings = replace(SETTINGS, spark_conf=other if of_the_run else {})
    with pytest.raises(ConfigError, match=f"{name} is 'other', but a pipeline needs") as caught:
        session_conf("orders", settings, {} if of_the_run else other, LOG)
    assert f"--conf {name}={REQUIRED_CONF[name]}" in str(caught.value)


def test_what_is_required_is_set_and_may_be_said_by_others() -> None:
    conf = session_conf("orders", SETTINGS, {"spark.speculation": "FALSE "}, LOG)
    assert {name: conf[name] for name in REQUIRED_CONF} == REQUIRED_CONF
    assert conf["spark.python.daemon.module"] == worker_daemon.__name__


def test_each_says_only_what_nobody_after_it_says() -> None:
    """Our defaults, Spark's own configuration, the settings of the run."""
    given = {"spark.master": "spark://h:1", "spark.ui.enabled": "true", "spark.x": "1", "spark.y": "1"}
    ours, theirs = (session_conf("orders", SETTINGS, each, LOG) for each in ({}, given))
    assert (ours["spark.master"], ours["spark.ui.enabled"]) == ("local[*,4]", "false")
    assert (theirs["spark.master"], theirs["spark.ui.enabled"]) == ("spark://h:1", "true")
    settings = replace(SETTINGS, master="local[2]", driver_memory="3g", spark_conf={"spark.x": "2"})
    conf = session_conf("orders", settings, {**given, "spark.driver.memory": "1g"}, LOG)
    assert (conf["spark.master"], conf["spark.driver.memory"]) == ("local[2,4]", "3g")
    assert (conf["spark.x"], conf["spark.y"]) == ("2", "1")


def test_an_application_has_the_name_of_its_pipeline_unless_somebody_gives_it_one() -> None:
    named = [
        session_conf("orders", SETTINGS, given, LOG)["spark.app.name"]
        for given in (
            {},
            {"spark.app.name": "mine"},
            {"spark.app.name": "pyspark-shell"},
            {"spark.app.name": os.path.basename(sys.argv[0])},
        )
    ]
    assert named == ["slackwater orders", "mine", "slackwater orders", "slackwater orders"]


def test_java_options_that_somebody_gives_replace_ours_but_the_log_stays_where_it_is() -> None:
    conf = session_conf("orders", SETTINGS, {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}, LOG)
    assert conf["spark.driver.extraJavaOptions"].endswith("-Dslackwater.spark.log=log -XX:+UseG1GC")
    ours = session_conf("orders", SETTINGS, {}, LOG)["spark.driver.extraJavaOptions"]
    assert "-XX:+UseParallelGC" in ours
    elsewhere = session_conf("orders", SETTINGS, {}, None)["spark.driver.extraJavaOptions"]
    assert "log4j2" not in elsewhere


def test_the_driver_stays_small_and_opens_no_port_to_the_world() -> None:
    conf = session_conf("orders", SETTINGS, {}, LOG)
    assert (conf["spark.driver.memory"], conf["spark.ui.enabled"]) == ("768m", "false")
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    elsewhere = session_conf("orders", SETTINGS, {"spark.master": "spark://h:1"}, LOG)
    assert "spark.driver.bindAddress" not in elsewhere, "executors have to reach it"


def test_an_executor_of_a_local_cluster_gets_the_memory_of_its_worker() -> None:
    assert executor_memory("local-cluster[2, 1, 512]") == {"spark.executor.memory": "512m"}
    assert executor_memory("local[2]") == executor_memory("spark://host:7077") == {}


def test_spark_s_own_file_is_read_where_spark_looks_for_it(tmp_path: Path) -> None:
    text = "# ours\nspark.master   spark://h:7077\nspark.a=1 \nspark.b: x\\\n  y\n\n! no\n"
    for folder in ("conf", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "spark-defaults.conf").write_text(f"{text}spark.c {folder}\n")
    read = {"spark.master": "spark://h:7077", "spark.a": "1", "spark.b": "xy"}
    home = {"SPARK_HOME": str(tmp_path)}
    assert configured_defaults(home) == {**read, "spark.c": "conf"}
    assert configured_defaults({**home, "SPARK_CONF_DIR": str(tmp_path / "other")}) == {
        **read,
        "spark.c": "other",
    }
    assert configured_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {}


def test_a_file_of_spark_s_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").mkdir()
    with pytest.raises(ConfigError, match=r"spark-defaults\.conf cannot be read"):
        configured_defaults({"SPARK_CONF_DIR": str(tmp_path)})


def test_what_spark_submit_has_chosen_already_is_not_chosen_again_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"spark.master": "spark://h:1", "spark.driver.memory": "2g"}
    chosen = replace(SETTINGS, master="local[2]", driver_memory="2g")
    with caplog.at_level(logging.WARNING):
        left = without_effect(chosen, given)
    assert (left.master, left.driver_memory) == (None, None)
    assert [record.getMessage() for record in caplog.records] == [
        "run.master = local[2] has no effect: spark-submit has started this driver with "
        "spark.master = spark://h:1"
    ]


@pytest.mark.parametrize(
    ("conf", "environment", "python"),
    [
        (
            {"spark.master": "local[2]", "spark.pyspark.python": "/p"},
            {"PYSPARK_PYTHON": "/q"},
            sys.executable,
        ),
        ({"spark.master": "spark://h:1"}, {}, sys.executable),
        ({"spark.master": "spark://h:1"}, {"PYSPARK_PYTHON": "/q"}, "/q"),
        ({"spark.master": "spark://h:1", "spark.pyspark.python": "/p"}, {"PYSPARK_PYTHON": "/q"}, "/p"),
    ],
)
def test_workers_elsewhere_run_the_python_that_is_named_for_them(
    conf: dict[str, str], environment: dict[str, str], python: str
) -> None:
    assert workers_python(conf, environment) == python


def test_indexes_outlive_a_run_only_where_the_next_one_would_look_for_them() -> None:
    cache = replace(SETTINGS, local_index_root=Path("/cache"))
    assert index_root(cache, "local[2]") == Path("/cache")
    assert index_root(cache, "spark://h:7077") is None
    assert index_root(replace(cache, index_root=Path("/disk")), "spark://h:7077") == Path("/disk")


SUBMITTED = """
import json, logging
from pathlib import Path
from slackwater.protocol import NO_SERVERS
from slackwater.protocol.log_fields import FIELDS
from slackwater.pipeline import RunSettings
from slackwater.pipeline.session import starting_spark

logging.basicConfig()
settings = RunSettings(
    servers=NO_SERVERS, checkpoint=".", master="local[7]", spark_log=Path("unused.log"),
    spark_conf={"spark.c": "run"},
)
with starting_spark("orders", settings) as started:
    context = started()
    tasks = context.parallelize([1], 1).map(lambda number: number + 1).collect()
    print(json.dumps({"conf": dict(context.getConf().getAll()), "tasks": tasks}))
"""


@pytest.mark.full
@pytest.mark.spark
def test_a_driver_that_spark_submit_has_started_uses_its_jvm_and_its_settings(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a defaults\nspark.b defaults\nspark.c defaults\n")
    (tmp_path / "program.py").write_text(SUBMITTED)
    submit = (Path(sys.executable).parent / "spark-submit", "--master", "local[1]")
    conf = ("--conf", "spark.b=submit", "--conf", "spark.c=submit")
    done = subprocess.run(
        (*submit, *conf, "program.py"),
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    told = found["conf"]
    assert [told[f"spark.{name}"] for name in "abc"] == ["defaults", "submit", "run"]
    assert (told["spark.master"], told["spark.app.name"]) == ("local[1,4]", "slackwater orders")
    assert {name: told[name] for name in REQUIRED_CONF} == REQUIRED_CONF
    assert found["tasks"] == [2]
    assert "run.master = local[7] has no effect" in done.stdout, "where Spark sends what drivers say"


WARNS = """
import logging
from pathlib import Path
from slackwater.protocol import NO_SERVERS
from slackwater.protocol.log_fields import FIELDS
from slackwater.protocol.log_fields import remember_format, set_log_fields
from slackwater.pipeline import RunSettings
from slackwater.pipeline.session import spark_home, starting_spark

def warn(order):
    logging.getLogger("team.prices").warning("no price of %s", order, extra={"order": order})

remember_format("json")
set_log_fields(service="run", pipeline="orders")
log, home, master = Path("spark.log").resolve(), Path("home").resolve(), "local-cluster[1,1,512]"
settings = RunSettings(servers=NO_SERVERS, checkpoint=".", master=master, spark_log=log)
with starting_spark("orders", settings, spark_home(master, None, home)) as started:
    started().parallelize([7], 1).foreach(warn)
"""


@pytest.mark.full
@pytest.mark.spark
def test_what_a_task_of_another_machine_logs_has_the_fields_of_all_records(tmp_path: Path) -> None:
    subprocess.run((sys.executable, "-c", WARNS), cwd=tmp_path, check=True)
    logged = [path.read_text().splitlines() for path in tmp_path.glob("home/work/*/*/stderr")]
    records = [json.loads(line) for lines in logged for line in lines if line.startswith("{")]
    assert [record["text"] for record in records] == ["no price of 7"]
    assert list(records[0]) == [*(name for name in FIELDS if name not in ("source", "error")), "order"]
    assert records[0]["event"] == "no price of %s"
    assert (records[0]["service"], records[0]["pipeline"]) == ("worker", "orders")
