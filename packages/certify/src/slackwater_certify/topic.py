"""Reads topics: keyed documents in any form, tombstones for those that vanish, or change events."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka import Message

from slackwater_certify.errors import unreadable
from slackwater_certify.history import UNREADABLE
from slackwater_certify.kafka import Ends, current_ends, follow_topics, place_of, read_topics
from slackwater_certify.output import Commit, OffsetRange, Output, OutputRecords
from slackwater_certify.schemas import RecordDecoder
from slackwater_certify.specification import Connections, Format, OutputSpecification

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
    """Reads what is in the topic now.

    Raises:
        CertifyError: a topic is missing or holds no commit records.
    """
    brokers = connections.brokers("to read the output")
    commits: list[Commit] = []
    if output.commits:
        found = read_topics(brokers, [output.commits])
        commits = [decode_commit(message, output.name, _timestamp(message)) for message in found]
    ends = _ends_of(output.name, commits, current_ends(brokers, [output.name]))
    messages = read_topics(brokers, [output.name], ends)
    decode = connections.decoder()
    return OutputRecords((decode_output(m, output, _timestamp(m), decode) for m in messages), commits)


def follow_topic(
    output: OutputSpecification,
    connections: Connections,
    is_over: Callable[[], bool],
    now_ms: Callable[[], int],
) -> OutputRecords:
    """Reads the topic with the times at which records arrive here; blocks until it is over.

    Records that were there before are read, too; their delays are left out.

    Raises:
        CertifyError: a topic is missing or holds no commit records.
    """
    topics = [output.name] + ([output.commits] if output.commits else [])
    decode = connections.decoder()
    started_ms = now_ms()
    outputs: list[Output] = []
    commits: list[Commit] = []
    brokers = connections.brokers("to read the output")
    for message in follow_topics(brokers, topics, is_over, lambda: _ends_of(output.name, commits)):
        if message.topic() == output.name:
            outputs.append(decode_output(message, output, now_ms(), decode))
        else:
            commits.append(decode_commit(message, output.name, now_ms()))
    return OutputRecords(outputs, commits, clock="arrival at the certifier", timed_since_ms=started_ms)


def decode_output(
    message: Message, output: OutputSpecification, visible_ms: int, decode: RecordDecoder
) -> Output:
    """Decodes one record; what cannot be read is a problem of the output, not an error."""
    place = (message.partition() or 0, message.offset() or 0)
    value, key = message.value(), message.key()
    lsn, problem = None, None
    if output.lsn_header is not None:
        lsn = _lsn(message, output.lsn_header)
    document: Mapping[str, Any] | None = None
    if value is not None:
        try:
            found = decode(value)
        except UNREADABLE as error:
            found, problem = (
                None,
                f"neither JSON nor Avro ({error}): {value[:_SHOWN].decode(errors='replace')}",
            )
        if problem is None and output.format is Format.DEBEZIUM:
            found, problem = _image(found)
        if isinstance(found, dict):
            document = found
        elif problem is None and not (found is None and output.format is Format.DEBEZIUM):
            problem = f"not a JSON object: {value[:_SHOWN].decode(errors='replace')}"
    return Output(place, visible_ms, _key(key, decode), document, lsn, problem)


def decode_commit(message: Message, topic: str, visible_ms: int) -> Commit:
    """Decodes a commit record, with the ranges of one topic.

    Raises:
        CertifyError: it is none.
    """
    try:
        record = _COMMITS.decode(message.value() or b"")
    except UNREADABLE as error:
        raise unreadable(f"commit record {place_of(message)}", str(error)) from error
    ranges = tuple(
        OffsetRange(partition, count, first, last)
        for partition, (count, first, last) in record.offsets.get(topic, {}).items()
    )
    return Commit(
        record.timeline,
        record.commit_lsn,
        record.previous_lsn,
        record.commit_ts,
        visible_ms,
        ranges,
        record.skipped,
    )


def _ends_of(topic: str, commits: Iterable[Commit], ends: Ends | None = None) -> Ends:
    """Returns the ends of a topic's partitions, or where its commit records say that documents are.

    These are committed, but a partition ends below them while the marker of their transaction is on its way.
    """
    found = dict(ends or {})
    for commit in commits:
        for each in commit.ranges:
            place = (topic, each.partition)
            found[place] = max(found.get(place, 0), each.last + 1)
    return found


def _image(event: Any) -> tuple[Any, str | None]:
    """The document after a change event, with or without its schema; and what is wrong with it."""
    event = event.get("payload", event) if isinstance(event, dict) else {}
    operation = event.get("op")
    if operation not in _OPERATIONS:
        return None, f"not a change event: 'op' is {operation!r}"
    if (event.get("after") is None) != (operation == "d"):
        return None, f"a change event whose 'after' does not fit 'op' {operation!r}"
    return event.get("after"), None


def _key(key: bytes | None, decode: RecordDecoder) -> object:
    if key is None:
        return None
    try:
        found = decode(key)
    except UNREADABLE:
        return key.decode(errors="replace")
    return found["payload"] if isinstance(found, dict) and found.keys() == {"schema", "payload"} else found


def _lsn(message: Message, name: str) -> int | None:
    for header, value in _headers(message):
        if header == name and value is not None:
            text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
    return None


def _headers(message: Message) -> Iterable[tuple[str, Any]]:
    headers: Any = message.headers() or []
    return headers.items() if isinstance(headers, dict) else headers


def _timestamp(message: Message) -> int:
    return int(message.timestamp()[1])
