"""Errors of the engine, by what can be done about them.

::

    EngineError
    ├── EngineConfigError        a pipeline that cannot run like this
    ├── EngineInputError         changes that cannot be used: the source has to be put right
    │   ├── BadInputError        a record that cannot be understood, with its place
    │   └── PackingError         a change that cannot be packed; the source makes a BadInputError of it
    ├── EngineStateError         state or payloads that cannot be read, or are of another version
    └── EngineUnavailableError   a disk, or the store of a checkpoint, does not do its part; nothing lost

Spark carries errors between processes, so all can be pickled: their data are their positional arguments.
"""

from slackwater_protocol import SlackwaterError

FULL_HINT = "ALTER TABLE {table} REPLICA IDENTITY FULL"


class EngineError(SlackwaterError):
    """Root of the errors that the engine raises."""


class EngineConfigError(EngineError):
    """A pipeline that cannot run like this."""


class EngineInputError(EngineError):
    """Changes that cannot be used."""


class BadInputError(EngineInputError):
    """A record that cannot be understood, with its place."""

    def __init__(self, topic: str, partition: int, offset: int, problem: str, value: bytes) -> None:
        super().__init__(topic, partition, offset, problem, value)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.problem = problem
        self.value = value
        """The first bytes of the record's value."""

    def __str__(self) -> str:
        return (
            f"bad input at topic {self.topic}, partition {self.partition}, offset {self.offset}: "
            f"{self.problem}; the value starts with {self.value!r}. The query stops here and loses nothing: "
            "it goes on from this batch when the cause is gone"
        )


class PackingError(EngineInputError):
    """A change that cannot be packed, without its place."""


class EngineStateError(EngineError):
    """State, or a payload from another process, cannot be used."""


class EngineUnavailableError(EngineError):
    """A disk, or the checkpoint's store, does not do what is needed. Starting again is safe."""
