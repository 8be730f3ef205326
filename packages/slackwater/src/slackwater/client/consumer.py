"""Reads whole transactions in a service."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import TopicPartition

from slackwater.client.errors import TransactionLostError
from slackwater.client.feeds import Feed, Merge, feed_of
from slackwater.client.inputs import Everything, Inputs, Share, check_inputs
from slackwater.client.kafka import KafkaBroker, Stored
from slackwater.client.transaction import LanePosition, Piece, Place, Transaction
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ConfigError,
    KafkaSettings,
    SystemClock,
    UnavailableError,
    epoch_ms,
)

_TEND_SECONDS = 0.1
"""How often the consumer polls its group while there is work."""
_WAIT_SECONDS = 0.1
"""How long one wait for new commits or records takes."""

PositionOf = Callable[[int], str | None]
"""Returns the position that the handler has stored for a lane; None if there is none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a consumer."""

    latest: bool = False
    """Where a group without committed positions begins: with new commits only, or with the oldest one."""
    max_bytes: int = 64 * 1024 * 1024
    """Memory for records. Prefetching stops at this size, and a single transaction that is larger is
    streamed. In total, about twice as much memory is used, and librdkafka uses the same amount again."""
    store_interval: timedelta = timedelta(seconds=1)
    """How often positions are committed."""
    stores_positions: bool = True
    """False: the handler stores the positions itself, in its own transaction."""


class TransactionalConsumer:
    """Returns whole transactions of a source in commit order, at least once.

    The consumer is a member of a consumer group. To request the next transaction is to report the previous
    one as processed. Its position is committed to the group soon afterwards, when a lane is revoked, and when
    a ``with`` block ends without an error. Transactions that were processed but not committed when a process
    dies are delivered again.

    Not thread-safe. The handler must return within the group's ``max.poll.interval.ms``.

    Args:
        share: How the members of the group share the work; the same for all of them.
        positions: Returns the position of a lane, if the handler stores positions itself; called when a lane
            is taken over. None: the group's committed offsets are used.

    Raises:
        ConfigError: The arguments contradict each other.
        UnavailableError: Kafka does not answer.
    """

    def __init__(
        self,
        kafka: KafkaSettings | KafkaBroker,
        inputs: Inputs,
        *,
        group: str,
        share: Share | None = None,
        positions: PositionOf | None = None,
        settings: ConsumerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._inputs, self._share = inputs, share or Everything()
        self._settings, self._clock = settings or ConsumerSettings(), clock or SystemClock()
        check_inputs(inputs, self._share)
        max_bytes = self._settings.max_bytes
        if max_bytes <= 0:
            raise ConfigError(f"max_bytes is {max_bytes}", "expected a positive number")
        broker = KafkaBroker(kafka, group, max_bytes) if isinstance(kafka, KafkaSettings) else kafka
        self._position_of = positions
        self._topic, lanes = self._share.ownership(group, inputs.log)
        self._feed = feed_of(inputs, broker, self._share, max_bytes, self._clock)
        self._reader = broker.reader()
        if lanes is not None:
            broker.ensure_topic(self._topic, lanes, exactly=True)
        self._member = broker.member(group, self._topic, self._give_away)
        self._lanes: dict[int, LanePosition] = {}
        """For each owned lane, the position up to which it was processed."""
        self._gone: frozenset[int] = frozenset()
        """Lanes that were revoked, and may be owned again; other members may have advanced them."""
        self._merge: Merge | None = None
        self._current: Piece | None = None
        """The newest piece of the transaction that is being processed."""
        self._taken_back: Piece | None = None
        """A piece that was found, but not returned to a caller yet."""
        self._is_lost = False
        self._handed: frozenset[int] = frozenset()
        """The lanes of all transactions that were returned since offsets were asked for."""
        self._is_batch_lost = False
        """Whether one of these lanes was revoked: its transactions come again, here or elsewhere."""
        self._processed: dict[tuple[int, ...], LanePosition] = {}
        self._unstored: dict[Place, Stored] = {}
        self._tend_at = self._store_at = float("-inf")

    def __enter__(self) -> "TransactionalConsumer":
        """Returns itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Commits the positions, and leaves the group. After an error, the newest transaction is excluded."""
        try:
            if kind is None:
                self._settle()
        finally:
            self.close()

    def __iter__(self) -> Iterator[Transaction]:
        """Yields transactions without end, and waits for the next one."""
        while True:
            transaction = self.poll(timedelta(seconds=1))
            if transaction is not None:
                yield transaction

    def poll(self, timeout: timedelta | float) -> Transaction | None:
        """Returns the next transaction, or None if none arrived in time; the next call may return one.

        A number is a time in seconds, as for other consumers of Kafka.

        The call also reports the previous transaction as processed.

        Raises:
            SlackwaterError: See the tree of errors. The consumer cannot be used afterwards.
            slackwater.cdc.BadInputError: A change record cannot be decoded.
            slackwater.protocol.InputError: A commit record or a cut cannot be decoded.
        """
        self._settle()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline = self._clock.monotonic() + seconds
        has_read = False
        while True:
            self._tend()
            piece = self._next()
            if piece is None:
                left = deadline - self._clock.monotonic()
                if has_read and left <= 0:
                    return None
                has_read = True
                self._work(max(0.0, min(left, _WAIT_SECONDS)))
            elif piece.records or not piece.is_last:
                return self._hand_out(piece)
            else:
                self._finish(piece)

    def commit(self) -> None:
        """Reports the newest transaction as processed, and commits the positions immediately."""
        self._settle()
        self._store()

    def seek(self, lsn: int, *, timeline: int = 1) -> None:
        """Seeks to the first commit at or above an LSN, which may still be in the future. Waits for a lane.

        It affects the lanes that this member owns.
        """
        self._move(lambda feed: feed.at_commit(CommitPosition(timeline, lsn)))

    def seek_to_time(self, time: datetime) -> None:
        """Seeks to the first commit at or after a time of the database's clock, which may be in the future.

        Commit times do not increase as strictly as LSNs. Where they go back, it is one of the first such
        commits.
        """
        self._move(lambda feed: feed.at_time(epoch_ms(time)))

    def offsets(self) -> list[TopicPartition]:
        """Returns the offsets to commit for everything returned so far, including the newest transaction.

        Pass them to ``send_offsets_to_transaction`` of a producer; set ``stores_positions=False``. What was
        not iterated of a streamed transaction is skipped.

        Raises:
            TransactionLostError: A transaction that was returned since the last call, or the newest one, was
                handed to another member, so the effects of all of them must not be committed.
        """
        self._skip_rest()
        if self._lanes:
            self._member.poll(0)
        self._gone |= self._member.take_gone()
        needed = self._handed.union(() if self._current is None else self._current.lanes)
        is_lost = self._is_lost or self._is_batch_lost or not needed <= self._member.lanes - self._gone
        self._handed, self._is_batch_lost = frozenset(), False
        if is_lost:
            raise TransactionLostError(
                "the transaction was handed to another member of the group", "undo its effects"
            )
        self._finish_current()
        return [TopicPartition(*place, each.offset, each.metadata) for place, each in self._offsets().items()]

    def group_metadata(self) -> Any:
        """Returns the group metadata for ``send_offsets_to_transaction``.

        Raises:
            TransactionLostError: The group has removed this member.
        """
        return self._member.group_metadata()

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that this member owns: units or partitions; 0 if the work is not divided."""
        return frozenset(self._lanes)

    def close(self) -> None:
        """Commits what was reported as processed, and leaves the group.

        The newest transaction is not committed, because it may have failed. To include it, request the next
        one, call :meth:`commit`, or use ``with``.
        """
        self._current = self._taken_back = None
        self._handed = frozenset()
        try:
            self._store()  # a Kafka consumer that is being closed may leave the group before it commits
        except UnavailableError:
            self._unstored.clear()  # otherwise closing would wait for it again
            raise
        finally:
            for part in (self._member, self._reader, self._feed):
                part.close()
            self._lanes = {}

    # --- transactions

    def _hand_out(self, piece: Piece) -> Transaction:
        self._current, self._is_lost = piece, False
        self._handed = self._handed.union(piece.lanes)
        return Transaction(piece) if piece.is_last else Transaction(piece, self._read_on)

    def _read_on(self) -> Piece | None:
        """Returns the next piece of the transaction that is being streamed; None: it was lost."""
        while True:
            self._tend()
            if self._is_lost or self._merge is None:
                return None
            piece = self._merge.next()
            if piece is not None:
                self._current = piece
                return piece
            self._work(_WAIT_SECONDS)

    def _settle(self) -> None:
        """Notes that the newest transaction was processed; skips the rest of it."""
        self._skip_rest()
        self._finish_current()
        self._current = None

    def _skip_rest(self) -> None:
        """Reads a streamed transaction to its end, or until it is lost."""
        while self._current is not None and not self._current.is_last and self._read_on() is not None:
            pass

    def _next(self) -> Piece | None:
        """Returns the next piece, if there is one."""
        if self._taken_back is not None:
            taken, self._taken_back = self._taken_back, None
            return taken
        piece = None if self._merge is None else self._merge.next()
        if self._merge is not None and self._merge.is_over:
            self._note_processed()
            self._begin(self._lanes)
        return piece

    def _finish_current(self) -> None:
        if self._current is not None and self._current.is_last:  # otherwise it was lost
            self._finish(self._current)

    def _finish(self, piece: Piece) -> None:
        if self._share.is_by_partition:
            text = str(piece.after)
            self._unstored.update({place: Stored(end, text) for place, end in piece.ends.items()})
        self._processed[piece.lanes] = piece.after

    # --- the group

    def _tend(self) -> None:
        """Polls the group from time to time: handles assigned and revoked lanes, and commits positions."""
        now = self._clock.monotonic()
        if now < self._tend_at:
            return
        self._tend_at = now + _TEND_SECONDS
        self._member.poll(0)
        self._follow()
        if now >= self._store_at:
            self._store_at = now + self._settings.store_interval.total_seconds()
            self._store()

    def _follow(self) -> None:
        """Restarts reading when lanes were assigned or revoked, but not within a streamed transaction."""
        owned = self._member.lanes
        self._gone |= self._member.take_gone()
        if owned == self._lanes.keys() and not self._gone:
            return
        self._is_batch_lost |= not self._gone.isdisjoint(self._handed)
        if self._current is not None and not self._current.is_last:
            if self._gone.isdisjoint(self._current.lanes):
                return
            self._is_lost = True
        self._lanes = {lane: position for lane, position in self._lanes.items() if lane not in self._gone}
        self._unstored = {place: each for place, each in self._unstored.items() if place[1] not in self._gone}
        self._gone = frozenset()
        self._note_processed()
        gained = owned - self._lanes.keys()
        self._begin({**self._lanes, **self._positions(gained)})

    def _begin(self, lanes: Mapping[int, LanePosition]) -> None:
        self._taken_back = None
        self._reader.reset()
        found, self._merge = self._feed.begin(lanes) if lanes else ({}, None)
        self._lanes = dict(sorted(found.items()))

    def _positions(self, lanes: frozenset[int]) -> dict[int, LanePosition]:
        """Returns the positions of lanes that this member takes over. A new group may commit them."""
        if self._position_of is not None:
            texts = {lane: self._position_of(lane) for lane in lanes}
            return {n: LanePosition.parse(text) if text else self._start() for n, text in texts.items()}
        places = {lane: self._places(lane) for lane in lanes}
        stored = self._member.stored([place for found in places.values() for place in found])
        return {
            lane: self._stored_position(lane, {place: stored[place] for place in found if place in stored})
            for lane, found in places.items()
        }

    def _stored_position(self, lane: int, stored: Mapping[Place, Stored]) -> LanePosition:
        if not stored:
            start = self._start()
            may_move = self._settings.latest or start.revision is not None  # new commits, a switch
            if may_move and self._settings.stores_positions:
                self._member.store(self._begun_offsets(lane, start))
            return start
        if not self._share.is_by_partition:
            return self._feed.at_log_offset(next(iter(stored.values())))
        if all(each.metadata for each in stored.values()):
            return max(LanePosition.parse(each.metadata) for each in stored.values())
        return self._feed.at_offsets(lane, {place: each.offset for place, each in stored.items()})

    def _begun_offsets(self, lane: int, start: LanePosition) -> dict[Place, Stored]:
        ends = dict.fromkeys(self._places(lane), start.log_offset)
        if self._share.is_by_partition:
            ends = {place: self._reader.bounds(place)[1] for place in ends}
        return {place: Stored(end, str(start)) for place, end in ends.items()}

    def _start(self) -> LanePosition:
        return self._feed.at_start(latest=self._settings.latest)

    def _places(self, lane: int) -> list[Place]:
        """Returns the partitions whose committed offsets are a lane's position."""
        topics = self._inputs.data_topics if self._share.is_by_partition else (self._topic,)
        return [(topic, lane) for topic in topics]

    def _give_away(self, lanes: frozenset[int]) -> None:
        """Commits what was processed before other members continue with the lanes."""
        self._store()

    def _note_processed(self) -> None:
        for lanes, position in self._processed.items():
            for lane in lanes:
                if self._has(lane) and position.log_offset >= self._lanes[lane].log_offset:
                    self._lanes[lane] = position
                    if not self._share.is_by_partition:
                        self._unstored[self._topic, lane] = Stored(position.log_offset, str(position))
        self._processed.clear()

    def _offsets(self) -> dict[Place, Stored]:
        self._note_processed()
        return {place: each for place, each in self._unstored.items() if self._has(place[1])}

    def _has(self, lane: int) -> bool:
        """Returns whether this member owns a lane, and no other member has owned it in between."""
        return lane in self._lanes and lane not in self._gone

    def _store(self) -> None:
        offsets = self._offsets()
        if offsets and self._settings.stores_positions and self._member.store(offsets):
            self._unstored.clear()

    def _move(self, find: Callable[[Feed], LanePosition]) -> None:
        self._settle()
        while not self._has_moved(find):
            pass

    def _has_moved(self, find: Callable[[Feed], LanePosition]) -> bool:
        """Seeks if a lane is assigned; waits briefly for one."""
        if not self._lanes:
            self._member.poll(_WAIT_SECONDS)
            self._follow()
        if not self._lanes:
            return False
        position = find(self._feed)
        self._processed.clear()
        self._unstored.clear()
        self._begin(dict.fromkeys(self._lanes, position))
        return True

    # --- reading

    def _work(self, seconds: float) -> None:
        """Reads what is needed next; waits for at most ``seconds``."""
        merge = self._merge
        if merge is None:
            self._member.poll(seconds)
            self._tend_at = float("-inf")
            return
        if merge.wants_commits:
            self._feed.read_commits(0 if merge.waits else seconds)
        if merge.waits:
            self._reader.begin(merge.queues.take_starts())
            self._reader.pause(merge.paused())
            for portion in self._reader.read(seconds):
                merge.queues.add(*portion)
