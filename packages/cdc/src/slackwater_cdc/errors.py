"""Errors of the change data package.

::

    CdcError
    ├── UndecodableRecordError            a value that is no Debezium record
    └── MissingTransactionMetadataError   a change without ``transaction``: the connector is set up wrongly
"""


class CdcError(Exception):
    """Root of everything this package raises."""


class UndecodableRecordError(CdcError):
    """A value that cannot be read as the expected Debezium record."""

    def __init__(self, kind: str, reason: str, value: bytes) -> None:
        super().__init__(kind, reason, value[:200])
        self.kind = kind
        """What was expected: ``change``, ``transaction record``, ``notification``."""
        self.reason = reason
        """What is wrong with the bytes."""
        self.value = value[:200]
        """The first 200 bytes."""

    def __str__(self) -> str:
        return (
            f"not a Debezium {self.kind}: {self.reason}; expected JSON, got {self.value!r}; "
            "check value.converter and the transforms of the connector, or who else writes to this topic"
        )


class MissingTransactionMetadataError(CdcError):
    """A streamed change without the ``transaction`` block: nobody can say which commit it belongs to."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table

    def __str__(self) -> str:
        return (
            f"a change of {self.table or 'an unnamed table'} has no 'transaction' block; set "
            "provide.transaction.metadata=true in the connector (and keep 'transaction' in its transforms)"
        )
