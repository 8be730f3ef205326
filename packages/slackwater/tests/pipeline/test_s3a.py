from pathlib import Path

import pytest

from slackwater.pipeline.checkpoint import Checkpoint, s3_address
from slackwater.protocol import ConfigError, UnavailableError
from slackwater_lab.servers.storage import ObjectStore

S3A = "spark.hadoop.fs.s3a."


@pytest.mark.parametrize(
    ("conf", "address"),
    [
        ({}, "s3://b/orders"),
        ({"endpoint": "http://h:9000"}, "s3://b/orders?endpoint_override=h%3A9000&scheme=http"),
        ({"endpoint": "h:9000"}, "s3://b/orders?endpoint_override=h%3A9000"),
        (
            {"endpoint": "h:9000", "connection.ssl.enabled": "false", "endpoint.region": "eu-1"},
            "s3://b/orders?endpoint_override=h%3A9000&scheme=http&region=eu-1",
        ),
        ({"access.key": "me", "secret.key": "a/b+c@d"}, "s3://me:a%2Fb%2Bc%40d@b/orders"),
        ({"access.key": "me"}, "s3://b/orders"),
        (
            {"endpoint": "x", "bucket.b.endpoint": "y", "bucket.c.endpoint": "z"},
            "s3://b/orders?endpoint_override=y",
        ),
    ],
)
def test_hadoop_s_settings_are_said_as_an_address_of_arrow(conf: dict[str, str], address: str) -> None:
    assert s3_address("s3a://b/orders", {S3A + name: value for name, value in conf.items()}) == address


def test_an_address_may_say_something_itself() -> None:
    conf = {f"{S3A}endpoint": "http://h:9"}
    found = s3_address("s3a://b/orders?region=eu-1", conf)
    assert found == "s3://b/orders?region=eu-1&endpoint_override=h%3A9&scheme=http"


def test_a_token_that_an_address_cannot_carry_is_refused_with_the_way_out() -> None:
    conf = {f"{S3A}session.token": "hush", f"{S3A}secret.key": "hush"}
    with pytest.raises(ConfigError, match="AWS_SESSION_TOKEN") as caught:
        s3_address("s3a://b/orders", conf)
    assert "hush" not in str(caught.value)


@pytest.mark.integration
def test_a_checkpoint_is_where_spark_s_configuration_says_and_is_known_by_its_plain_address(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (f"{name} {value}\n" for name, value in object_store.spark_conf().items())
    (tmp_path / "spark-defaults.conf").write_text("".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    # Another test of this process may have left its Spark running, whose configuration would count.
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    address = f"s3a://{object_store.bucket}/{tmp_path.name}"
    checkpoint = Checkpoint(address)
    checkpoint.store.write("a", b"1")
    assert (object_store.objects / tmp_path.name / "a").read_bytes() == b"1"
    assert checkpoint.store.address == checkpoint.address == address
    other = Checkpoint(address, {f"{S3A}secret.key": "wrong"})
    with pytest.raises(UnavailableError) as caught:
        other.store.read("a")
    assert address in str(caught.value)
    assert "wrong" not in str(caught.value)


@pytest.mark.integration
def test_the_environment_of_aws_s_tools_is_enough(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    for scheme in ("s3", "s3a"):
        checkpoint = Checkpoint(f"{scheme}://{object_store.bucket}/{tmp_path.name}-{scheme}")
        checkpoint.store.write("a", b"1")
        assert checkpoint.store.read("a") == b"1"
