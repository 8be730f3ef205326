"""What servers may be given, and that no password shows."""

import pickle

import pytest

from slackwater.protocol import ConfigError, KafkaSettings, RedisSettings, RegistrySettings, Servers


def test_no_secret_shows() -> None:
    servers = Servers(
        KafkaSettings("h:1", {"sasl.password": "geheim"}),
        RedisSettings("redis://h", "geheim"),
        RegistrySettings(url="http://h", user="u", password="geheim"),
    )

    assert "geheim" not in repr(servers)
    assert servers.kafka.client_config == {"bootstrap.servers": "h:1", "sasl.password": "geheim"}


def test_an_error_about_an_address_travels_between_processes() -> None:
    error = ConfigError("the address is odd", "expected another")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (str(copy), copy.hint) == (str(error), "expected another")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("registry:8081", "is 'registry:8081'"),
        ("", "is ''"),
        ("http://", "is 'http:'"),
        ("http://u:geheim@registry", "contains credentials"),
        ("http://a,ftp://b", "is 'ftp://b'"),
    ],
)
def test_addresses_that_cannot_be_ones_are_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        RegistrySettings(url=url)
    assert "geheim" not in str(caught.value)
