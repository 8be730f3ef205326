"""Sessions that can run stages, and those that cannot."""

import pytest
from pyspark.sql import SparkSession

from slackwater_spark import check_session, missing_settings
from slackwater_spark.api.session import lacking_settings
from slackwater_spark.errors import PipelineConfigError

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def test_a_session_of_the_builder_lacks_nothing(spark: SparkSession) -> None:
    check_session(spark)
    assert missing_settings(spark) == {}


def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    """Without the daemon of our own: from the archive in Spark's home, which has no byte code."""

    def found(_: object) -> list[str]:
        import py4j  # type: ignore[import-untyped]  # has no stubs
        import pyspark

        return [pyspark.__file__, py4j.__file__]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(found).collect() == found(None)


def test_what_a_session_lacks_is_listed_with_how_to_set_it(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(PROVIDER, "some.Other")
    other.conf.set("spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled", "true")
    with pytest.raises(PipelineConfigError) as caught:
        check_session(other)
    assert str(caught.value).count("\n") == 2
    assert f'spark.conf.set("{PROVIDER}", "org.apache' in str(caught.value)
    assert "is 'true': spark.conf.set" in str(caught.value)


def test_what_must_be_set_before_a_session_is_made_is_told_apart() -> None:
    told = str(lacking_settings([("spark.python.unix.domain.socket.enabled", "false", "true", False)]))
    assert "must be 'true' before the session is made" in told
