"""Commit positions: all that most of Slackwater knows about the log of a database.

A commit position is an ``int`` of 64 bits that increases in commit order; 0 means "none". For PostgreSQL
it is the LSN in the connector's END records, and users know it as the *commit LSN*, therefore the names
``commit_lsn`` and ``lsn``. Code outside ``slackwater.cdc.postgres`` only compares, stores and prints
positions: only the database's dialect knows which numbers lie between two commits.

The text form is PostgreSQL's for the positions of all databases. It is derived from the number alone, so
every process can print a position without knowing its database.
"""

from dataclasses import dataclass

from slackwater.protocol.errors import MalformedRecordError

SNAPSHOT_XID = 0
"""The xid of the pseudo-transaction that holds an initial snapshot; no database assigns 0."""


@dataclass(frozen=True, slots=True, order=True)
class CommitPosition:
    """The place of a transaction in a source's total commit order: timeline first, then commit LSN."""

    timeline: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.timeline}/{format_position(self.lsn)}"


def format_position(position: int) -> str:
    """The text form: ``22270488`` becomes ``0/153D218``."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def commit_id(timeline: int, lsn: int) -> str:
    """Timeline and commit LSN as hexadecimal text of fixed width: ``00000001-000000000153D218``.

    Sorts as text in commit order, for timelines below 2**32 and LSNs of 64 bits.
    """
    return f"{timeline:08X}-{lsn:016X}"


def parse_position(text: str) -> int:
    """Reads the text form, ``0/153D218``, or a plain decimal number.

    Raises:
        MalformedRecordError: the text is neither.
    """
    high, slash, low = text.partition("/")
    try:
        return (int(high, 16) << 32) | int(low, 16) if slash else int(text)
    except ValueError:
        raise MalformedRecordError("LSN", f"got {text!r}, expected 0/153D218 or a decimal number") from None
