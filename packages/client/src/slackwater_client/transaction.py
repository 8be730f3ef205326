"""A transaction of the source, as a handler gets it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slackwater_cdc.records.record import Record
from slackwater_client.errors import ClientConfigError, TransactionLostError
from slackwater_protocol import CommitPosition, commit_id

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of a transaction, or of several that its pipeline publishes as one (``emit = "latest"``)."""

    source: str
    """The connector's ``topic.prefix``."""
    timeline: int
    lsn: int
    """The commit LSN."""
    xid: int | None
    """The source's transaction; 0 is an initial snapshot, None a batch of transactions."""
    commit_ts_ms: int
    """Commit time of the (newest) transaction, milliseconds since the epoch."""
    skipped: tuple[int, ...] = ()
    """Xids of transactions in it that an operator let pass though rows were missing."""

    @property
    def id(self) -> str:
        """Timeline and LSN as text of fixed width, which sorts in commit order."""
        return commit_id(self.timeline, self.lsn)

    @property
    def position(self) -> CommitPosition:
        """The place in the source's commit order."""
        return CommitPosition(self.timeline, self.lsn)


class LanePosition(NamedTuple):
    """How far a lane is, a lane being what one member of a group owns at a time."""

    log_offset: int
    """Where the log of commits (commit topic or cut log) is to be read on."""
    done: CommitPosition | None = None
    """The newest commit that was processed; None: none is known, the offset says it all."""
    revision: int | None = None
    """Of the pipeline whose log it is, where readers are switched between revisions."""

    def __str__(self) -> str:
        """Text that sorts in commit order."""
        done = self.done or CommitPosition(0, 0)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{commit_id(done.timeline, done.lsn)}@{self.log_offset}{revision}"

    @classmethod
    def parse(cls, text: str) -> "LanePosition":
        """Reads the text.

        Raises:
            ClientConfigError: It is no position.
        """
        found, _, place = text.partition("@")
        offset, has_revision, revision = place.partition("@")
        timeline, _, lsn = found.partition("-")
        try:
            done = CommitPosition(int(timeline, 16), int(lsn, 16))
            known = None if done == CommitPosition(0, 0) else done
            return cls(int(offset), known, int(revision) if has_revision else None)
        except ValueError as error:
            hint = "expected what Transaction.positions gave, as 00000001-000000000153D218@17"
            raise ClientConfigError(f"{text!r} is no position of a consumer", hint) from error


class Piece(NamedTuple):
    """A transaction, or a stretch of one, as a merge hands it out."""

    commit: Commit
    records: list[Record]
    is_first: bool
    is_last: bool
    lanes: tuple[int, ...]
    """The lanes that it is for."""
    elsewhere: int
    """Records of the transaction that it leaves to the owners of other units."""
    after: LanePosition
    """Where its lanes are when it is done."""
    ends: Mapping[Place, int]
    """Where its partitions are read on when it is done; only where positions are kept by partition."""


class Transaction:
    """All records of one commit that its consumer is to have, in the order that the consumer promises.

    A small one is whole in memory. One that is larger than the consumer's bound is *streamed*: iterating
    reads on, blocks, and ends with the transaction's last record; it can be iterated once. When the consumer
    is asked for the next transaction, what was not iterated is passed over.

    Args:
        piece: Its only or first piece.
        read_on: Returns the next piece of a streamed one; None when it was lost.
    """

    def __init__(self, piece: Piece, read_on: Callable[[], Piece | None] | None = None) -> None:
        self._piece = piece
        self._read_on = read_on
        self.elsewhere = piece.elsewhere
        """Records of this transaction that other members of the group get, because the units are theirs;
        of a streamed one up to what was iterated."""

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._piece.commit

    @property
    def lanes(self) -> tuple[int, ...]:
        """What of the group's work it belongs to: units or a partition; 0 where nothing is divided."""
        return self._piece.lanes

    @property
    def is_streamed(self) -> bool:
        """True if it is too large for the memory that the consumer may use."""
        return self._read_on is not None

    @property
    def is_part(self) -> bool:
        """True if it spans units and other members have the rest; see :attr:`elsewhere`."""
        return self.elsewhere > 0

    @property
    def positions(self) -> dict[int, str]:
        """By lane the position behind it, for a handler that stores positions itself.

        They sort in commit order. Give them back with ``positions=`` of the consumer.
        """
        return dict.fromkeys(self._piece.lanes, str(self._piece.after))

    @property
    def records(self) -> tuple[Record, ...]:
        """All records.

        Raises:
            ClientConfigError: It is streamed, so they must be iterated.
        """
        if self._read_on is not None:
            hint = "iterate over the transaction, or give the consumer more with max_bytes"
            raise ClientConfigError(f"transaction {self.commit.id} is too large to be held in memory", hint)
        return tuple(self._piece.records)

    def __iter__(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            TransactionLostError: It is streamed, and its lane went to another member.
        """
        yield from self._piece.records
        while (records := self._read_portion()) is not None:
            yield from records

    def _read_portion(self) -> list[Record] | None:
        """Returns the next records of a streamed one; None: there are no more."""
        if self._read_on is None or self._piece.is_last:
            return None
        piece = self._read_on()
        if piece is None:
            hint = "undo what was done with its first records"
            raise TransactionLostError(f"transaction {self.commit.id} went to another member", hint)
        self.elsewhere += piece.elsewhere
        self._piece = piece
        return piece.records
