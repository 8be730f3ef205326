"""Compares what a database has committed with what its topics contain, for ways that can lose messages."""

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from confluent_kafka import Message as Record

from slackwater.protocol import ConfigError, KafkaSettings, epoch_ms, from_epoch_ms
from slackwater_messaging.database import Database
from slackwater_messaging.message import header_of
from slackwater_messaging.reading import topic_reader

FindId = Callable[[Record], str | None]
"""Returns the message id of a record; None if the record is not part of the comparison."""

_NEWS_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWindow:
    """Selects the messages to compare: those committed at or after ``start`` and before ``end``."""

    start: datetime
    end: datetime
    """Time zone aware. Undelivered messages count as lost, so leave enough time for delivery."""
    late_after: timedelta = timedelta(minutes=1)
    """A message counts as late if it was written to its topic more than this after its commit."""
    margin: timedelta = timedelta(minutes=10)
    """The most by which the clocks of database, services and brokers differ, and the longest transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of the comparison. Ids are in the order of the database, or of the topics."""

    committed: int
    """Messages that the database has committed in the window."""
    lost: tuple[str, ...]
    """Messages that were committed, but are in no topic."""
    repeated: tuple[str, ...]
    """Messages that were committed, and are in the topics more than once."""
    ghosts: tuple[str, ...]
    """Ghosts: messages that are in a topic within the window, but were not committed."""
    late: tuple[tuple[str, timedelta], ...]
    """Messages that were written late, with the time since their commit."""

    @property
    def is_clean(self) -> bool:
        """True if no message is lost, repeated or a ghost. Late messages do not count."""
        return not (self.lost or self.repeated or self.ghosts)


def audit_messages(
    connection: Database,
    kafka: KafkaSettings,
    *,
    query: str,
    topics: Collection[str],
    find_id: FindId,
    window: AuditWindow,
    progress: Callable[[int], None] = lambda _: None,
) -> AuditReport:
    """Compares the messages of a window of time. Changes nothing.

    Args:
        connection: A connection to the database.
        kafka: The brokers.
        query: Selects two columns, the id of each message and its commit time, for messages at or after
            ``%(start)s`` and before ``%(end)s``. These bounds are somewhat wider than the window.
        topics: The topics of the messages.
        find_id: Finds the id in a record; see :func:`id_finder`.
        window: Selects the messages to compare.
        progress: Called from time to time with the number of records read so far.

    Raises:
        ConfigError: The query does not return ids with aware times.
        StateError: A topic does not exist.
        UnavailableError: Kafka does not answer.
        psycopg.Error: The database does not answer, or rejects the query.
    """
    known = _committed(connection, query, window)
    expected = {each: at for each, at in known.items() if window.start <= at < window.end}
    seen: Counter[str] = Counter()
    ghosts: dict[str, None] = {}
    late: dict[str, timedelta] = {}
    with topic_reader(kafka, window.margin) as reader:
        start_ms = epoch_ms(window.start - window.margin)
        for number, record in enumerate(reader.since(topics, start_ms), 1):
            if number % _NEWS_EVERY == 0:
                progress(number)
            if (found := find_id(record)) is None:
                continue
            written_at = from_epoch_ms(record.timestamp()[1])
            if found in expected:
                seen[found] += 1
                delay = written_at - expected[found]
                if delay > window.late_after and seen[found] == 1:
                    late[found] = delay
            elif found not in known and window.start <= written_at < window.end:
                ghosts[found] = None
    return AuditReport(
        committed=len(expected),
        lost=tuple(each for each in expected if each not in seen),
        repeated=tuple(each for each, count in seen.items() if count > 1),
        ghosts=tuple(ghosts),
        late=tuple(late.items()),
    )


def id_finder(place: str) -> FindId:
    """Returns a function that finds the message id in a record.

    Args:
        place: ``key``, ``header:NAME``, or ``value:FIELD`` for a field of a JSON object (``value:order.id``
            for a field of a nested object).

    Raises:
        ConfigError: It is none of these.
    """
    kind, _, name = place.partition(":")
    if place == "key":
        return lambda record: _text(record.key())
    if kind == "header" and name:
        return lambda record: header_of(record.headers(), name)
    if kind == "value" and name:
        return lambda record: _field(record.value(), name.split("."))
    hint = "expected key, header:NAME, or value:FIELD of a JSON object"
    raise ConfigError(f"the place of the message id is {place!r}", hint)


def _committed(connection: Database, query: str, window: AuditWindow) -> dict[str, datetime]:
    parameters = {"start": window.start - window.margin, "end": window.end + window.margin}
    found: dict[str, datetime] = {}
    for row in connection.execute(query.encode(), parameters):
        if len(row) != 2 or not isinstance(row[1], datetime) or row[1].tzinfo is None:
            hint = "expected SELECT id, committed_at FROM …, where committed_at is a timestamp with time zone"
            raise ConfigError(f"the query returned {row!r}", hint)
        found[str(row[0])] = row[1]
    return found


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _field(value: bytes | None, path: list[str]) -> str | None:
    try:
        found: object = json.loads(value or b"null")
    except ValueError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None or isinstance(found, dict | list) else str(found)
