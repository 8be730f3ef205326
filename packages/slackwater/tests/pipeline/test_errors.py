import pickle

import pytest

from slackwater.outputs.kafka.producer import TransactionFailedError
from slackwater.pipeline import errors
from slackwater.pipeline.errors import (
    OutputRefusedError,
    PipelineConfigError,
    PipelineError,
    PipelineInputError,
    PipelineStateError,
    PipelineUnavailableError,
    QueryFailedError,
    RecordsGoneError,
    RunOvertakenError,
)
from slackwater.protocol import SlackwaterError

EVERY = [
    PipelineError("it failed"),
    PipelineConfigError("option 'tables' is required", "say some"),
    OutputRefusedError("orders", "a document", "too large", "raise the limit"),
    PipelineInputError("a value has no place", "read it as text"),
    PipelineStateError("the topic is gone"),
    RecordsGoneError("records are gone", "start again"),
    RunOvertakenError("orders", "epoch"),
    PipelineUnavailableError("Kafka is away", "start again"),
    QueryFailedError("pipeline 'orders' stopped: bad input (BadInputError)"),
    TransactionFailedError("flush", "timed out"),
]


def test_every_class_is_in_the_list() -> None:
    classes = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, PipelineError)}
    assert classes == {type(e) for e in EVERY} - {TransactionFailedError}


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_an_error_arrives_whole_in_another_process(error: SlackwaterError) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_the_hint_follows_the_problem() -> None:
    error = PipelineConfigError("option 'tables' is required", "say some")
    assert str(error) == "option 'tables' is required; say some"
    assert str(PipelineConfigError("it is taken")) == "it is taken"
