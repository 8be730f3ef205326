import pickle

import pytest

from slackwater_protocol import SlackwaterError
from slackwater_spark.source import errors

EVERY = [
    errors.OptionError("tables", "is required", "say some"),
    errors.OffsetFormatError("expected version 1", "{}"),
    errors.MissingCutsError("inv", 0, 5, 9),
    errors.UnlikePartitionsError((("t", 1), ("u", 2))),
    errors.PartitionsChangedError("t", 1, 2),
    errors.TruncatedTopicError("t", 1, 5, 9, 12),
    errors.TruncatedTopicError("t", 1, 50, 9, 12),
    errors.MissingTopicError("t", 1, 5),
    errors.SchemaRegistryError("it is away"),
    errors.KafkaReadError("t", 1, 5, 9, "nothing came"),
    errors.UnheldValueError("shop.orders", "total", "numeric", "NaN", "DecimalType"),
]


def test_every_leaf_is_in_the_list() -> None:
    leaves = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.SourceError)}
    assert leaves - {errors.SourceError} == {type(e) for e in EVERY}


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_an_error_arrives_whole_in_another_process(error: SlackwaterError) -> None:
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_truncation_says_how_much_is_gone() -> None:
    assert "topic starts at 9: 4 offsets are gone" in str(EVERY[5])


def test_a_topic_that_was_made_again_is_told_from_a_truncated_one() -> None:
    assert "deleted and made again" in str(EVERY[6])
