"""Messages as they are sent, received and identified, and their headers in records and in tables. Pure."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

HEADER_MESSAGE: Final = "slackwater-message"
"""The record header with the text of a :class:`MessageId`."""

Headers = tuple[tuple[str, bytes], ...]
RecordHeaders = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] | None
"""Headers in the form in which Kafka's client returns them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that a service sends to a topic."""

    topic: str
    value: bytes | None
    """None: a tombstone."""
    key: bytes | None = None
    """Messages with the same key keep their order. None: any partition, and no order."""
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage(Message):
    """A message as it was read from Kafka."""

    partition: int
    offset: int
    timestamp_ms: int | None = None
    """Kafka's timestamp of the message, in milliseconds since the epoch; None: it has none."""

    @property
    def place(self) -> Place:
        """The partition it was read from."""
        return Place(self.topic, self.partition)


class MessageId(NamedTuple):
    """Identifies a saved message uniquely, even if the table was recreated."""

    outbox: str
    """The name of the table."""
    id: int
    created_us: int
    """The start time of its transaction by the database's clock, in microseconds since the epoch."""

    def __str__(self) -> str:
        """Returns the text in a record's header."""
        return f"{self.outbox}/{self.id}/{self.created_us}"

    @classmethod
    def parse(cls, text: str) -> "MessageId | None":
        """Parses the text; None if it is not such an id."""
        outbox, *numbers = text.rsplit("/", 2)
        if len(numbers) != 2 or not all(n.isascii() and n.isdigit() for n in numbers):
            return None
        return cls(outbox, int(numbers[0]), int(numbers[1]))


def microseconds(time: datetime) -> int:
    """Returns an aware time as microseconds since the epoch."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def encode_headers(headers: Headers) -> str:
    """Returns the JSON of a table's column: an array of pairs, values as text where they are text."""
    return json.dumps([[name, _encoded(value)] for name, value in headers], ensure_ascii=False)


def decode_headers(column: str | Sequence[Sequence[str | dict[str, str]]]) -> Headers:
    """Returns the headers in the JSON of a table's column, which asyncpg returns as text."""
    pairs = json.loads(column) if isinstance(column, str) else column
    return tuple((str(name), _decoded(value)) for name, value in pairs)


def header_of(headers: RecordHeaders, name: str) -> str | None:
    """Returns the last value of a record's header as text; None if there is none or it is not text."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    for found, value in reversed(list(pairs)):
        if found == name and value is not None:
            try:
                return value if isinstance(value, str) else value.decode()
            except UnicodeDecodeError:
                return None
    return None


def _encoded(value: bytes) -> str | dict[str, str]:
    """PostgreSQL's jsonb can store neither bytes that are not UTF-8 nor the character 0."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(value).decode()} if "\0" in text else text


def _decoded(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
