"""Errors of the source.

::

    SourceError
    ├── OptionError             an option is missing, unknown or has no usable value
    ├── OffsetFormatError       the checkpoint holds an offset this version cannot use
    ├── MissingCutsError        cuts that a batch needs are not in the cut log
    ├── UnlikePartitionsError   scope aggregate: the topics have different numbers of partitions
    ├── PartitionsChangedError  scope aggregate: a topic has another number of partitions than before
    ├── UnheldValueError        typed rows: Spark's type cannot hold a value; becomes a BadInputError
    ├── TruncatedTopicError     records that a batch needs are no longer in Kafka
    ├── MissingTopicError       a topic that held records is gone
    ├── SchemaRegistryError     the schema registry does not help; starting again later is safe
    └── KafkaReadError          Kafka does not deliver; starting again later is safe
"""

from difflib import get_close_matches

from slackwater_protocol import SlackwaterError


class SourceError(SlackwaterError):
    """Root of the source's errors."""


class OptionError(SourceError):
    """An option of ``format("slackwater")`` is not usable."""

    def __init__(self, option: str, problem: str, hint: str = "") -> None:
        super().__init__(option, problem, hint)
        self.option = option
        self.problem = problem
        self.hint = hint

    @classmethod
    def unknown(cls, option: str, known: list[str]) -> "OptionError":
        """For an option nobody has heard of."""
        close = get_close_matches(option, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}, kafka.*"
        return cls(option, "is not an option of this source", hint)

    def __str__(self) -> str:
        return f'format("slackwater"): option {self.option!r} {self.problem}' + (
            f"; {self.hint}" if self.hint else ""
        )


class OffsetFormatError(SourceError):
    """An offset, most likely out of a checkpoint, does not fit this query or this version."""

    def __init__(self, problem: str, offset: str) -> None:
        super().__init__(problem, offset)
        self.problem = problem
        self.offset = offset

    def __str__(self) -> str:
        return (
            f"the offset {self.offset} cannot be used: {self.problem}; "
            "is this the checkpoint of another query, or of a newer version?"
        )


class MissingCutsError(SourceError):
    """Between two cuts there are transactions that no cut at hand lists."""

    def __init__(self, source: str, timeline: int, after_lsn: int, up_to_lsn: int) -> None:
        super().__init__(source, timeline, after_lsn, up_to_lsn)
        self.source = source
        self.timeline = timeline
        self.after_lsn = after_lsn
        self.up_to_lsn = up_to_lsn

    def __str__(self) -> str:
        return (
            f"source {self.source}, timeline {self.timeline}: no cut in the cut log "
            f"({self.source}.slackwater.cuts) lists the transactions after commit LSN {self.after_lsn}, "
            f"up to {self.up_to_lsn}: records of it were deleted, or it was made anew under a sidecar "
            "(docs/runbooks/cut-log.md). It must be kept as long as the data topics. To start with "
            'what is left: a new checkpoint and option("allow_truncated_start", "true")'
        )


_ALIKE = (
    "In scope 'aggregate' partitions of one number go together, so all inputs must be partitioned alike by "
    "the stage key"
)


class UnlikePartitionsError(SourceError):
    """Topics of a query in scope ``aggregate`` do not have the same number of partitions."""

    def __init__(self, counts: tuple[tuple[str, int], ...]) -> None:
        super().__init__(counts)
        self.counts = counts
        """Topic and number of partitions."""

    def __str__(self) -> str:
        found = ", ".join(f"{topic} has {count}" for topic, count in self.counts)
        return (
            f"the topics have different numbers of partitions: {found}. {_ALIKE}. Make the topics again with "
            "one number of partitions (topic.creation.default.partitions of the connector) and take a new "
            "snapshot, or use scope 'strict'"
        )


class PartitionsChangedError(SourceError):
    """A topic of a query in scope ``aggregate`` was given more partitions, or was made again."""

    def __init__(self, topic: str, before: int, now: int) -> None:
        super().__init__(topic, before, now)
        self.topic = topic
        self.before = before
        self.now = now

    def __str__(self) -> str:
        return (
            f"topic {self.topic} has {self.now} partitions, it had {self.before}. {_ALIKE}, for the whole "
            "life of a checkpoint: with another number, keys move from group to group. Start with a new "
            "checkpoint and a new output after a new snapshot, all topics with the same number of "
            "partitions, or use scope 'strict', which takes new partitions as they come"
        )


class UnheldValueError(SourceError):
    """A value that the type it is to have cannot hold."""

    def __init__(self, table: str, column: str, column_type: str, value: str, held_by: str) -> None:
        super().__init__(table, column, column_type, value, held_by)
        self.table = table
        self.column = column
        self.column_type = column_type
        self.value = value
        self.held_by = held_by
        """Spark's type, or Python's."""

    def __str__(self) -> str:
        return (
            f"column {self.column} ({self.column_type}) of {self.table} holds {self.value}, which "
            f"{self.held_by} cannot hold; read the column as text (as_text=[{self.column!r}]), or correct "
            "the row"
        )


class TruncatedTopicError(SourceError):
    """Kafka has deleted records that were not read yet."""

    def __init__(self, topic: str, partition: int, wanted: int, earliest: int, end: int) -> None:
        super().__init__(topic, partition, wanted, earliest, end)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest
        self.end = end

    def __str__(self) -> str:
        where = f"topic {self.topic}, partition {self.partition}"
        if self.wanted > self.end:
            return (
                f"{where} ends at offset {self.end}, but a cut says that there are records at {self.wanted}: "
                "the topic was deleted and made again. Source, cut log and checkpoints have to start anew"
            )
        return (
            f"{where}: offset {self.wanted} is wanted, the topic starts at {self.earliest}: "
            f"{self.earliest - self.wanted} offsets are gone (retention, or deleted by hand). Start again "
            "with a new checkpoint, after a new snapshot of the database or with "
            'option("allow_truncated_start", "true")'
        )


class MissingTopicError(SourceError):
    """A topic, or a partition of it, does not exist any more."""

    def __init__(self, topic: str, partition: int, wanted: int) -> None:
        super().__init__(topic, partition, wanted)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted

    def __str__(self) -> str:
        return (
            f"topic {self.topic} has no partition {self.partition}, or does not exist, but a cut says that "
            f"it has records (offset {self.wanted} is wanted); was the topic deleted, or is this another "
            "Kafka than the sidecar's?"
        )


class SchemaRegistryError(SourceError):
    """The schema registry does not answer, or not us."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}. The query stops here and loses nothing: it goes on from this batch"


class KafkaReadError(SourceError):
    """Kafka did not deliver records that exist."""

    def __init__(self, topic: str, partition: int, position: int, wanted: int, reason: str) -> None:
        super().__init__(topic, partition, position, wanted, reason)
        self.topic = topic
        self.partition = partition
        self.position = position
        self.wanted = wanted
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, partition {self.partition}: stuck at offset {self.position}, wanted up to "
            f"{self.wanted}: {self.reason}; check that the brokers are up and that no unfinished Kafka "
            "transaction holds back read_committed readers, then start the query again"
        )
