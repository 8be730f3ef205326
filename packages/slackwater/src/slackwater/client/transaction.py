"""A transaction of the source, as a handler receives it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slackwater.cdc.batch import Record
from slackwater.client.errors import TransactionLostError
from slackwater.protocol import CommitPosition, ConfigError, commit_id
from slackwater.protocol.keys import HEADER_VIEW

Place = tuple[str, int]
"""Topic and partition."""


def view_of(record: Record) -> str:
    """Returns the view of a document in a topic of several views; empty in a topic of one."""
    value = dict(record.headers() or ()).get(HEADER_VIEW) or b""
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of a transaction, or of several that the pipeline publishes as one (``emit = "latest"``)."""

    source: str
    """The connector's ``topic.prefix``."""
    timeline: int
    lsn: int
    """The commit LSN."""
    xid: int | None
    """The id of the source's transaction; 0 is an initial snapshot, None a batch of transactions."""
    commit_ts_ms: int
    """The commit time of the (newest) transaction, in milliseconds since the epoch."""
    skipped: tuple[int, ...] = ()
    """The xids of its skipped transactions: an operator released them although rows were missing."""

    @property
    def id(self) -> str:
        """Timeline and LSN as text of fixed width, which sorts in commit order."""
        return commit_id(self.timeline, self.lsn)

    @property
    def position(self) -> CommitPosition:
        """The position in the source's commit order."""
        return CommitPosition(self.timeline, self.lsn)


class LanePosition(NamedTuple):
    """How far a lane was processed. A lane is a share of the work that one member owns at a time."""

    log_offset: int
    """The offset at which reading of the log of commits (commit topic or cut log) continues."""
    done: CommitPosition | None = None
    """The newest processed commit; None: it is not known, and the offset alone is the position."""
    revision: int | None = None
    """The revision of the pipeline that wrote the log, if readers are switched between revisions."""

    def __str__(self) -> str:
        """Returns a text that sorts in commit order."""
        done = self.done or CommitPosition(0, 0)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{commit_id(done.timeline, done.lsn)}@{self.log_offset}{revision}"

    @classmethod
    def parse(cls, text: str) -> "LanePosition":
        """Reads the text.

        Raises:
            ConfigError: The text is not a position.
        """
        found, _, place = text.partition("@")
        offset, has_revision, revision = place.partition("@")
        timeline, _, lsn = found.partition("-")
        try:
            done = CommitPosition(int(timeline, 16), int(lsn, 16))
            known = None if done == CommitPosition(0, 0) else done
            return cls(int(offset), known, int(revision) if has_revision else None)
        except ValueError as error:
            hint = "expected a value of Transaction.positions, such as 00000001-000000000153D218@17"
            raise ConfigError(f"{text!r} is not a position of a consumer", hint) from error


class Piece(NamedTuple):
    """A transaction, or a part of one, as a merge returns it."""

    commit: Commit
    records: list[Record]
    is_last: bool
    lanes: tuple[int, ...]
    """The lanes that it is for."""
    elsewhere: int
    """The number of records of the transaction that belong to the owners of other units."""
    after: LanePosition
    """The positions of its lanes after it."""
    ends: Mapping[Place, int]
    """The offsets of its partitions after it; only if positions are kept per partition."""


class Transaction:
    """All records of one commit that belong to a consumer, in the order that the consumer promises.

    A small transaction is completely in memory. A transaction that exceeds the consumer's limit is
    *streamed*: iterating over it reads further records, blocks, and ends with the last record. It can be
    iterated only once. Records that were not iterated when the consumer is asked for the next transaction are
    skipped.

    Args:
        read_on: Returns the next piece of a streamed transaction; None if it was lost.
    """

    def __init__(self, piece: Piece, read_on: Callable[[], Piece | None] | None = None) -> None:
        self._piece = piece
        self._read_on = read_on
        self.elsewhere = piece.elsewhere
        """The number of records of this transaction that other members of the group receive, because they own
        the units. For a streamed transaction, it counts up to the last iterated record."""

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._piece.commit

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that it belongs to: units or a partition; 0 if the work is not divided."""
        return self._piece.lanes

    @property
    def is_streamed(self) -> bool:
        """True if it is larger than the memory that the consumer may use."""
        return self._read_on is not None

    @property
    def is_part(self) -> bool:
        """True if it spans several units and other members receive the rest; see :attr:`elsewhere`."""
        return self.elsewhere > 0

    @property
    def positions(self) -> dict[int, str]:
        """The position after it for each lane, for a handler that stores positions itself.

        Positions sort in commit order. Return them to the consumer with its argument ``positions``.
        """
        return dict.fromkeys(self._piece.lanes, str(self._piece.after))

    @property
    def records(self) -> tuple[Record, ...]:
        """All records.

        Raises:
            ConfigError: The transaction is streamed; iterate over it instead.
        """
        if self._read_on is not None:
            hint = "iterate over the transaction, or raise the consumer's max_bytes"
            raise ConfigError(f"transaction {self.commit.id} is too large to be held in memory", hint)
        return tuple(self._piece.records)

    def __iter__(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            TransactionLostError: The transaction is streamed, and its lane was assigned to another member.
        """
        yield from self._piece.records
        while (records := self._read_portion()) is not None:
            yield from records

    def _read_portion(self) -> list[Record] | None:
        """Returns the next records of a streamed transaction; None: there are no more."""
        if self._read_on is None or self._piece.is_last:
            return None
        piece = self._read_on()
        if piece is None:
            hint = "undo the effects of its first records"
            raise TransactionLostError(
                f"transaction {self.commit.id} was handed to another member of the group", hint
            )
        self.elsewhere += piece.elsewhere
        self._piece = piece
        return piece.records
