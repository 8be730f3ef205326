"""How far the parts of a pipeline go together."""

from enum import StrEnum


class Scope(StrEnum):
    """What is of one commit LSN at any time."""

    STRICT = "strict"
    """Everything a pipeline publishes."""
    AGGREGATE = "aggregate"
    """Each document by itself: partitions of one number go together, other partitions at their own pace."""
