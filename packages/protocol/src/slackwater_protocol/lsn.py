"""Log sequence numbers and the ids Debezium builds from them.

An LSN is an ``int``: PostgreSQL's unsigned 64-bit byte position in the log. 0 means "none".
"""

from dataclasses import dataclass

from slackwater_protocol.errors import MalformedRecordError

_DIGITS = 20
"""A number of as many digits has more than 63 bits."""
SNAPSHOT_XID = 0
"""The xid of the pseudo-transaction that holds an initial snapshot; PostgreSQL never assigns 0."""


@dataclass(frozen=True, slots=True, order=True)
class CommitPosition:
    """The place of a transaction in a source's total commit order: timeline first, then commit LSN."""

    timeline: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.timeline}/{format_lsn(self.lsn)}"


def format_lsn(lsn: int) -> str:
    """The form PostgreSQL prints: ``22270488`` becomes ``0/153D218``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Reads ``0/153D218`` or a plain decimal number.

    Raises:
        MalformedRecordError: the text is neither.
    """
    high, slash, low = text.partition("/")
    try:
        return (int(high, 16) << 32) | int(low, 16) if slash else int(text)
    except ValueError:
        raise MalformedRecordError("LSN", f"got {text!r}, expected 0/153D218 or a decimal number") from None


def parse_transaction_id(text: str) -> tuple[int, int]:
    """Splits the ``id`` of Debezium's PostgreSQL transaction metadata, ``"<xid>:<lsn>"``, into its numbers.

    Only the LSN of an END record is a commit LSN; BEGIN and rows carry their own (Debezium 2.0 and later).

    Raises:
        MalformedRecordError: the text has another form.
    """
    xid, _, lsn = text.partition(":")
    numbers = [int(part) for part in (xid, lsn) if part.isascii() and part.isdigit() and len(part) < _DIGITS]
    if len(numbers) == 2 and numbers[0] and max(numbers) < 1 << 63:
        return numbers[0], numbers[1]
    shown = text if len(text) < 2 * _DIGITS else f"{text[: 2 * _DIGITS]}…"
    raise MalformedRecordError(
        "transaction id", f"got {shown!r}, expected '<xid>:<lsn>' of a PostgreSQL connector"
    )
