"""Ways to receive a message once, twins that lack what makes it work, and a service that receives so.

The service is a process that kills itself at a step: what happens to a real one.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import psycopg

from slackwater.protocol import KafkaSettings
from slackwater_lab.probes import SignalAt
from slackwater_messaging import DeadLetters, Message
from slackwater_messaging.receiving import (
    BloomInbox,
    FilteredInbox,
    FilterPolicy,
    Inbox,
    Place,
    ProcessorSettings,
    Receipt,
    ReceivedMessage,
    Receiver,
    ReceiverSettings,
    TableInbox,
    TransactionalProcessor,
    offset_key,
)

POLICY = FilterPolicy(capacity=10_000, error_rate=1e-9)
"""So rare an error that none comes in a test."""
AT_ONCE = timedelta(0)
"""Filters are written whenever they may be."""
MEASURED_POLICY = FilterPolicy(capacity=1_000_000, error_rate=1e-6)
"""As a service would have it."""


class Way(StrEnum):
    """What promises to lose and repeat nothing."""

    TABLE = "table"
    FILTERED = "filtered"
    BLOOM = "bloom"


class Twin(StrEnum):
    """What lacks one thing, and must be caught."""

    OFFSETS = "offsets"
    """No inbox: what Kafka delivers again is processed again."""
    KEY_APART = "key-apart"
    """The keys are committed before the effect, in another transaction."""
    UNFENCED = "unfenced"
    """The position is set without a comparison."""


def business_key(message: ReceivedMessage) -> bytes:
    """Returns the item that a message is about."""
    return message.key or b""


def make_inbox(
    way: Way | Twin, name: str, *, policy: FilterPolicy = POLICY, save_interval: timedelta = AT_ONCE
) -> Inbox:
    """Returns an inbox whose tables are called after a name."""
    match way:
        case Way.TABLE:
            return TableInbox(name, key_of=business_key, shards=4)
        case Way.FILTERED:
            table = TableInbox(name, key_of=business_key, shards=4)
            return FilteredInbox(table, policy=policy, save_interval=save_interval)
        case Way.BLOOM:
            return BloomInbox(name, key_of=business_key, policy=policy, save_interval=save_interval)
        case Twin.OFFSETS:
            return _NoInbox(name, key_of=business_key)
        case Twin.KEY_APART:
            return _KeyApartInbox(name, key_of=business_key)
        case Twin.UNFENCED:
            return _UnfencedInbox(name, key_of=business_key, policy=policy, save_interval=save_interval)


class _NoInbox(TableInbox):
    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        with connection.transaction():
            yield [Receipt(offset_key(message), message) for message in messages]

    def maintain(self, connection: psycopg.Connection[Any]) -> None:
        del connection  # there is nothing to forget


class _KeyApartInbox(TableInbox):
    @contextmanager
    def receive_batch(
        self, connection: psycopg.Connection[Any], messages: Sequence[ReceivedMessage]
    ) -> Iterator[list[Receipt]]:
        with super().receive_batch(connection, messages) as receipts:
            pass
        with connection.transaction():
            yield receipts


class _UnfencedInbox(BloomInbox):
    def _advance(self, connection: psycopg.Connection[Any], place: Place, end: int) -> None:
        self._next[place] = self._lock(connection, place)
        super()._advance(connection, place, end)


CONNECTION_OPTIONS = "-c lock_timeout=1s -c idle_in_transaction_session_timeout=3s"
"""Who waits looks after the group now and then; who was stopped within a transaction loses it."""


_EFFECT = "INSERT INTO {}.effect (item) VALUES (%s) RETURNING id"
_ANSWER = "INSERT INTO {}.answer (item, answer) VALUES (%s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Where a member works, and when it dies."""

    bootstrap: str
    dsn: str
    schema: str
    topic: str
    way: Way | Twin | None
    """None: within Kafka alone, to the topic ``<topic>.out``."""
    group: str
    instance: str = "one"
    """The name of a static member: who is started again takes over at once."""
    max_batch: int = 5
    is_measured: bool = False
    """Whether it works as a service does: nothing more often than by default, and no answers."""
    is_bad: bool | None = None
    """Whether every fifth item cannot be processed; None: there are no dead letters either."""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def letters(self) -> DeadLetters | None:
        """Where items go that cannot be processed."""
        return None if self.is_bad is None else DeadLetters(f"{self.schema}.letters", attempts=2)

    @property
    def has_answers(self) -> bool:
        """Filters alone keep none."""
        return not self.is_measured and self.way not in (None, Way.BLOOM, Twin.UNFENCED)

    @property
    def inbox(self) -> Inbox:
        """Knows what was received; not within Kafka.

        Raises:
            ValueError: It is within Kafka.
        """
        if self.way is None:
            raise ValueError(self)
        name = f"{self.schema}.inbox"
        if self.is_measured:
            return make_inbox(self.way, name, policy=MEASURED_POLICY, save_interval=timedelta(minutes=1))
        return make_inbox(self.way, name)

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(self.bootstrap, {"group.instance.id": self.instance, **self.options})


Probe = Callable[[Any], None]


def receiver(settings: MemberSettings, probe: Probe = lambda step: None) -> Receiver:
    """Returns a member that writes effects into a table."""
    interval = ReceiverSettings().maintain_interval if settings.is_measured else timedelta(0)
    return Receiver(
        settings.kafka,
        [settings.topic],
        group=settings.group,
        inbox=settings.inbox,
        connect=lambda: psycopg.connect(settings.dsn, options=CONNECTION_OPTIONS),
        settings=ReceiverSettings(
            max_batch=settings.max_batch, maintain_interval=interval, dead_letters=settings.letters
        ),
        probe=probe,
    )


def processor(settings: MemberSettings, probe: Probe = lambda step: None) -> TransactionalProcessor:
    """Returns a member that writes messages."""
    return TransactionalProcessor(
        settings.kafka,
        [settings.topic],
        group=settings.group,
        transactional_id=f"{settings.topic}-{settings.instance}",
        settings=ProcessorSettings(max_batch=settings.max_batch, timeout=timedelta(seconds=5)),
        probe=probe,
    )


def is_bad_item(item: str) -> bool:
    """Says whether an item is among those that may be bad."""
    return int(item) % 5 == 4


class Effects:
    """What a member does with a message: a row for each effect, and one for each answer."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._effect = _EFFECT.format(settings.schema).encode()
        self._answer = _ANSWER.format(settings.schema).encode()

    def handle(self, connection: psycopg.Connection[Any], message: ReceivedMessage) -> bytes | None:
        """Writes a row in the transaction of its message."""
        row = connection.execute(self._effect, [(message.key or b"").decode()]).fetchone()
        if self._settings.is_bad and is_bad_item((message.key or b"").decode()):
            raise ValueError(message.key)
        return str(row[0]).encode() if row is not None and self._settings.has_answers else None

    def reply(self, receipts: Sequence[Receipt]) -> None:
        """Writes answers, in a transaction of their own."""
        rows = [
            (receipt.key.decode(), (receipt.answer or b"").decode())
            for receipt in receipts
            if self._settings.is_bad is None
            or receipt.answer is not None  # that of a dead letter comes later
        ]
        with psycopg.connect(self._settings.dsn) as connection, connection.cursor() as cursor:
            cursor.executemany(self._answer, rows)

    def process(self, message: ReceivedMessage) -> list[Message]:
        value = f"{message.partition}/{message.offset}".encode()
        return [Message(topic=f"{self._settings.topic}.out", key=message.key, value=value)]


def run_member(
    settings: MemberSettings, step: str | None, times: int, number: signal.Signals = signal.SIGKILL
) -> None:
    """Is the whole process: works until it is asked to end; kills, or stops, itself at a step."""
    probe, effects = SignalAt(step, times, number), Effects(settings)
    if settings.way is None:
        with processor(settings, probe) as working:
            signal.signal(signal.SIGTERM, lambda number, frame: working.stop())
            working.run(effects.process)
    else:
        with receiver(settings, probe) as receiving:
            signal.signal(signal.SIGTERM, lambda number, frame: receiving.stop())
            receiving.run(effects.handle, reply=effects.reply if settings.has_answers else None)
