"""Errors of the sinks.

::

    SinkError
    ├── ProducerFencedError        another run of the pipeline has taken over; this one must stop
    ├── PipelineNameTakenError     the progress belongs to another checkpoint
    ├── ProgressMismatchError      progress and checkpoint do not fit together
    ├── OutputTopicError           a topic is not as it must be, or not as the pipeline left it
    ├── OutputRefusedError         Kafka will not take this, however often it is tried
    └── OutputUnavailableError     Kafka did not take the batch; starting again later is safe
"""

from slackwater_protocol import BatchHeader, ProgressRecord, SlackwaterError, format_position


class SinkError(SlackwaterError):
    """Root of the sinks' errors."""


class ProducerFencedError(SinkError):
    """Kafka has given the pipeline's transactional id to a newer producer."""

    def __init__(self, pipeline: str, detail: str) -> None:
        super().__init__(pipeline, detail)
        self.pipeline = pipeline
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"another run of pipeline {self.pipeline!r} took over; this run stops, nothing of its unfinished "
            "batch is visible. Run a pipeline once, or give the other one its own name "
            f"(found: {self.detail})"
        )


class PipelineNameTakenError(SinkError):
    """The pipeline's progress topic was written by a run with another checkpoint."""

    def __init__(self, pipeline: str, progress_query_id: str, checkpoint_query_id: str | None) -> None:
        super().__init__(pipeline, progress_query_id, checkpoint_query_id)
        self.pipeline = pipeline
        self.progress_query_id = progress_query_id
        self.checkpoint_query_id = checkpoint_query_id
        """None if the checkpoint is new."""

    def __str__(self) -> str:
        mine = f"is of query {self.checkpoint_query_id}" if self.checkpoint_query_id else "is new"
        return (
            f"the name {self.pipeline!r} is taken: topic {self.pipeline}.slackwater.progress was written by "
            f"query {self.progress_query_id}, the given checkpoint {mine}. Use the checkpoint of that query "
            "to go on, or another pipeline name for a second pipeline; to start over, delete the pipeline's "
            "output, commit and progress topics"
        )


class ProgressMismatchError(SinkError):
    """The batch Spark hands over does not continue what the output holds."""

    def __init__(
        self, pipeline: str, batch_id: int, header: BatchHeader, progress: ProgressRecord | None, reason: str
    ) -> None:
        super().__init__(pipeline, batch_id, header, progress, reason)
        self.pipeline = pipeline
        self.batch_id = batch_id
        self.header = header
        self.progress = progress
        """What the output holds; None if the progress topic is empty."""
        self.reason = reason

    def __str__(self) -> str:
        h, p = self.header, self.progress
        span = f"({format_position(h.from_lsn)}, {format_position(h.to_lsn)}]"
        batch = f"batch {self.batch_id} {span} of timeline {h.timeline}"
        held = (
            f"batch {p.batch_id} at {format_position(p.commit_lsn)} of timeline {p.timeline}"
            if p
            else "no batch at all"
        )
        return (
            f"pipeline {self.pipeline!r}: the checkpoint goes on with {batch}, but the output holds {held}: "
            f"{self.reason}. Writing it would repeat or lose records. Use the newest checkpoint of this "
            "pipeline, or start over: delete the checkpoint and the pipeline's output, commit and progress "
            "topics"
        )


class OutputTopicError(SinkError):
    """A topic the sink writes to is not as it must be."""

    def __init__(
        self, topic: str, expected: str, found: str, advice: str = "delete it, or use other names"
    ) -> None:
        super().__init__(topic, expected, found, advice)
        self.topic = topic
        self.expected = expected
        self.found = found
        self.advice = advice

    def __str__(self) -> str:
        return f"topic {self.topic!r}: expected {self.expected}, found {self.found}; {self.advice}"


class OutputRefusedError(SinkError):
    """Kafka will not take something, and would not the next time either. Nothing of the batch is visible."""

    def __init__(self, pipeline: str, what: str, reason: str, advice: str) -> None:
        super().__init__(pipeline, what, reason, advice)
        self.pipeline = pipeline
        self.what = what
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"pipeline {self.pipeline!r}: Kafka refuses {self.what}: {self.reason}; {self.advice}"


class OutputUnavailableError(SinkError):
    """Kafka did not take a batch within the attempts allowed; a new run goes on from there."""

    def __init__(self, pipeline: str, what: str, attempts: int, detail: str) -> None:
        super().__init__(pipeline, what, attempts, detail)
        self.pipeline = pipeline
        self.what = what
        self.attempts = attempts
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline!r}: Kafka did not complete {self.what} in {self.attempts} attempt(s), "
            f"last: {self.detail}. Nothing is lost or half visible; start the pipeline again when the "
            "broker is back"
        )
