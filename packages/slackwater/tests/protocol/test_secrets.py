"""What is a secret by its name, and that none is left in a text."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import HIDDEN, hide, secret_options


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "AWS_SECRET_ACCESS_KEY",
        "aws_session_token",
        "s3.secret-access-key",
        "adls.account-key",
        "token",
        "spark.hadoop.fs.s3a.access.key",
        "sasl.jaas.config",
    ],
)
def test_options_with_secrets_are_known_by_their_names(name: str) -> None:
    assert secret_options({name: "value"}) == {"value"}


@pytest.mark.parametrize(
    "name",
    [
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "ssl.ca.location",
        "ssl.key.location",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.token.endpoint.url",
        "AWS_REGION",
        "spark.master",
    ],
)
def test_other_options_are_shown(name: str) -> None:
    assert secret_options({name: "value"}) == frozenset()


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        ("http://h:1/token", set()),
        ("s3://bucket/x", set()),
        ("http://u:p%40ss@h:1/x", {"p%40ss", "p@ss"}),
        ("postgresql://u@h/d?password=p+q&sslmode=require", {"p q"}),
        ("http://[bad:secret@h", {"http://[bad:secret@h"}),
    ],
)
def test_passwords_in_addresses_are_secrets_whatever_the_option(address: str, secrets: set[str]) -> None:
    assert secret_options({"AWS_ENDPOINT_URL": address, "token": address}) == secrets


@given(st.text(min_size=4, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_form_of_a_secret_is_left(secret: str, before: str, after: str) -> None:
    for form in (secret, json.dumps(secret), quote(secret, safe=""), repr(secret)):
        assert form not in hide(before + form + after, [secret]) or form in HIDDEN


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    assert hide("a long-secret b", ["secret", "long-secret"]) == f"a {HIDDEN} b"


def test_a_text_without_secrets_stays_and_so_do_very_short_ones() -> None:
    assert hide("max is x", ["x", "", "other"]) == "max is x"
