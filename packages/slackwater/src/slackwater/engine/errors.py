"""Errors of the engine, divided by what can be done about them.

::

    EngineError
    ├── EngineConfigError        a pipeline that cannot run as it is configured
    ├── EngineInputError         changes that cannot be used: the source has to be corrected
    │   └── PackingError         a change that cannot be packed; a BadInputError names its place
    ├── EngineStateError         state or payloads that cannot be read, or have another version
    └── EngineUnavailableError   a disk, or the store of a checkpoint, does not work; nothing is lost

Spark passes errors between processes, so all of them can be pickled: their positional arguments contain their
data.
"""

from slackwater.protocol import SlackwaterError

FULL_HINT = "ALTER TABLE {table} REPLICA IDENTITY FULL"


class EngineError(SlackwaterError):
    """Root of the errors that the engine raises."""


class EngineConfigError(EngineError):
    """A pipeline that cannot run as it is configured."""


class EngineInputError(EngineError):
    """Changes that cannot be used."""


class PackingError(EngineInputError):
    """A change that cannot be packed. The error does not contain its place."""


class EngineStateError(EngineError):
    """State, or a payload from another process, that cannot be used."""


class EngineUnavailableError(EngineError):
    """A disk, or the store of a checkpoint, does not work. Starting again is safe."""
