import pickle

import pytest

from slackwater.cuts import RecordsGoneError
from slackwater.outputs import contract
from slackwater.outputs.contract import OutputRefusedError
from slackwater.outputs.kafka.answers import TransactionFailedError
from slackwater.protocol import (
    ConfigError,
    InputError,
    MalformedRecordError,
    SlackwaterError,
    StateError,
    UnavailableError,
)
from slackwater.protocol import errors as kinds
from slackwater.protocol.errors import run_overtaken

EVERY = [
    SlackwaterError("it failed"),
    ConfigError("option 'tables' is required", "say some"),
    OutputRefusedError("orders", "a document", "too large", "raise the limit"),
    InputError("a value has no place", "read it as text"),
    StateError("the topic is gone"),
    RecordsGoneError("records are gone", "start again"),
    run_overtaken("orders", "epoch"),
    UnavailableError("Kafka is away", "start again"),
    MalformedRecordError("cut", "no offsets"),
    TransactionFailedError("flush", "timed out"),
]


def test_every_class_is_in_the_list() -> None:
    found = [*vars(kinds).values(), *vars(contract).values()]
    classes = {each for each in found if isinstance(each, type) and issubclass(each, SlackwaterError)}
    assert classes == {type(e) for e in EVERY} - {TransactionFailedError, RecordsGoneError}


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_an_error_arrives_whole_in_another_process(error: SlackwaterError) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_the_hint_follows_the_problem() -> None:
    error = ConfigError("option 'tables' is required", "say some")
    assert str(error) == "option 'tables' is required; say some"
    assert str(ConfigError("it is taken")) == "it is taken"
