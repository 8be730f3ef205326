"""Settings: where values come from, which wins, what is refused."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from slackwater.command.invocation import servers
from slackwater.protocol import LakeSettings, PostgresSettings, RedisSettings
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.loading import load_settings, secrets_of, setting_fields, take_secrets

FILE = """
source = "from-file"
[kafka]
bootstrap = "file:1"
[kafka.options]
"socket.timeout.ms" = "1000"
[redis]
url = "redis://file"
[run]
checkpoint = "checkpoints/orders"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "slackwater.toml"
    path.write_text(FILE)
    return path


def test_without_anything_every_setting_has_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings({}, {})
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.settings.run.master is None


def test_the_file_overrides_defaults(config: Path) -> None:
    loaded = load_settings({}, {}, config)
    assert loaded.settings.source == "from-file"
    assert loaded.origins["kafka.bootstrap"] == str(config)


def test_the_environment_overrides_the_file(config: Path) -> None:
    loaded = load_settings({}, {"SLACKWATER_BOOTSTRAP": "env:1", "PATH": "x"}, config)
    assert loaded.settings.kafka.bootstrap == "env:1"
    assert loaded.origins["kafka.bootstrap"] == "environment SLACKWATER_BOOTSTRAP"
    assert loaded.settings.source == "from-file"


def test_flags_override_everything(config: Path) -> None:
    loaded = load_settings(
        {"kafka.bootstrap": "flag:1", "source": None}, {"SLACKWATER_BOOTSTRAP": "e"}, config
    )
    assert loaded.settings.kafka.bootstrap == "flag:1"
    assert loaded.origins["kafka.bootstrap"] == "flag"
    assert loaded.settings.source == "from-file"


@pytest.mark.parametrize(
    ("variable", "path"),
    [(name, field.path) for field in setting_fields() if not field.is_table for name in field.variables],
)
def test_every_documented_variable_sets_its_setting(variable: str, path: str) -> None:
    values = {
        "log.level": "debug",
        "log.format": "json",
        "kafka.bootstrap": "h:1",
        "kafka.security_protocol": "SSL",
        "run.available_now": "1",
        "run.class_archive": "0",
        "run.accept_changed_output": "1",
        "run.allow_missing_tables": "1",
        "sidecar.commit_format": "avro",
        "sidecar.evidence": "inv.a=counts",
        "sidecar.topics": "inv.a=a",
        "sidecar.tables": "inv.a",
        "sidecar.complete_tables": "inv.a",
        "redis.url": "redis://h",
        "opensearch.url": "http://h:1",
        "postgres.url": "postgresql://h/d",
        "postgres.output_url": "postgresql://h/d",
        "telemetry.otlp": "http://h",
        "registry.url": "http://h",
        "telemetry.trace_ratio": "0.5",
    }
    loaded = load_settings({}, {variable: values.get(path, "7"), **needed(path)})
    assert loaded.origins[path] == f"environment {variable}"


def needed(path: str) -> dict[str, str]:
    """What a setting of TLS or of Kafka's security is refused without."""
    if path in ("telemetry.ssl_certificate", "telemetry.ssl_key"):
        other = "SSL_KEY" if path.endswith("certificate") else "SSL_CERTIFICATE"
        return {f"SLACKWATER_TELEMETRY_{other}": "x"}
    if not path.startswith(("kafka.sasl", "kafka.ssl", "kafka.oauth")):
        return {}
    found = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "OAUTHBEARER"}
    if path == "kafka.sasl_mechanism":
        del found["SASL_MECHANISM"]
    if path in ("kafka.ssl_certificate", "kafka.ssl_key"):
        found["SSL_KEY" if path.endswith("certificate") else "SSL_CERTIFICATE"] = "x"
    return {f"SLACKWATER_KAFKA_{name}": value for name, value in found.items()}


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings({}, {"SLACKWATER_SOURCE": ""}).settings.source is None


def test_the_name_with_two_underscores_is_stronger() -> None:
    environment = {"SLACKWATER_REDIS_URL": "redis://flat", "SLACKWATER_REDIS__URL": "redis://nested"}
    assert load_settings({}, environment).settings.redis.server() == RedisSettings("redis://nested")


def test_an_unknown_key_in_the_file_is_refused_with_a_suggestion(config: Path) -> None:
    config.write_text('[kafka]\nbootsrap = "x"\n')
    with pytest.raises(CommandConfigError, match=r"kafka\.bootsrap; did you mean kafka\.bootstrap"):
        load_settings({}, {}, config)


def test_a_key_in_the_wrong_section_is_refused_with_the_right_one(config: Path) -> None:
    config.write_text('bootstrap = "x"\n')
    with pytest.raises(CommandConfigError, match=r"did you mean kafka\.bootstrap"):
        load_settings({}, {}, config)


def test_an_unknown_section_is_refused(config: Path) -> None:
    config.write_text("[kafak]\nbootstrap = 1\n")
    with pytest.raises(CommandConfigError, match=r"kafak\.bootstrap"):
        load_settings({}, {}, config)


def test_an_unknown_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(CommandConfigError, match="did you mean SLACKWATER_BOOTSTRAP"):
        load_settings({}, {"SLACKWATER_BOOTSRAP": "x"})


def test_a_wrong_type_is_named_with_its_origin_but_without_its_value(config: Path) -> None:
    with pytest.raises(
        CommandConfigError, match=r"timeline .from environment SLACKWATER_TIMELINE[)]"
    ) as caught:
        load_settings({}, {"SLACKWATER_TIMELINE": "s3cret"}, config)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(CommandConfigError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "other.toml")


def test_a_file_that_is_no_toml_is_named_with_the_place(config: Path) -> None:
    config.write_text("source = \n")
    with pytest.raises(CommandConfigError, match="line 1"):
        load_settings({}, {}, config)


def test_the_file_of_the_current_folder_is_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    assert load_settings({}, {}).origins["source"] == "slackwater.toml"


def test_a_variable_can_name_the_file(config: Path) -> None:
    assert load_settings({}, {"SLACKWATER_CONFIG": str(config)}).settings.source == "from-file"


def test_relative_paths_in_the_file_are_relative_to_the_file(config: Path) -> None:
    assert load_settings({}, {}, config).settings.run.checkpoint == str(config.parent / "checkpoints/orders")


def test_secrets_are_masked_in_everything_that_is_shown() -> None:
    environment = {
        "SLACKWATER_REDIS_URL": "redis://:s3cret@h:1",
        "SLACKWATER_REDIS_PASSWORD": "s3cret",
        "SLACKWATER_KAFKA_SASL_PASSWORD": "s3cret",
        "SLACKWATER_KAFKA_SASL_MECHANISM": "PLAIN",
        "SLACKWATER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SLACKWATER_POSTGRES_URL": "postgresql://u:s3cret@h/d",
        "SLACKWATER_POSTGRES_OUTPUT_URL": "postgresql://u:s3cret@h/d",
        "SLACKWATER_POSTGRES_OUTPUT_PASSWORD": "s3cret",
    }
    loaded = load_settings({}, environment)
    assert "s3cret" not in repr(loaded)
    assert "s3cret" not in str(list(loaded.shown()))


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("SLACKWATER_CONNECT_URL", "http://u:s3cret@h:1/p", "http://********@h:1/p"),
        ("SLACKWATER_REGISTRY_URL", "http://u:s3/cret@h:1", "http://********@h:1"),
        ("SLACKWATER_CHECKPOINT", "s3a://key:s3cr@et@bucket/x", "s3a://********@bucket/x"),
        ("SLACKWATER_SIDECAR_TOPICS", "s.a=http://s3cret@h", "s.a=http://********@h"),
        ("SLACKWATER_SIDECAR_TABLES", "http://s3cret@h.x,s.b", "http://********@h.x, s.b"),
    ],
)
def test_credentials_within_addresses_are_masked_in_what_is_shown(
    variable: str, value: str, shown: str
) -> None:
    rows = {origin: text for _, text, origin in load_settings({}, {variable: value}).shown()}
    assert rows[f"environment {variable}"] == shown


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (
            "redis.url",
            [
                "foo",
                "http://s3cret@h",
                "redis://",
                "redis://s3cret@h:port",
                "redis://[s3cret",
                "redis://h/s3cret",
            ],
        ),
        ("redis.url", ["redis://h:0", "redis://h:99999", ""]),
        ("postgres.url", ["s3cret", "mysql://u:s3cret@h/d", "host=h password=s3cret"]),
        ("kafka.bootstrap", ["", ":9092", "h:port", "h:1,", "h:0", "h:65536", "s3cret:s3cret"]),
        ("source", ["", "in v", "inv/", "in\nv", "a" * 201]),
        ("sources", ["inv,in v"]),
    ],
)
def test_addresses_and_names_that_cannot_be_ones_are_refused_without_repeating_them(
    path: str, values: list[str]
) -> None:
    for value in values:
        with pytest.raises(CommandConfigError, match=rf"setting {path}.* .from flag.: expected ") as caught:
            load_settings({path: value}, {})
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("redis.url", "redis://h"),
        ("redis.url", "rediss://u:p@h:6380/15?ssl_ca_certs=x"),
        ("redis.url", "unix:///run/redis.sock?db=1"),
        ("postgres.url", "postgres://h"),
        ("postgres.url", "postgresql://u:p@h1:1,h2:2/d?target_session_attrs=any"),
        ("kafka.bootstrap", "h1:1, [::1]:65535"),
        ("source", "Inv_1.a-b"),
    ],
)
def test_addresses_that_the_clients_take_are_taken(path: str, value: str) -> None:
    variable = next(field.variables[0] for field in setting_fields() if field.path == path)
    assert load_settings({}, {variable: value}).origins[path] == f"environment {variable}"


def test_the_files_for_tls_are_put_into_the_redis_url() -> None:
    environment = {
        "SLACKWATER_REDIS_URL": "rediss://user@h:1/2?protocol=2",
        "SLACKWATER_REDIS_PASSWORD": "secret",
        "SLACKWATER_REDIS_SSL_CA": "/etc/ca.pem",
        "SLACKWATER_REDIS_SSL_CERTIFICATE": "/etc/client.pem",
        "SLACKWATER_REDIS_SSL_KEY": "/etc/client.key",
    }
    query = (
        "protocol=2&ssl_ca_certs=%2Fetc%2Fca.pem&ssl_certfile=%2Fetc%2Fclient.pem"
        "&ssl_keyfile=%2Fetc%2Fclient.key"
    )
    redis = load_settings({}, environment).settings.redis.server()
    assert redis == RedisSettings(f"rediss://user@h:1/2?{query}", "secret")


@pytest.mark.parametrize(
    ("environment", "url", "password"),
    [
        ({"OUTPUT_URL": "postgresql://u:s%403@h:1/d"}, "postgresql://u@h:1/d", "s@3"),
        (
            {"URL": "postgresql://a@h/d", "OUTPUT_URL": "postgresql://b@h2/d"},
            "postgresql://b@h2/d",
            None,
        ),
        (
            {"OUTPUT_URL": "postgresql://h/d?password=x&options=-c%20a"},
            "postgresql://h/d?options=-c%20a",
            "x",
        ),
        ({"OUTPUT_URL": "postgresql://u:x@h/d", "OUTPUT_PASSWORD": "y"}, "postgresql://u@h/d", "y"),
    ],
)
def test_the_output_database_is_known_with_its_password_apart(
    environment: dict[str, str], url: str, password: str | None
) -> None:
    named = {f"SLACKWATER_POSTGRES_{name}": value for name, value in environment.items()}
    found = load_settings({}, named).settings.postgres.output()
    assert found == PostgresSettings(url, password)
    assert password is None or password not in repr(found)


def test_the_source_database_is_never_an_output_by_omission() -> None:
    settings = load_settings({}, {"SLACKWATER_POSTGRES_URL": "postgresql://u:x@h/d"}).settings
    assert settings.postgres.output() is None


def test_files_for_tls_need_tls() -> None:
    environment = {"SLACKWATER_REDIS_URL": "redis://h:1", "SLACKWATER_REDIS_SSL_CA": "/etc/ca.pem"}
    with pytest.raises(CommandConfigError, match="rediss://"):
        load_settings({}, environment)


@pytest.mark.parametrize(
    ("url", "password", "expected"),
    [
        ("redis://h:1/2", None, RedisSettings("redis://h:1/2", None)),
        ("redis://:a%2Fb@h:1/2", None, RedisSettings("redis://h:1/2", "a/b")),
        ("redis://u:old@h:1", "new", RedisSettings("redis://u@h:1", "new")),
        ("rediss://h:1", "new", RedisSettings("rediss://h:1", "new")),
    ],
)
def test_the_redis_password_stands_apart_from_the_url(
    url: str, password: str | None, expected: RedisSettings
) -> None:
    environment = {"SLACKWATER_REDIS_URL": url, "SLACKWATER_REDIS_PASSWORD": password or ""}
    assert load_settings({}, environment).settings.redis.server() == expected


def test_kafka_options_hold_security_and_free_properties(config: Path) -> None:
    environment = {
        "SLACKWATER_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SLACKWATER_KAFKA_SASL_MECHANISM": "PLAIN",
        "SLACKWATER_KAFKA_SASL_USERNAME": "u",
        "SLACKWATER_KAFKA_SASL_PASSWORD": "p",
    }
    assert load_settings({}, environment, config).settings.kafka.client_options() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "socket.timeout.ms": "1000",
    }


def test_tables_of_texts_can_be_pairs_or_a_table(config: Path) -> None:
    config.write_text('[sidecar.topics]\n"inv.a" = "x"\n"inv.b" = "y"\n')
    from_file = load_settings({}, {}, config).settings.sidecar.topics
    assert from_file == {"inv.a": "x", "inv.b": "y"}
    environment = {"SLACKWATER_SIDECAR_TOPICS": "inv.a = x, inv.b=y"}
    assert load_settings({}, environment).settings.sidecar.topics == from_file
    with pytest.raises(CommandConfigError, match="expected name=value"):
        load_settings({}, {"SLACKWATER_SIDECAR_TOPICS": "inv.a"})


def test_tables_are_named_as_in_the_database_or_as_in_sql() -> None:
    environment = {
        "SLACKWATER_SIDECAR_TABLES": 'inv.a.b, inv."c, d"',
        "SLACKWATER_SIDECAR_TOPICS": 'inv."c, =d"=x',
        "SLACKWATER_SIDECAR_COMPLETE_TABLES": "*",
    }
    sidecar = load_settings({}, environment).settings.sidecar
    assert sidecar.tables == frozenset({"inv.a.b", "inv.c, d"})
    assert sidecar.topics == {"inv.c, =d": "x"}
    assert sidecar.complete_tables == frozenset({"*"})
    for name in ("TABLES", "EVIDENCE", "COMPLETE_TABLES"):
        value = "orders=counts" if name == "EVIDENCE" else "orders"
        with pytest.raises(CommandConfigError, match="'orders' is not the name of a table"):
            load_settings({}, {f"SLACKWATER_SIDECAR_{name}": value})


def test_sources_keep_their_order_and_are_named_once() -> None:
    environment = {"SLACKWATER_SOURCES": "crm, inv,crm"}
    assert load_settings({}, environment).settings.sources == ("crm", "inv")


def test_tables_without_secrets_are_shown(config: Path) -> None:
    config.write_text('[sidecar.evidence]\n"inv.a" = "overtaken"\n[sidecar.of.crm]\nopen_after = 60\n')
    shown = {path: value for path, value, _ in load_settings({}, {}, config).shown()}
    assert shown["sidecar.evidence"] == "inv.a=overtaken"
    assert shown["sidecar.of"].startswith("crm=open_after=")
    assert shown["sidecar.topics"] == "-"


def test_a_key_that_a_single_source_cannot_have_is_refused(config: Path) -> None:
    config.write_text('[sidecar.of.crm]\nhttp = "h:1"\n')
    with pytest.raises(CommandConfigError, match=r"sidecar\.of\.crm\.http"):
        load_settings({}, {}, config)


@pytest.mark.parametrize(
    ("path", "value", "is_taken"),
    [
        ("redis.url", "redis://h:1/2", True),
        ("redis.url", "rediss://user@h", True),
        ("redis.url", "redis://user:s3cret@h", False),
        ("redis.url", "redis://:s3cret@h", False),
        ("redis.url", "redis://h?password=s3cret", False),
        ("postgres.url", "postgresql://app@h/d", True),
        ("postgres.url", "postgresql://app:s3cret@h/d", False),
        ("postgres.url", "postgresql://app@h/d?password=s3cret", False),
    ],
)
def test_no_secret_is_taken_from_a_command_line(path: str, value: str, is_taken: bool) -> None:
    if is_taken:
        assert load_settings({path: value}, {}).origins[path] == "flag"
        return
    with pytest.raises(CommandConfigError, match="everybody on this machine can read") as caught:
        load_settings({path: value}, {})
    assert "s3cret" not in str(caught.value)


SECRETS = [field.path for field in setting_fields() if field.is_secret]


@pytest.mark.parametrize("path", SECRETS)
def test_every_secret_can_stand_in_a_file_of_its_own(path: str, tmp_path: Path) -> None:
    scheme = {"redis.url": "redis", "postgres.url": "postgresql", "postgres.output_url": "postgresql"}.get(
        path
    )
    (tmp_path / "secret").write_text(f"{scheme}://u:s3cret@h\n" if scheme else "s3cret\n")
    section, _, key = path.partition(".")
    toml = tmp_path / "slackwater.toml"
    toml.write_text(f'[{section}]\n{key}_file = "secret"\n')
    others = needed(path)
    variable = f"SLACKWATER_{section}_{key}_FILE".upper()
    for loaded in (
        load_settings({}, others, toml),
        load_settings({}, {variable: str(tmp_path / "secret"), **others}),
    ):
        assert loaded.origins[path] == f"file {tmp_path / 'secret'}"
        assert secrets_of(loaded.settings) == {"s3cret"}
    toml.write_text(f'[{section}]\n{key}_file = "secret"\n{key} = "x"\n')
    with pytest.raises(CommandConfigError, match="say the same"):
        load_settings({}, others, toml)


def test_there_are_secrets() -> None:
    assert {"kafka.sasl_password", "redis.url", "connect.database_password"} < set(SECRETS)


def test_a_file_with_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, problem in (("none", "No such file"), ("binary", "it is no text")):
        environment = {"SLACKWATER_REDIS_PASSWORD_FILE": str(tmp_path / name)}
        with pytest.raises(CommandConfigError, match=f"{name} cannot be read: {problem}"):
            load_settings({}, environment)


def test_what_is_no_secret_has_no_file() -> None:
    with pytest.raises(CommandConfigError, match="unknown setting"):
        load_settings({}, {"SLACKWATER_KAFKA_BOOTSTRAP_FILE": "x"})


def test_programs_that_are_started_do_not_inherit_secrets() -> None:
    environment = {
        "SLACKWATER_REDIS_URL": "a",
        "SLACKWATER_REDIS__PASSWORD": "b",
        "SLACKWATER_SOURCE": "c",
        "AWS_SECRET_ACCESS_KEY": "d",
    }
    before = dict(environment)
    assert take_secrets(environment) == before
    assert environment == {"SLACKWATER_SOURCE": "c", "AWS_SECRET_ACCESS_KEY": "d"}


def test_secrets_are_known_by_their_parts_and_by_the_names_of_options(config: Path) -> None:
    config.write_text(
        '[redis]\nurl = "redis://u:a%2Fb@h"\n[run.spark_conf]\n"spark.hadoop.fs.s3a.secret.key" = "s3key"\n'
        '"spark.x" = "seen"\n[delta.options]\nAWS_SECRET_ACCESS_KEY = "lake"\nAWS_REGION = "eu"\n'
        '[kafka]\nsecurity_protocol = "SSL"\n[kafka.options]\n"ssl.key.password" = "keypass"\n'
    )
    assert secrets_of(load_settings({}, {}, config).settings) == {"a%2Fb", "a/b", "s3key", "lake", "keypass"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"SASL_PASSWORD": "s3cret"}, "need kafka.security_protocol SASL_SSL"),
        ({"SSL_CA": "ca.pem"}, "need kafka.security_protocol SSL"),
        (
            {"SSL_CA": "ca.pem", "SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SASL_MECHANISM": "PLAIN"},
            "SSL or SASL_SSL",
        ),
        ({"SECURITY_PROTOCOL": "SASL_SSL"}, "needs kafka.sasl_mechanism"),
        (
            {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "PLAIN", "OAUTH_TOKEN_URL": "http://h"},
            "kafka.sasl_mechanism OAUTHBEARER",
        ),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_KEY": "k"}, "need each other"),
    ],
)
def test_security_of_kafka_that_would_be_passed_over_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(CommandConfigError, match=problem) as caught:
        load_settings({}, {f"SLACKWATER_KAFKA_{name}": value for name, value in given.items()})
    assert "s3cret" not in str(caught.value)


def test_tokens_and_certificates_are_given_to_librdkafka_by_its_names() -> None:
    given = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SASL_MECHANISM": "OAUTHBEARER",
        "OAUTH_TOKEN_URL": "https://login",
        "OAUTH_CLIENT_ID": "orders",
        "OAUTH_CLIENT_SECRET": "s",
        "SSL_CERTIFICATE": "c.pem",
        "SSL_KEY": "k.pem",
        "SSL_KEY_PASSWORD": "p",
    }
    settings = load_settings(
        {}, {f"SLACKWATER_KAFKA_{name}": value for name, value in given.items()}
    ).settings
    assert settings.kafka.client_options() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://login",
        "sasl.oauthbearer.client.id": "orders",
        "sasl.oauthbearer.client.secret": "s",
        "ssl.certificate.location": "c.pem",
        "ssl.key.location": "k.pem",
        "ssl.key.password": "p",
    }


def test_every_error_says_what_to_change() -> None:
    with pytest.raises(CommandConfigError) as caught:
        load_settings({}, {"SLACKWATER_SORCE": "x"})
    assert caught.value.exit_code == 2


def test_the_place_of_delta_tables_is_known_and_their_options_are_not_shown(config: Path) -> None:
    config.write_text('[delta]\nlocation = "s3://lake"\nkeep = 60\n[delta.options]\nsecret = "s3cret"\n')
    loaded = load_settings({}, {}, config)
    lake = LakeSettings(place="s3://lake", options={"secret": "s3cret"}, keep=timedelta(minutes=1))
    assert asdict(loaded.settings.delta) == asdict(lake)
    assert "s3cret" not in str(list(loaded.shown()))
    assert servers(load_settings({"kafka.bootstrap": "h:1"}, {}).settings, "").delta is None


def test_the_catalogue_of_iceberg_tables_is_known_and_its_properties_are_not_shown(config: Path) -> None:
    config.write_text('[iceberg]\ncatalog = "c"\nmaintain_every = 9\n[iceberg.options]\nuri = "s3cret"\n')
    loaded = load_settings({}, {}, config)
    lake = LakeSettings(place="c", options={"uri": "s3cret"}, maintain_every=9)
    assert asdict(loaded.settings.iceberg) == asdict(lake)
    assert "s3cret" not in str(list(loaded.shown()))


@pytest.mark.parametrize("address", ["http://localhost:9092", "localhost", "localhost:", ":9092", "a:1,b"])
def test_an_address_of_kafka_is_host_and_port(address: str) -> None:
    with pytest.raises(CommandConfigError, match=r"expected host:port\[,host:port\], without http://"):
        load_settings({"kafka.bootstrap": address}, {})


def test_all_that_is_wrong_is_said_at_once_with_what_was_expected(config: Path) -> None:
    config.write_text(
        'timeline = 0\n[kafka.options]\n"socket.timeout.ms" = 1000\n[sidecar]\ntables = ["s.a", 5]\n'
        '[sidecar.evidence]\n"inv.a" = "s3cret"\n[sidecar.of.crm]\nopen_aftr = 1\n[run]\nindex_root = 5\n'
    )
    environment = {"SLACKWATER_LOG_LEVEL": "s3cret", "SLACKWATER_TELEMETRY_TRACE_RATIO": "2"}
    with pytest.raises(CommandConfigError) as caught:
        load_settings({"run.silent_after": "s3cret", "run.class_archive": "s3cret"}, environment, config)
    file = f"(from {config})"
    assert str(caught.value).splitlines() == [
        f"setting timeline {file}: expected a whole number from 1 on",
        f"setting kafka.options.socket.timeout.ms {file}: expected a text",
        f"setting sidecar.tables[1] {file}: expected a text",
        f"setting sidecar.evidence.inv.a {file}: expected 'counts' or 'overtaken' or 'offsets'",
        f"setting sidecar.of.crm.open_aftr {file}: is not a known key; did you mean open_after?",
        f"setting run.index_root {file}: expected the name of a file or folder",
        "setting run.silent_after (from flag): expected a number of seconds",
        "setting run.class_archive (from flag): expected true or false",
        "setting telemetry.trace_ratio (from environment SLACKWATER_TELEMETRY_TRACE_RATIO): "
        "expected a number from 0 to 1",
        "setting log.level (from environment SLACKWATER_LOG_LEVEL): "
        "expected 'debug' or 'info' or 'warning' or 'error'",
    ]


@pytest.mark.parametrize(("value", "is_on"), [("yes", True), ("TRUE", True), ("off", False), ("0", False)])
def test_what_can_be_on_or_off_is_said_in_any_usual_word(value: str, is_on: bool) -> None:
    assert load_settings({}, {"SLACKWATER_RUN_CLASS_ARCHIVE": value}).settings.run.class_archive is is_on


def test_a_section_whose_values_do_not_fit_names_where_they_come_from(config: Path) -> None:
    config.write_text('[registry]\nurl = "http://ada:s3cret@h"\n')
    with pytest.raises(CommandConfigError) as caught:
        load_settings({}, {"SLACKWATER_REGISTRY_USER": "ada"}, config)
    assert str(caught.value).startswith(
        f"setting registry (from {config}, environment SLACKWATER_REGISTRY_USER)"
    )
    assert "pass them separately" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_every_setting_that_names_a_file_is_relative_to_the_settings_file(config: Path) -> None:
    places = [field for field in setting_fields() if field.is_place]
    assert {"telemetry.ssl_ca", "run.checkpoint", "delta.location", "log.file"} < {
        each.path for each in places
    }
    for field in places:
        section, _, key = field.path.rpartition(".")
        others = {name: value for name, value in needed(field.path).items() if not name.endswith(key.upper())}
        config.write_text(f'[{section}]\n{key} = "some/file"\n')
        environment = others | {
            "SLACKWATER_TELEMETRY_OTLP": "https://h",
            "SLACKWATER_REDIS_URL": "rediss://h",
        }
        loaded = load_settings({}, environment, config)
        assert str(field.of(loaded.settings)) == str(config.parent / "some/file")


def test_every_setting_says_what_it_means() -> None:
    assert [field.path for field in setting_fields() if not field.declared.meaning] == []
