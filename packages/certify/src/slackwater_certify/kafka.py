"""Reads topics, also as outputs, with ``read_committed`` consumers that join no group and commit nothing.

Outputs are keyed documents, with tombstones for deleted ones, or change events. A record in Confluent's wire
format is a zero byte, the id of a schema, and Avro or JSON. A :class:`~slackwater_certify.CertifyError` is
raised if a topic does not exist or cannot be read, or brokers do not answer.
"""

import base64
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final

import fastavro
import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater_certify.errors import CertifyConfigError, truncated, unreadable
from slackwater_certify.history import UNREADABLE
from slackwater_certify.output import OF_ANOTHER, Commit, OffsetRange, Output, OutputRecords
from slackwater_certify.specification import Connections, Format, OutputSpecification

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
BATCH = 10_000
MAX_IDLE_POLLS = 300
"""Polls of 0.2 s; together a minute, which is the default limit of an open transaction."""
_LOOK_AGAIN_SECONDS = 0.2
_TRANSIENT = (
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own codes have no other name
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
)
"""A broker restarts, and the consumer recovers by itself; MAX_IDLE_POLLS limits how long that takes."""

Ends = dict[tuple[str, int], int]
"""By topic and partition: the offset after the last record."""
Brokers = Mapping[str, str]
"""The librdkafka settings for connecting to the brokers, including ``bootstrap.servers``."""


def read_topics(brokers: Brokers, topics: Sequence[str], ends: Ends | None = None) -> Iterator[Message]:
    """Yields every committed record that the topics contain now or, given end offsets, below these."""
    with _consumer(brokers, ", ".join(topics)) as consumer:
        ends = end_offsets(consumer, topics) if ends is None else ends
        if ends:
            consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in ends])
        for message in _read_to(consumer, dict(ends), is_last=True):
            end = ends.get((str(message.topic()), message.partition() or 0))
            if end is not None and (message.offset() or 0) < end:
                yield message


def follow_topics(
    brokers: Brokers, topics: Sequence[str], is_over: Callable[[], bool], least_ends: Callable[[], Ends]
) -> Iterator[Message]:
    """Yields every committed record as it becomes visible, from the beginning to the end of the topics.

    Waits for topics that do not exist yet. The end is determined once ``is_over`` returns true, and is at
    least ``least_ends``, which depends on the records that were read.
    """
    with _consumer(brokers, ", ".join(topics)) as consumer:
        while not is_over() and not _known(consumer).keys() >= set(topics):
            consumer.poll(_LOOK_AGAIN_SECONDS)
        consumer.assign(_partitions(consumer, topics))
        while not is_over():
            yield from _consume(consumer, 0.02)
        ends = end_offsets(consumer, topics)
        while ends:
            yield from _read_to(consumer, ends)
            ends = least_ends()
            _drop_reached(consumer, ends)


def current_ends(brokers: Brokers, topics: Sequence[str]) -> Ends:
    """Returns the end offsets of all partitions that contain records."""
    with _consumer(brokers, ", ".join(topics)) as consumer:
        return end_offsets(consumer, topics)


def existing(brokers: Brokers, topics: Sequence[str]) -> list[str]:
    """Returns the topics that exist; a connector creates the topic of a table with its first change."""
    with _consumer(brokers, f"Kafka at {brokers['bootstrap.servers']}") as consumer:
        known = _known(consumer)
    return [topic for topic in topics if topic in known]


def check_beginnings(brokers: Brokers, topics: Sequence[str]) -> None:
    """Refuses topics of the source that have lost their first records."""
    with _consumer(brokers, ", ".join(topics)) as consumer:
        for place in _partitions(consumer, topics):
            low, _ = consumer.get_watermark_offsets(place, timeout=REQUEST_SECONDS)
            if low > 0:
                raise truncated(place.topic, place.partition, low)


def end_offsets(consumer: Consumer, topics: Sequence[str]) -> Ends:
    """Asks a consumer for the end offsets of all partitions that contain records."""
    ends = {}
    for place in _partitions(consumer, topics):
        low, high = consumer.get_watermark_offsets(place, timeout=REQUEST_SECONDS)
        if high > low:
            ends[place.topic, place.partition] = high
    return ends


def place_of(message: Message) -> str:
    """Returns the position of a record as ``topic/partition/offset``."""
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def _known(consumer: Consumer) -> dict[str, Any]:
    topics: dict[str, Any] = consumer.list_topics(timeout=REQUEST_SECONDS).topics
    return topics


def _partitions(consumer: Consumer, topics: Sequence[str]) -> list[TopicPartition]:
    known = _known(consumer)
    for topic in topics:
        if topic not in known:
            raise unreadable(f"topic {topic}", "it does not exist")
    return [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in sorted(known[t].partitions)]


@contextmanager
def _consumer(brokers: Brokers, what: str) -> Iterator[Consumer]:
    """Opens a consumer; a Kafka error within the block is reported as ``what`` being unreadable."""
    settings: dict[str, str | int | bool] = {
        "group.id": "slackwater-certify",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 20,
        "queued.max.messages.kbytes": 65_536,
        **brokers,
    }
    consumer = Consumer(settings, logger=_log)
    try:
        yield consumer
    except KafkaException as error:
        raise unreadable(what, str(error)) from error
    finally:
        consumer.close()


def _consume(consumer: Consumer, seconds: float) -> Iterator[Message]:
    for message in consumer.consume(BATCH, seconds):
        error = message.error()
        if error is None:
            yield message
        elif error.code() not in _TRANSIENT:
            raise unreadable(f"topic {message.topic()}", error.str())


def _read_to(consumer: Consumer, ends: Ends, *, is_last: bool = False) -> Iterator[Message]:
    """Yields records until all ends are reached, and removes these; ``is_last`` stops their partitions.

    Counts polls without records, so that an open transaction is an error rather than an endless wait.
    """
    idle = 0
    while ends:
        if idle > MAX_IDLE_POLLS:
            (topic, partition), end = next(iter(ends.items()))
            reason = f"no records arrive below offset {end}; perhaps a transaction is open"
            raise unreadable(f"partition {partition} of topic {topic}", reason)
        idle += 1
        for message in _consume(consumer, 0.2):
            idle = 0
            yield message
        reached = _drop_reached(consumer, ends)
        if is_last and reached:
            consumer.incremental_unassign(reached)


def _drop_reached(consumer: Consumer, ends: Ends) -> list[TopicPartition]:
    """Removes and returns the partitions that have been read to their ends."""
    places = consumer.position([TopicPartition(topic, partition) for topic, partition in ends])
    reached = [place for place in places if place.offset >= ends[place.topic, place.partition]]
    for place in reached:
        del ends[place.topic, place.partition]
    return reached


_SHOWN = 100
_DIGITS = 20
_OPERATIONS = ("c", "u", "d", "r")


class _CommitRecord(msgspec.Struct, gc=False):
    timeline: int
    commit_lsn: int
    previous_lsn: int
    commit_ts: int
    offsets: dict[str, dict[int, tuple[int, int, int]]]
    skipped: tuple[int, ...] = ()


_COMMITS = msgspec.json.Decoder(_CommitRecord)


def read_topic(output: OutputSpecification, connections: Connections) -> OutputRecords:
    """Reads the present content of the topic."""
    brokers, decode = connections.brokers("to read the output"), RecordDecoder(connections)
    found = read_topics(brokers, [output.commits]) if output.commits else ()
    commits = [decode_commit(message, output.name, _timestamp(message)) for message in found]
    ends = _ends_of(output.name, commits, current_ends(brokers, [output.name]))
    messages = read_topics(brokers, [output.name], ends)
    return OutputRecords((decode_output(m, output, _timestamp(m), decode) for m in messages), commits)


def follow_topic(
    output: OutputSpecification,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """Reads the topic, and notes when each record arrives here; blocks until ``is_over`` returns true.

    Records that existed before are also read, but their delays are left out.
    """
    topics = [output.name] + ([output.commits] if output.commits else [])
    brokers, decode = connections.brokers("to read the output"), RecordDecoder(connections)
    started_ms, outputs, commits = now_ms(), list[Output](), list[Commit]()
    for message in follow_topics(brokers, topics, is_over, lambda: _ends_of(output.name, commits)):
        if message.topic() == output.name:
            outputs.append(decode_output(message, output, now_ms(), decode))
        else:
            commits.append(decode_commit(message, output.name, now_ms()))
    return OutputRecords(outputs, commits, clock="arrival at the certifier", timed_since_ms=started_ms)


def decode_output(
    message: Message, output: OutputSpecification, visible_ms: int, decode: "RecordDecoder"
) -> Output:
    """Decodes a record; one that cannot be read is a problem of the output, not an error."""
    value, key = message.value(), message.key()
    text = None if output.lsn_header is None else _header(message, output.lsn_header)
    is_lsn = text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS
    lsn = int(text) if text is not None and is_lsn else None
    place = (message.partition() or 0, message.offset() or 0)
    if any(_header(message, name) != wanted for name, wanted in output.only.items()):
        return Output(place, visible_ms, lsn=lsn, problem=OF_ANOTHER)
    document, problem = (None, None) if value is None else _document(value, output.format, decode)
    return Output(place, visible_ms, _key(key, decode), document, lsn, problem)


def _document(
    value: bytes, form: Format, decode: "RecordDecoder"
) -> tuple[Mapping[str, Any] | None, str | None]:
    """Returns the document of a record, None if it was deleted; and what is wrong with the record."""
    try:
        found = decode(value)
    except UNREADABLE as error:
        return None, f"neither JSON nor Avro ({error}): {value[:_SHOWN].decode(errors='replace')}"
    if form is Format.DEBEZIUM:
        found, problem = _image(found)
        if found is None:
            return None, problem
    if isinstance(found, dict):
        return found, None
    return None, f"not a JSON object: {value[:_SHOWN].decode(errors='replace')}"


def decode_commit(message: Message, topic: str, visible_ms: int) -> Commit:
    """Decodes a commit record, with the ranges of one topic.

    Raises:
        CertifyError: it is not a commit record.
    """
    try:
        record = _COMMITS.decode(message.value() or b"")
    except UNREADABLE as error:
        raise unreadable(f"commit record {place_of(message)}", str(error)) from error
    ranges = tuple(
        OffsetRange(partition, count, first, last)
        for partition, (count, first, last) in record.offsets.get(topic, {}).items()
    )
    lsns = record.commit_lsn, record.previous_lsn
    return Commit(record.timeline, *lsns, record.commit_ts, visible_ms, ranges, record.skipped)


def _ends_of(topic: str, commits: Iterable[Commit], ends: Ends | None = None) -> Ends:
    """Returns the ends of a topic's partitions, which include all documents that commit records mention.

    Those are committed, but a partition ends below them until the marker of their transaction is written.
    """
    found = dict(ends or {})
    for commit in commits:
        for each in commit.ranges:
            place = (topic, each.partition)
            found[place] = max(found.get(place, 0), each.last + 1)
    return found


def _image(event: Any) -> tuple[Any, str | None]:
    """Returns the document after a change event, with or without its schema; and what is wrong with it."""
    event = event.get("payload", event) if isinstance(event, dict) else {}
    operation = event.get("op")
    if operation not in _OPERATIONS:
        return None, f"not a change event: 'op' is {operation!r}"
    if (event.get("after") is None) != (operation == "d"):
        return None, f"a change event whose 'after' does not fit 'op' {operation!r}"
    return event.get("after"), None


def _key(key: bytes | None, decode: "RecordDecoder") -> object:
    if key is None:
        return None
    try:
        found = decode(key)
    except UNREADABLE:
        return key.decode(errors="replace")
    return found["payload"] if isinstance(found, dict) and found.keys() == {"schema", "payload"} else found


def _header(message: Message, name: str) -> str | None:
    headers: Any = message.headers() or []
    for header, value in headers.items() if isinstance(headers, dict) else headers:
        if header == name and value is not None:
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return None


def _timestamp(message: Message) -> int:
    return int(message.timestamp()[1])


_HEADER_BYTES: Final = 5
_SECONDS: Final = 10
_ORIGINAL_NAME: Final = "slackwater.name"
"""The property that contains the name of a column if its name in Avro is different."""
_JSON = msgspec.json.Decoder(float_hook=str)


@dataclass(slots=True)
class RecordDecoder:
    """Decodes keys and values in any of the formats. Asks the registry once per schema."""

    connections: Connections
    _schemas: dict[int, Any] = field(default_factory=dict, repr=False)

    def __call__(self, data: bytes) -> Any:
        """Returns the value; Avro's logical types become the corresponding Python types.

        Raises:
            ValueError: The data do not match their schema, or are not JSON.
            CertifyConfigError: There is no registry, or it refuses the request.
            CertifyError: It does not answer, or does not have the schema.
        """
        if data[:1] != b"\0":
            return _JSON.decode(data)
        if len(data) < _HEADER_BYTES:
            raise ValueError(f"it has {len(data)} bytes, expected at least {_HEADER_BYTES}")
        schema = self._schema(int.from_bytes(data[1:_HEADER_BYTES], "big"))
        if schema is None:
            return _JSON.decode(data[_HEADER_BYTES:])
        stream = BytesIO(data)
        stream.seek(_HEADER_BYTES)
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except (EOFError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow its end")
        return _plain(schema, value)

    def _schema(self, schema_id: int) -> Any:
        """Returns a schema for fastavro; None for a JSON Schema."""
        if schema_id not in self._schemas:
            answer = self._ask(schema_id)
            is_avro = answer.get("schemaType", "AVRO") == "AVRO"
            self._schemas[schema_id] = json.loads(answer["schema"]) if is_avro else None
        return self._schemas[schema_id]

    def _ask(self, schema_id: int) -> Mapping[str, Any]:
        registry, user = self.connections.registry, self.connections.registry_user
        if registry is None:
            raise CertifyConfigError(
                "the output's records refer to schemas in a registry, but no registry is configured",
                "set registry.url (SLACKWATER_REGISTRY_URL)",
            )
        address = registry.split(",")[0].strip().rstrip("/")
        request = urllib.request.Request(f"{address}/schemas/ids/{schema_id}")  # noqa: S310 - of the settings
        if user is not None:
            credentials = f"{user}:{self.connections.registry_password or ''}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310 - see above
                found: Mapping[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                    problem = f"schema registry {address} refuses schema {schema_id} (HTTP {error.code})"
                    raise CertifyConfigError(problem, "check user and password") from error
                raise unreadable(f"schema {schema_id} of {address}", f"HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            raise unreadable(f"schema {schema_id} of {address}", str(error)) from error
        return found


def _plain(schema: Any, value: Any) -> Any:
    """Returns a value with the original names of columns, in forms that JSON documents may also have."""
    if value is None:
        return None
    if isinstance(schema, list):
        (branch,) = (each for each in schema if each != "null")
        return _plain(branch, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {
            each.get(_ORIGINAL_NAME, each["name"]): _plain(each["type"], value[each["name"]])
            for each in schema["fields"]
        }
    if kind == "array":
        return [_plain(schema["items"], item) for item in value]
    if kind == "map":
        return {name: _plain(schema["values"], item) for name, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else value
