"""The error of the engine that a caller reacts to in particular; all others are of the general kinds."""

from slackwater.protocol import InputError

FULL_HINT = "ALTER TABLE {table} REPLICA IDENTITY FULL"


class PackingError(InputError):
    """A change that cannot be packed. The error does not contain its place; a BadInputError names it."""
