"""A message on its way."""

import pickle

import pytest

from slackwater.protocol import ConfigError
from slackwater_messaging import Message


def test_a_message_without_a_value_is_a_tombstone() -> None:
    assert Message(topic="paid", key=b"7", value=None).value is None


def test_errors_pass_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("there is no table", "make it")))  # noqa: S301
    with pytest.raises(ConfigError, match="there is no table; make it"):
        raise error
