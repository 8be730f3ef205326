"""Errors of the change data package.

::

    InputError
    ├── UndecodableRecordError            bytes that are not a Debezium record, or do not match their schema
    └── BadInputError                     an unusable record, with its place in Kafka

A setting of the connector or of the source that does not fit a table is a ``ConfigError``.
"""

from slackwater.protocol import ConfigError, InputError

_SHOWN = 60


class UndecodableRecordError(InputError):
    """A value that cannot be read as the expected record.

    Args:
        kind: The record that was expected: ``change``, ``transaction record``, ``notification``.
        reason: The fault in the bytes.
        value: The bytes, of which the error keeps the first 200.
        schema: The Avro schema that they should match; empty for JSON.
    """

    def __init__(self, kind: str, reason: str, value: bytes, schema: str = "") -> None:
        what, expected = f"a Debezium {kind}", "JSON"
        cause = "check value.converter and the transforms of the connector, and other writers of this topic"
        if schema:
            what = f"an Avro {kind} of {schema}"
            expected = "Confluent's wire format (a zero byte, 4 bytes with the schema's id, Avro)"
            cause = "check that this is the registry that the connector's converter uses"
        elif value[:1] == b"\0":
            cause = "it looks like Avro with a schema registry: set schema_registry"
        super().__init__(f"not {what}: {reason}; expected {expected}, got {value[:200]!r}", cause)
        self.args = kind, reason, value[:200], schema
        self.kind = kind
        self.reason = reason
        self.value = value[:200]


class BadInputError(InputError):
    """A record that cannot be used, with its place."""

    def __init__(self, topic: str, partition: int, offset: int, problem: str, value: bytes) -> None:
        super().__init__(problem)
        self.args = topic, partition, offset, problem, value
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.value = value
        """The first bytes of the record's value."""

    def __str__(self) -> str:
        return (
            f"bad input at topic {self.topic}, partition {self.partition}, offset {self.offset}: "
            f"{self.problem}; the value starts with {self.value!r}. Reading stops here, and nothing is "
            "lost: it continues here once the cause is removed"
        )


def missing_transaction(table: str) -> ConfigError:
    """Returns the error for a streamed change without the ``transaction`` block: its commit is unknown."""
    return ConfigError(
        f"a change of {table or 'an unnamed table'} has no 'transaction' block; set "
        "provide.transaction.metadata=true in the connector (and keep 'transaction' in its transforms)"
    )


def keyless_evidence(table: str) -> ConfigError:
    """Returns the error for evidence ``overtaken`` of a table whose records have no key."""
    return ConfigError(
        f"a record of {table} has no key, but its evidence is 'overtaken': without a key, a "
        "repeated row can be in any partition, however far it was read; choose evidence 'counts' for "
        "this table, give it a primary key, or omit TRUNCATE (skipped.operations=t)"
    )


def shortened(value: object) -> str:
    """Returns a value in the form that errors show."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
