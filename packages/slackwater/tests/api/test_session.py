"""Sessions that can run what the package offers, and those that cannot."""

import os
import sys

import pytest
from pyspark.sql import SparkSession

from slackwater.api import check_session, missing_settings
from slackwater.api.session import missing_settings_error
from slackwater.pipeline.spark_conf import REQUIRED_CONF
from slackwater.protocol import ConfigError

WITH_LOCALS = "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled"


@pytest.mark.spark
def test_a_session_of_the_builder_lacks_nothing(spark: SparkSession) -> None:
    check_session(spark)
    assert missing_settings(spark) == {}
    assert {name: spark.conf.get(name) for name in REQUIRED_CONF} == REQUIRED_CONF
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.spark
def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    """Without the daemon of our own: from the archive in Spark's home, which has no byte code."""

    def found(_: object) -> list[str]:
        import py4j  # type: ignore[import-untyped]  # has no stubs
        import pyspark

        return [pyspark.__file__, py4j.__file__]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(found).collect() == found(None)


@pytest.mark.spark
def test_what_a_session_lacks_is_told_with_how_to_set_it(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(WITH_LOCALS, "true")
    assert missing_settings(other) == {WITH_LOCALS: ("true", "false")}
    with pytest.raises(ConfigError) as caught:
        check_session(other)
    assert f'{WITH_LOCALS} is \'true\': spark.conf.set("{WITH_LOCALS}", "false")' in str(caught.value)
    assert missing_settings(spark) == {}, "settings are those of one session"


@pytest.mark.spark
def test_workers_of_another_interpreter_are_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/bin/sh")
    with pytest.raises(ConfigError, match=r"PYSPARK_PYTHON is '/bin/sh', must be .* before the session"):
        check_session(spark)


def test_all_settings_that_are_missing_are_listed() -> None:
    told = str(missing_settings_error([("a", "1", "2", True), ("b", "x", "y", False)]))
    assert told.count("\n") == 2
    assert 'a is \'1\': spark.conf.set("a", "2")' in told
    assert "b is 'x', must be 'y' before the session is made" in told
