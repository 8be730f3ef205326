"""The dialect of PostgreSQL: everything that the connector of another database would do differently.

To the rest of Slackwater a commit is a *commit position* (``slackwater.protocol.records``): a number
that rises in the order of commits. Where records contain such numbers, which of them belong to no commit, how
a row of a snapshot is recognised and by how much clocks may differ is defined only here.
"""

from typing import Annotated, Any, Final

import msgspec

from slackwater.protocol import MalformedRecordError

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A commit position, a transaction id: a number of 63 bits."""
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""A time since the epoch, up to the year 9999."""

# --- what a row says about itself

OWN_VERSION: Final = "slackwater"
"""The ``version`` in the ``source`` block of changes that pipelines and services write. A connector states
its own version, which begins with a number."""

_INITIAL_SNAPSHOT = frozenset(
    {"true", "first", "first_in_data_collection", "last_in_data_collection", "last"}
)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The ``source`` block of a change: where it comes from."""

    schema: str = ""
    table: str = ""
    lsn: Whole | None = None
    xid: Whole | None = msgspec.field(name="txId", default=None)
    ts_ms: Milliseconds = 0
    snapshot: str | bool | None = None

    @property
    def is_initial_snapshot(self) -> bool:
        """Whether the row belongs to an initial or a blocking snapshot; older connectors write booleans."""
        value = self.snapshot
        return value is True or value in _INITIAL_SNAPSHOT

    @property
    def is_incremental_snapshot(self) -> bool:
        """Whether the row belongs to an incremental snapshot: it is neither counted nor required."""
        return self.snapshot == "incremental"

    @property
    def is_last_of_snapshot(self) -> bool:
        """Whether the connector read no row of the snapshot after this one."""
        return self.snapshot == "last"


class FullOrigin(Origin, frozen=True, gc=False):
    """The ``source`` block with the fields that only few rows need."""

    version: Any = None
    """The version of the connector, or :data:`OWN_VERSION`."""
    sequence: msgspec.Raw = msgspec.Raw(b"null")
    """A text that is a JSON array: the LSN of the last commit before the row, and the row's own LSN."""

    @property
    def is_own(self) -> bool:
        """Whether a pipeline or a service wrote the row, so that its values have the form that is read."""
        return bool(self.version == OWN_VERSION)

    def has_paused_stream(self) -> bool:
        """Returns whether a row of a snapshot was read while the stream was paused, not at start-up.

        Raises:
            msgspec.MsgspecError: ``sequence`` is not text. UnicodeDecodeError: It is damaged.
        """
        sequence = _decode_sequence(self.sequence)
        return bool(sequence) and not str(sequence).startswith("[null")


_decode_sequence = msgspec.json.Decoder(str | None).decode


# --- what names a transaction

_MAX_XID = (1 << 32) - 1
_DIGITS = 20
"""A number with this many digits has more than 63 bits."""


def parse_transaction_id(text: str) -> tuple[int, int]:
    """Splits the ``id`` of transaction metadata, ``"<xid>:<lsn>"``, into its numbers.

    Only the LSN of an END record is a commit position; BEGIN and rows carry their own (since Debezium 2.0).

    Raises:
        MalformedRecordError: The text has another form.
    """
    xid, _, lsn = text.partition(":")
    numbers = [int(part) for part in (xid, lsn) if part.isascii() and part.isdigit() and len(part) < _DIGITS]
    if len(numbers) == 2 and numbers[0] and max(numbers) < 1 << 63:
        return numbers[0], numbers[1]
    shown = text if len(text) < 2 * _DIGITS else f"{text[: 2 * _DIGITS]}…"
    raise MalformedRecordError(
        "transaction id", f"got {shown!r}, expected '<xid>:<lsn>' of a PostgreSQL connector"
    )


def xid_of_position(position: int) -> int:
    """Returns the xid of something that belongs to no single transaction, which no transaction has.

    Xids of the database have 32 bits.
    """
    return _MAX_XID + 1 + position


def is_logical_message(data_collection: str) -> bool:
    """Returns whether END counts logical messages under a name: a Java object's, new for each message."""
    return data_collection.startswith("io.debezium.")


# --- positions that belong to no commit

_LSN_STEP = 8
"""The ends of log records are aligned to this many bytes: LSNs in between belong to no commit."""


def next_position_between_commits(position: int) -> int | None:
    """Returns the next position if no commit can have it; None if one may."""
    return None if (position + 1) % _LSN_STEP == 0 else position + 1


# --- habits of snapshots, restarts and clocks

CLOCK_SKEW_MS = 1000
"""The most by which the clocks of connector and database may differ."""
STARTED_SKEW_MS = 100
"""The most by which the stamp of a snapshot's row may precede that of its STARTED; no connector restarts as
fast."""
ON_ITS_WAY_MS = 30_000
"""Longer than a snapshot's row may take to become readable: at most 1.2 s were measured without a crash."""
COMMIT_TIME_MARGIN_MS = 10_000
"""The most by which commit times may be out of order: as long as a commit takes."""
