"""Handles the messages of a batch, and moves those that fail too often into the dead letters."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from confluent_kafka import KafkaException

from slackwater.kafka.retry import is_silence
from slackwater_messaging.database import LOST_CONNECTION, Database
from slackwater_messaging.dead_letters import DeadLetters, reason_of
from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.receiving.inbox import Inbox, Receipt, TakenOverError
from slackwater_messaging.tracing import processing

logger = logging.getLogger(__name__)

Handle = Callable[[Database, ReceivedMessage], bytes | None]
"""Processes a message in the connection's transaction; returns the answer, if any."""
Reply = Callable[[Sequence[Receipt]], None]
"""Sends the answers of a batch, including those of repeats; returns when they have arrived."""


class AttemptFailed(Exception):
    """The batch has to be rolled back and tried again. Never leaves this package."""


class Attempts:
    """Calls the function of a service for messages, and counts what fails. Used by one thread.

    Once a message has failed, each message of the batch has a savepoint, so that one attempt tries all of
    them, and the number of attempts does not depend on how many messages fail.
    """

    def __init__(self, letters: DeadLetters | None, group: str) -> None:
        self._letters, self._group = letters, group
        self._failed: dict[tuple[Place, int], list[str]] = {}
        """The reasons of failed attempts by message, of the batch that is tried."""

    def handle(self, connection: Database, receipts: Sequence[Receipt], handle: Handle) -> None:
        """Handles the messages that are not repeats, in the open transaction.

        Raises:
            AttemptFailed: A message has failed that is to be tried again.
            Exception: The function has failed, and there are no dead letters.
        """
        problems: list[str] = []
        for receipt in receipts:
            if receipt.is_repeat or (message := receipt.message) is None:
                continue
            failed = self._failed.get((message.place, message.offset), [])
            if self._letters is not None and len(failed) >= self._letters.attempts:
                self._letters.add(connection, message, failed[-1], self._group, receipt.key)
            elif problem := self._attempt(connection, receipt, message, handle):
                problems.append(problem)
        if problems:
            raise AttemptFailed(problems[0])

    def settle(self) -> None:
        """Forgets the attempts, because the batch is committed; says which messages are dead letters."""
        for (place, offset), failed in self._failed.items():
            if self._letters is not None and len(failed) >= self._letters.attempts:
                where, reason = (
                    f"{place.topic}/{place.partition}, offset {offset}",
                    failed[-1].splitlines()[0],
                )
                logger.error("group %s: %s is a dead letter: %s", self._group, where, reason)
        self._failed.clear()

    def retry_one(
        self,
        connection: Database,
        inbox: Inbox,
        handle: Handle,
        reply: Reply | None,
        note: Callable[[], None],
    ) -> bool:
        """Processes a dead letter that was handed back; returns whether there was one.

        It has its own transaction; ``note`` is called when that is committed, and then the answer is sent.
        """
        if self._letters is None:
            return False
        with connection.transaction():
            letter = self._letters.take(connection, self._group)
            if letter is None or not isinstance(letter.message, ReceivedMessage):
                return False
            receipt = Receipt(letter.inbox_key or b"", letter.message, answer=letter.answer)
            if letter.state != "done":
                try:
                    with connection.transaction(), processing(letter.message):
                        receipt.answer = handle(connection, letter.message)
                except Exception as error:
                    if _may_pass(error):
                        raise
                    failed = replace(
                        letter, state="dead", attempts=letter.attempts + 1, reason=reason_of(error)
                    )
                    self._letters.note(connection, failed)
                    logger.error(
                        "group %s: dead letter %d has failed again: %r", self._group, letter.id, error
                    )
                    return True
                inbox.store(connection, [receipt])
                self._letters.note(connection, replace(letter, state="done", answer=receipt.answer))
        note()
        if reply is not None:
            reply([receipt])
        self._letters.delete(connection, [letter.id])
        return True

    def _attempt(
        self, connection: Database, receipt: Receipt, message: ReceivedMessage, handle: Handle
    ) -> str | None:
        """Returns the problem if another message may be tried."""
        is_first = not self._failed
        try:
            with nullcontext() if is_first else connection.transaction(), processing(message):
                receipt.answer = handle(connection, message)
        except Exception as error:
            error.add_note(f"message at {_place(message)}")
            if self._letters is None or _may_pass(error):
                raise
            self._failed.setdefault((message.place, message.offset), []).append(reason_of(error))
            problem = f"message at {_place(message)}: {error!r}"
            if is_first:
                raise AttemptFailed(problem) from error
            return problem
        return None


def _may_pass(error: Exception) -> bool:
    """Returns whether a server, or another member, is the reason, and not the message."""
    return isinstance(error, (TakenOverError, *LOST_CONNECTION)) or (
        isinstance(error, KafkaException) and is_silence(error)
    )


def _place(message: ReceivedMessage) -> str:
    return f"{message.topic}/{message.partition}, offset {message.offset}"
