import pickle
from collections.abc import Callable

from slackwater_engine.documents import DocumentBatch, malformed_batch
from slackwater_protocol import ProgressRecord
from slackwater_spark.sink import (
    OutputRefusedError,
    OutputTopicError,
    OutputUnavailableError,
    PipelineNameTakenError,
    ProducerFencedError,
    ProgressMismatchError,
)

MakeBatch = Callable[..., DocumentBatch]


def test_every_error_survives_pickling_with_its_message(make_batch: MakeBatch) -> None:
    progress = ProgressRecord(
        pipeline="orders", query_id="q", batch_id=1, source="inv", timeline=1, commit_lsn=9
    )
    errors = [
        malformed_batch(1, "no header"),
        OutputRefusedError("orders", "a document", "too large", "raise the limit"),
        OutputTopicError("t", "1 partition", "2"),
        OutputUnavailableError("orders", "batch 1", 3, "timed out"),
        PipelineNameTakenError("orders", "q1", None),
        ProducerFencedError("orders", "epoch"),
        ProgressMismatchError("orders", 7, make_batch(7).header, progress, "older"),
        ProgressMismatchError("orders", 7, make_batch(7).header, None, "lost"),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.args == error.args
