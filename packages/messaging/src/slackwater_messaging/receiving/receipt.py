"""What a service and an inbox say to each other about a message."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from slackwater_messaging.errors import MessagingConfigError, MessagingStateError
from slackwater_messaging.message import Message, Place

_MAX_KEY_BYTES = 1024
"""An index entry of PostgreSQL has to fit a third of a page."""


class TakenOverError(MessagingStateError):
    """Another process has processed messages of this batch meanwhile.

    The transaction was rolled back. Load the partitions again, and receive the same messages again: they are
    repeats then.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(Message):
    """A message as it was read from Kafka."""

    partition: int
    offset: int
    timestamp_ms: int | None = None
    """What Kafka says when it was written, in milliseconds since the epoch; None: it does not say."""

    @property
    def place(self) -> Place:
        """The partition it was read from."""
        return Place(self.topic, self.partition)


KeyOf = Callable[[ReceivedMessage], bytes | str]
"""Tells messages apart: those with equal keys are one message and its repeats."""


def offset_key(message: ReceivedMessage) -> bytes:
    """Returns topic, partition and offset, which know what Kafka delivers again, not what a producer does."""
    return f"{message.topic}/{message.partition}/{message.offset}".encode()


def header_key(name: str) -> KeyOf:
    """Returns a function that takes a header for the key, as ``slackwater-message`` of an outbox's relay.

    It knows what a sender has sent again. A message without the header is refused when it comes.
    """

    def key_of(message: ReceivedMessage) -> bytes:
        found = next((value for each, value in reversed(message.headers) if each == name), b"")
        if not found:
            raise MessagingConfigError(
                f"it has no header {name}", "take another key, or let its sender add it"
            )
        return found

    return key_of


def as_key(key: bytes | str) -> bytes:
    """Returns a key as bytes.

    Raises:
        MessagingConfigError: It is empty or too long.
    """
    found = key.encode() if isinstance(key, str) else bytes(key)
    if not 0 < len(found) <= _MAX_KEY_BYTES:
        problem = f"a key has {len(found)} bytes, expected 1 to {_MAX_KEY_BYTES}: {found[:40]!r}"
        raise MessagingConfigError(problem, "use a digest of it, e.g. hashlib.sha256(key).digest()")
    return found


class Receipt:
    """Says whether a message was processed before, and takes or gives its answer.

    Args:
        key: The message's unique key.
        message: The message; None where a request came another way than over Kafka.
        is_repeat: True if it was processed before.
        answer: The answer that was stored for it.
        first: The receipt of the same key within the same batch that is not a repeat.
    """

    __slots__ = ("_answer", "_first", "is_repeat", "key", "message")

    def __init__(
        self,
        key: bytes,
        message: ReceivedMessage | None = None,
        *,
        is_repeat: bool = False,
        answer: bytes | None = None,
        first: "Receipt | None" = None,
    ) -> None:
        self.key = key
        self.message = message
        self.is_repeat = is_repeat or first is not None
        """True: its effect is in the database already, so it must not be processed."""
        self._answer = answer
        self._first = first

    @property
    def answer(self) -> bytes | None:
        """The answer to the message: what was stored with its effect, or what is to be stored.

        None: none was stored. Can be set once the message was processed, and only then.

        Raises:
            MessagingStateError: Set on a repeat, whose answer was given before.
        """
        return self._answer if self._first is None else self._first.answer

    @answer.setter
    def answer(self, answer: bytes | None) -> None:
        if self.is_repeat:
            problem = f"the message with key {self.key!r} is a repeat, and its answer is stored already"
            raise MessagingStateError(problem, "look at is_repeat before the message is processed")
        self._answer = answer

    def become_repeat(self, answer: bytes | None) -> None:
        """Is called by the inbox that has found the key."""
        self.is_repeat, self._answer = True, answer

    def __repr__(self) -> str:
        return f"Receipt({self.key!r}, is_repeat={self.is_repeat})"


class Inbox(Protocol):
    """Knows which messages were processed: a table, filters, or both.

    One thread uses an inbox. It keeps nothing that is not in the database as well, so a process may end at
    any moment.
    """

    @property
    def keeps_answers(self) -> bool:
        """True if a repeat has the answer of the message that it repeats."""
        ...

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Makes the tables unless they exist, in a transaction of its own or in the one that is open."""
        ...

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """Takes over partitions: called when they are assigned, and again after each failed batch.

        Returns:
            The offsets where reading has to go on, of partitions for which the inbox keeps them. Of the
            others the consumer group does.

        Raises:
            MessagingStateError: What is stored is damaged, or was written with other settings.
            psycopg.Error: The database refuses.
        """
        ...

    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> AbstractContextManager[list[Receipt]]:
        """Begins a transaction and says which messages are repeats; stores and commits at the block's end.

        An error in the block rolls everything back and is passed on. Messages of a partition come in the
        order of their offsets. Blocks while another process has one of the messages in a transaction.

        Raises:
            TakenOverError: Another process has processed some of them; nothing was stored.
            MessagingConfigError: A key cannot be used, or the connection is in a transaction already, of
                which the inbox would not see the end.
            psycopg.Error: The database refuses.
        """
        ...

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """Does a small piece of what has to be done now and then, if it is due, in its own transactions."""
        ...

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:
        """Stores what makes the next :meth:`load` of partitions fast; called when they are given away."""
        ...

    def forget(self, places: Sequence[Place]) -> None:
        """Drops what is in memory of these partitions; others have them now, or it is loaded again."""
        ...


def require_idle(connection: psycopg.Connection[Any]) -> None:
    """Makes sure that a transaction begins and ends in the block that follows.

    Raises:
        MessagingConfigError: The connection is in a transaction.
    """
    status = connection.info.transaction_status
    if status in (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR):
        problem = f"the connection is in a transaction already ({status.name})"
        raise MessagingConfigError(problem, "commit it before, or use a connection of its own")


def new_receipts(
    messages: Sequence[ReceivedMessage], key_of: KeyOf, known: Callable[[ReceivedMessage, bytes], bool]
) -> list[Receipt]:
    """Returns a receipt for each message; of one key within the batch all but the first are repeats."""
    receipts: list[Receipt] = []
    first: dict[bytes, Receipt] = {}
    for message in messages:
        try:
            key = as_key(key_of(message))
        except MessagingConfigError as error:
            place = f"{message.topic}/{message.partition}, offset {message.offset}"
            raise MessagingConfigError(f"message at {place}: {error.problem}", error.hint) from error
        if key in first:
            receipts.append(Receipt(key, message, first=first[key]))
            continue
        first[key] = Receipt(key, message, is_repeat=known(message, key))
        receipts.append(first[key])
    return receipts
