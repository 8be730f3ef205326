"""Received messages, their receipts, and the interface of inboxes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from slackwater.protocol import ConfigError, StateError
from slackwater_messaging.message import Place, ReceivedMessage

_MAX_KEY_BYTES = 1024
"""An index entry of PostgreSQL has to fit a third of a page."""


KeyOf = Callable[[ReceivedMessage], bytes | str]
"""Returns the key of a message. Messages with equal keys are the same message and its repeats."""


def offset_key(message: ReceivedMessage) -> bytes:
    """Returns topic, partition and offset. They identify repeated deliveries, but not repeated sends."""
    return f"{message.topic}/{message.partition}/{message.offset}".encode()


def header_key(name: str) -> KeyOf:
    """Returns a function that uses a header as key, for example ``slackwater-message`` of an outbox's relay.

    This key also recognises messages that a sender has sent again. A message without the header is an error.
    """

    def key_of(message: ReceivedMessage) -> bytes:
        found = next((value for each, value in reversed(message.headers) if each == name), b"")
        if not found:
            raise ConfigError(
                f"it lacks the header {name}", "use another key, or let its sender add the header"
            )
        return found

    return key_of


def as_key(key: bytes | str) -> bytes:
    """Returns a key as bytes.

    Raises:
        ConfigError: It is empty or too long.
    """
    found = key.encode() if isinstance(key, str) else bytes(key)
    if not 0 < len(found) <= _MAX_KEY_BYTES:
        problem = f"a key has {len(found)} bytes, expected 1 to {_MAX_KEY_BYTES}: {found[:40]!r}"
        raise ConfigError(problem, "use a digest of the key, such as hashlib.sha256(key).digest()")
    return found


class Receipt:
    """Says whether a message was processed before, and holds its answer.

    Args:
        key: The message's unique key.
        message: The message; None for a request that did not arrive through Kafka.
        is_repeat: True if the message was processed before.
        answer: The stored answer.
        first: The receipt with the same key in the same batch that is not a repeat.
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
        """True if its effect is already in the database, so that it must not be processed."""
        self._answer = answer
        self._first = first

    @property
    def answer(self) -> bytes | None:
        """The answer to the message, either stored with its effect or to be stored.

        None: no answer is stored. Set it after the message was processed.

        Raises:
            StateError: The answer is set on a repeat, whose answer is already stored.
        """
        return self._answer if self._first is None else self._first.answer

    @answer.setter
    def answer(self, answer: bytes | None) -> None:
        if self.is_repeat:
            problem = f"the message with key {self.key!r} is a repeat, and its answer is already stored"
            raise StateError(problem, "check is_repeat before you process the message")
        self._answer = answer

    def become_repeat(self, answer: bytes | None) -> None:
        """Called by the inbox when it has found the key."""
        self.is_repeat, self._answer = True, answer

    def __repr__(self) -> str:
        return f"Receipt({self.key!r}, is_repeat={self.is_repeat})"


class Inbox(ABC):
    """Knows which messages were processed, by a table, filters, or both.

    Use an inbox from one thread. Everything that it keeps in memory is also in the database, so a process may
    end at any moment.
    """

    keeps_answers = True
    """True if a repeat has the answer of the original message."""

    @abstractmethod
    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the tables unless they exist, in the open transaction or in a separate one."""

    def load(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> Mapping[Place, int]:
        """Takes over partitions. Called when they are assigned, and again after each failed batch.

        Returns:
            The offsets at which reading must continue, for partitions whose offsets the inbox stores. For the
            others, the consumer group stores them.

        Raises:
            StateError: The stored data are damaged, or were written with other settings.
            psycopg.Error: The database rejects a statement.
        """
        return {}

    @abstractmethod
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> AbstractContextManager[list[Receipt]]:
        """Begins a transaction, returns which messages are repeats, and commits at the end of the block.

        An error in the block rolls everything back and is passed on. Messages of a partition must be in the
        order of their offsets. Blocks while another process has one of the messages in an open transaction.

        Raises:
            TakenOverError: Another process has processed some of the messages; nothing was stored.
            ConfigError: A key is not valid, or the connection already has an open transaction, whose
                end the inbox would not control.
            psycopg.Error: The database rejects a statement.
        """

    @abstractmethod
    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        """Does a small part of the periodic work, if it is due, in separate transactions."""

    def save(self, connection: psycopg.Connection[Any], places: Sequence[Place]) -> None:  # noqa: B027
        """Stores data that make the next :meth:`load` of partitions fast. Called when they are revoked."""

    def forget(self, places: Sequence[Place]) -> None:  # noqa: B027
        """Drops the memory of these partitions, because others own them now or they will be loaded again."""


def new_receipts(
    messages: Sequence[ReceivedMessage], key_of: KeyOf, known: Callable[[ReceivedMessage, bytes], bool]
) -> list[Receipt]:
    """Returns a receipt for each message. All but the first with one key in the batch are repeats."""
    receipts: list[Receipt] = []
    first: dict[bytes, Receipt] = {}
    for message in messages:
        try:
            key = as_key(key_of(message))
        except ConfigError as error:
            place = f"{message.topic}/{message.partition}, offset {message.offset}"
            raise ConfigError(f"message at {place}: {error.problem}", error.hint) from error
        if key in first:
            receipts.append(Receipt(key, message, first=first[key]))
            continue
        first[key] = Receipt(key, message, is_repeat=known(message, key))
        receipts.append(first[key])
    return receipts
