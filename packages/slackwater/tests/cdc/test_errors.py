"""Errors arrive whole in another process: Spark carries them from executors to the driver."""

import pickle

from slackwater.cdc import BadInputError


def test_bad_input_keeps_its_place_in_another_process() -> None:
    error = BadInputError("t", 1, 2, "broken", b"x")
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert "topic t, partition 1, offset 2: broken" in str(arrived)
