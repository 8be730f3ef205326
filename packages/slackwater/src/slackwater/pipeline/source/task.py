"""Reads the records of a task in an executor, and converts them to rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from confluent_kafka import Message

from slackwater.cdc.records.batch import BatchTask, OffsetSpan
from slackwater.cdc.records.changes import BatchChanges, find_keyless, find_places
from slackwater.engine.payloads import PackedPayload
from slackwater.pipeline.collector import collector_paused
from slackwater.pipeline.source.kafka_reader import SpanReader, kept_consumer
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.packed import IdlePackers, pack_changes
from slackwater.pipeline.source.rows import RowWriter
from slackwater.protocol import ConfigError, RegistrySettings, UnavailableError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from slackwater.cdc.avro import ToJson


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
