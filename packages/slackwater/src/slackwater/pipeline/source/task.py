"""Reads the records of a task in an executor, as rows or packed by bucket for the stages of a pipeline."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from confluent_kafka import Message

from slackwater.cdc.batch import BatchTask, OffsetSpan, bad_input
from slackwater.cdc.changes import BatchChanges, find_keyless, find_places
from slackwater.cdc.connector import foreign_change
from slackwater.engine.pack.packer import EventPacker
from slackwater.engine.pack.specification import PackingSpec
from slackwater.engine.payloads import TOUCH_SEQUENCE, PackedPayload
from slackwater.pipeline.source.kafka_reader import SpanReader, kept_consumer
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.rows import RowWriter
from slackwater.protocol import ConfigError, InputError, RegistrySettings, UnavailableError, format_position

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from slackwater.cdc.avro import ToJson

_UNSETTLED: Final = 500
"""The number of changes of a span that are kept as objects, which is what a processor's cache holds."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses cyclic collection within the block, for code that creates many objects and no cycles.

    With hundreds of thousands of live objects, the search for cycles takes two thirds of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class IdlePackers:
    """Empty packers of one specification. They are kept because building one compiles its codecs."""

    def __init__(self, spec: PackingSpec, *, keeps_old: bool = False) -> None:
        self._spec = spec
        self._keeps_old = keeps_old
        self._idle: list[EventPacker] = []
        self._has_moves = False

    def take(self) -> EventPacker:
        """Returns a packer."""
        return self._idle.pop() if self._idle else EventPacker(self._spec, keeps_old=self._keeps_old)

    def give_back(self, packer: EventPacker) -> None:
        """Stores a packer whose payloads were taken."""
        self._has_moves |= packer.take_has_moves()
        self._idle.append(packer)

    def take_has_moves(self) -> bool:
        """Returns whether rows that lack values have come from other primary keys since the last call."""
        found, self._has_moves = self._has_moves, False
        return found


def read_task(options: SourceOptions, schema: "StructType", task: BatchTask) -> Iterator["RecordBatch"]:
    """Reads a task's spans as rows.

    Raises:
        BadInputError: A record cannot be decoded; the error names its place.
        RecordsGoneError: Records of the task are no longer in Kafka.
        StateError: A topic does not exist any more.
        UnavailableError: Kafka or the schema registry does not answer.
    """
    with collector_paused(), _opened(options, task) as (changes, portions):
        if options.typing is not None:
            from slackwater.pipeline.source.typed_rows import TypedRowWriter

            yield from TypedRowWriter(options.source, options.typing, schema, changes).write(portions)
        else:
            yield from RowWriter(options.source, schema, changes, _kept_decoder(options)).write(portions)


def read_packed(options: SourceOptions, packers: IdlePackers, task: BatchTask) -> list[PackedPayload]:
    """Reads a task's spans, packed for the stages of a pipeline.

    Raises the same errors as :func:`read_task`.
    """
    with _opened(options, task) as (changes, portions):
        return pack_changes(packers, changes, task.touch_lsn, portions)


def pack_changes(
    packers: IdlePackers,
    changes: BatchChanges,
    touch_lsn: int | None,
    portions: Iterator[tuple[OffsetSpan, list[Message]]],
) -> list[PackedPayload]:
    """Packs the changes of a task.

    Each span is packed separately, because spans of several partitions arrive interleaved. The payloads of a
    batch are therefore the same at every attempt. From commit `touch_lsn` on, the groups of stages without
    key columns exist; None if nothing is announced.
    """
    payloads: list[PackedPayload] = []
    if touch_lsn is not None:
        packer = packers.take()
        if packer.can_touch:
            packer.touch(touch_lsn)
            payloads += _addressed(packer, TOUCH_SEQUENCE)
        packers.give_back(packer)
    by_span: dict[int, EventPacker] = {}
    unsettled: Counter[int] = Counter()
    for span, messages in portions:
        packer = by_span.get(span.sequence) or packers.take()
        by_span[span.sequence] = packer
        _pack(packer, changes, span, messages)
        unsettled[span.sequence] += len(messages)
        if unsettled[span.sequence] >= _UNSETTLED:
            unsettled[span.sequence] = 0
            packer.settle()
    for sequence in sorted(by_span):
        payloads += _addressed(by_span[sequence], sequence)
        packers.give_back(by_span[sequence])
    return payloads


def _addressed(packer: EventPacker, sequence: int) -> Iterator[PackedPayload]:
    for stage, bucket, payload in packer.payloads():
        yield stage, bucket, sequence, payload


def _pack(packer: EventPacker, changes: BatchChanges, span: OffsetSpan, messages: list[Message]) -> None:
    """Packs regular records together, the others one by one."""
    window = changes.window(span)
    if window is None:
        _pack_each(packer, changes, span, messages)
        return
    table = packer.table(window.table)
    if not all(table.is_key(message.key()) for message in (messages[0], messages[-1])):
        _pack_each(packer, changes, span, messages)
        return
    try:
        envelopes = table.decode([message.value() for message in messages])
    except (ValueError, RecursionError):  # which record, and what is wrong with it, is found one by one
        _pack_each(packer, changes, span, messages)
        return
    done = table.add_regular(envelopes, window)
    while done < len(messages):
        _pack_each(packer, changes, span, messages[done : done + 1])
        done += 1 + table.add_regular(envelopes[done + 1 :], window)


def _pack_each(packer: EventPacker, changes: BatchChanges, span: OffsetSpan, messages: list[Message]) -> None:
    for message, change, commit_lsn in changes.find(span, messages):
        if packer.takes_only_own and not change.is_own:
            raise bad_input(message, foreign_change(change.table))
        before, after = change.before, change.after
        try:
            packer.add(
                change.table,
                change.op,
                commit_lsn,
                None if before is None else bytes(before),
                None if after is None else bytes(after),
                change.lsn,
                change.schema,
            )
        except InputError as error:
            problem = f"in the transaction with commit LSN {format_position(commit_lsn)}, {error}"
            raise bad_input(message, problem) from error


@contextmanager
def _opened(
    options: SourceOptions, task: BatchTask
) -> Iterator[tuple[BatchChanges, Iterator[tuple[OffsetSpan, list[Message]]]]]:
    """Provides what determines which records count, and the records."""
    topics, to_json = options.source_topics, _kept_decoder(options)
    places = None
    with kept_consumer(options.servers.kafka.client_config) as consumer:
        reader = SpanReader(
            consumer, timeout_seconds=options.read_timeout_ms / 1000, may_start_late=task.may_start_late
        )
        if task.needs_look_ahead:
            seen = reader.read(task.spans)
            places = find_places(task, options.source, options.tables, seen, topics=topics, to_json=to_json)
        keyless = None
        if task.repeated and task.has_whole_topics:
            seen = reader.read(task.spans)
            keyless = find_keyless(
                task, options.source, options.tables, seen, places=places, topics=topics, to_json=to_json
            )
        changes = BatchChanges(
            task, options.source, options.tables, places, topics=topics, to_json=to_json, keyless=keyless
        )
        yield changes, reader.read(task.spans)


def _kept_decoder(options: SourceOptions) -> "ToJson | None":
    """Returns the function that converts keys and values in Avro to JSON; None if topics are JSON.

    The Python worker keeps it for further tasks, with the schemas that it has loaded. It raises
    ``InputError`` for a record that cannot be read, and ``UnavailableError`` if the registry does not answer.
    """
    registry = options.servers.registry
    return None if registry is None else _decoder(registry)


@lru_cache(maxsize=4)
def _decoder(settings: RegistrySettings) -> "ToJson":
    from slackwater.kafka.registry import avro_to_json

    return translate_registry_errors(avro_to_json(settings))


def translate_registry_errors(to_json: "ToJson") -> "ToJson":
    """Returns a decoder that raises ``UnavailableError`` if the registry does not answer."""
    from slackwater.kafka.registry import RegistryUnavailableError

    def checked(data: bytes | None) -> bytes | None:
        try:
            return to_json(data)
        except (ConfigError, RegistryUnavailableError) as error:
            hint = "nothing is lost: the query continues with this batch when it is started again"
            raise UnavailableError(str(error), hint) from error

    return checked
