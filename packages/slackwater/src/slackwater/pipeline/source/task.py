"""Reads the records of a task in an executor, as rows or packed by bucket for the stages of a pipeline."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.batch import BatchTask, OffsetSpan, bad_input
from slackwater.cdc.changes import BatchChanges, Located
from slackwater.cdc.connector import foreign_change
from slackwater.engine.packer import EventPacker, PackingSpec
from slackwater.engine.payloads import TOUCH_SEQUENCE, PackedPayload
from slackwater.pipeline.source.kafka_reader import SpanReader, collector_paused, kept_consumer
from slackwater.pipeline.source.options import SourceOptions
from slackwater.protocol import ConfigError, InputError, RegistrySettings, UnavailableError, format_position

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyspark.sql.types import StructType

    from slackwater.cdc.avro import ToJson
    from slackwater.cdc.batch import Record
    from slackwater.cdc.envelope import Change

_ROWS_PER_ARROW_BATCH = 10_000
NULL = b"null"
_UNSETTLED: Final = 500
"""The number of changes of a span that are kept as objects, which is what a processor's cache holds."""


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
        return pack_changes(packers, changes, task.touch_lsn, portions, task.ticks)


def pack_changes(
    packers: IdlePackers,
    changes: BatchChanges,
    touch_lsn: int | None,
    portions: Iterator[tuple[OffsetSpan, list[Message]]],
    ticks: Sequence[tuple[int, int]] = (),
) -> list[PackedPayload]:
    """Packs the changes of a task, and the ticks of the clock.

    Each span is packed separately, because spans of several partitions arrive interleaved. The payloads of a
    batch are therefore the same at every attempt. From commit `touch_lsn` on, the groups of stages without
    key columns exist; None if nothing is announced.
    """
    payloads: list[PackedPayload] = []
    if touch_lsn is not None:
        packer = packers.take()
        packer.touch(touch_lsn)
        packer.tick(ticks)
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
            packer.table(change.table).add(
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
    with kept_consumer(options.servers.kafka.client_config) as consumer:
        reader = SpanReader(
            consumer, timeout_seconds=options.read_timeout_ms / 1000, may_start_late=task.may_start_late
        )
        changes = BatchChanges(task, options.source, options.tables, topics=topics, to_json=to_json)
        changes.look_ahead(lambda: reader.read(task.spans))
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


class RowWriter:
    """Converts changes to Arrow batches of :data:`.data_source.ROW_SCHEMA`, with keys and images as JSON."""

    def __init__(
        self, source: str, schema: "StructType", changes: BatchChanges, to_json: "ToJson | None" = None
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._source = source
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._changes = changes
        self._to_json = to_json

    def write(self, portions: Iterator[tuple[OffsetSpan, Sequence["Record"]]]) -> Iterator["RecordBatch"]:
        """Yields Arrow batches of at most 10,000 rows; rows of one partition stay in order."""
        rows: list[tuple[Any, ...]] = []
        for span, messages in portions:
            for located in self._changes.find(span, messages):
                rows.append(self._row(span, located))
                if len(rows) >= _ROWS_PER_ARROW_BATCH:
                    yield self._batch(rows)
                    rows = []
        if rows:
            yield self._batch(rows)

    def _row(self, span: OffsetSpan, located: Located) -> tuple[Any, ...]:
        message, change, commit_lsn = located
        return (
            self._source,
            change.table,
            change.op,
            *self._images(message, change),
            change.xid,
            commit_lsn,
            change.commit_ts_ms * 1000,
            change.total_order or None,
            span.partition,
            message.offset(),
        )

    def _images(self, message: "Record", change: "Change") -> tuple[Any, ...]:
        """Returns the values of the columns from the key to the new row."""
        key = self._key(message)
        return _text(message, key), _text(message, change.before), _text(message, change.after)

    def _key(self, message: "Record") -> bytes | None:
        key = message.key()
        if self._to_json is None or key is None:
            return _unwrapped(key)
        try:
            return _unwrapped(self._to_json(key))
        except UndecodableRecordError as error:
            raise bad_input(message, f"its key: {error}") from error

    def _batch(self, rows: list[tuple[Any, ...]]) -> "RecordBatch":
        import pyarrow

        columns = [
            arrow_array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)


def arrow_array(values: Sequence[Any], of_type: "DataType") -> Any:
    """Returns an array; the values of a struct are tuples."""
    import pyarrow

    if not values or not pyarrow.types.is_struct(of_type):
        return pyarrow.array(values, type=of_type)
    fields = list(of_type)
    absent = (None,) * len(fields)
    columns = zip(*(absent if value is None else value for value in values), strict=True)
    arrays = [arrow_array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    mask = pyarrow.array([value is None for value in values], pyarrow.bool_())
    return pyarrow.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _text(message: "Record", part: Any) -> bytes | None:
    """Returns JSON unchanged, after checking it, because Arrow does not report which record is not UTF-8."""
    if part is None:
        return None
    text = bytes(part)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise bad_input(message, f"expected JSON in UTF-8: {error}") from None
    return text


def _unwrapped(key: Any) -> bytes | None:
    """Returns the key as JSON, without the ``{"schema": …, "payload": …}`` wrapper."""
    if key is None or key == NULL:
        return None
    if key.startswith(b'{"schema"'):
        return _payload(key)
    return bytes(key)


def _payload(key: bytes) -> bytes:
    import msgspec

    try:
        fields = msgspec.json.decode(key, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return key
    return bytes(fields["payload"]) if fields.keys() == {"schema", "payload"} else key
