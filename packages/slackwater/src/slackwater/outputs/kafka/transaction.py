"""One Kafka transaction of the sink: documents, then commit records, then progress."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from heapq import merge
from itertools import chain, count
from typing import Final

from confluent_kafka import KafkaError

from slackwater.cdc.commit_avro import encode_commit_avro
from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.retry import is_transient
from slackwater.kafka.transactions import DeliveredOffsets, Headers, KafkaTransactions
from slackwater.outputs.batch import BatchCommits, CommittedDocuments, CommitUnit
from slackwater.outputs.contract import Emit, OutputRefusedError, SinkStep, UnfitValueError
from slackwater.outputs.kafka.answers import TransactionFailedError, refusal
from slackwater.outputs.kafka.debezium import BatchChanges
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.outputs.sink import Written
from slackwater.protocol import (
    BatchHeader,
    CommitRecord,
    OffsetRange,
    ProgressRecord,
    SlackwaterError,
    TopicState,
    commit_id,
    encode_commit_record,
    encode_progress_record,
    format_position,
    from_epoch_ms,
)
from slackwater.protocol.keys import HEADER_COMMIT_LSN, HEADER_PIPELINE, HEADER_VIEW, HEADER_XID, commit_topic

WrittenRanges = Mapping[str, Mapping[int, OffsetRange]]
"""The offsets of a batch's documents, by output topic and partition."""
_TopicsAfter = Callable[[WrittenRanges], Mapping[str, TopicState]]

HEADER_EVENT_ID: Final = "ce_id"
_CLOUDEVENTS_VERSION = "1.0"
_OWN = "slackwater"
_SERVE_EVERY = 1000
_NS_PER_MS = 1_000_000
"""END records and cuts contain the commit time in milliseconds."""
_SHOWN_KEY = 200
_TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).name()


_Ranges = dict[int, OffsetRange]
_OfView = tuple[int, CommittedDocuments]


def _commit_lsn(found: _OfView) -> int:
    return found[1].unit.commit_lsn


def _joined(one: OffsetRange, other: OffsetRange) -> OffsetRange:
    return OffsetRange(
        one.count + other.count,
        min(one.first_offset, other.first_offset),
        max(one.last_offset, other.last_offset),
    )


class BatchTransaction:
    """Writes one batch through a producer, from begin to commit. Used once.

    Args:
        producer: An open producer without a transaction.
        reached: Called with each step.
        topics_after: Called when all documents are acknowledged; returns the state of the topics for the
            progress record. An error that it raises ends the transaction.
        limits: The maximum size of a record in each output, in bytes, as far as it is known.
        now_ms: The time of writing, in milliseconds since the epoch.
    """

    def __init__(
        self,
        settings: KafkaSinkSettings,
        producer: KafkaTransactions,
        batch: DocumentBatch,
        reached: Callable[[SinkStep], None],
        topics_after: _TopicsAfter = lambda _: {},
        limits: Mapping[str, int] | None = None,
        now_ms: int = 0,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._batch = batch
        self._reached = reached
        self._topics_after = topics_after
        self._limits = limits or {}
        keys_move = [output.keys_move and output.table is None for output in settings.outputs]
        self._commits = BatchCommits(batch, settings.emit, settings.scope, keys_move)
        self._units = self._commits.units
        self._topics = settings.topics
        self._offsets: Mapping[int, dict[int, DeliveredOffsets]] = {u.commit_lsn: {} for u in self._units}
        """By commit record and view."""
        self._order_offsets: Mapping[str, DeliveredOffsets] = {
            topic: DeliveredOffsets() for topic in settings.order_topics
        }
        self._changes = BatchChanges(settings, batch, self._units if settings.prefix else (), now_ms)
        self._ids: dict[tuple[str, int], Iterator[bytes]] = {}
        """By topic and commit record, the ids of the next documents."""
        self._written = Written()
        self._handed_over = 0
        """The number of records whose delivery report is expected."""

    def produce(self, progress: ProgressRecord) -> tuple[Written, ProgressRecord]:
        """Begins the transaction and passes on documents, commit records, and then the progress record.

        Returns:
            What was written, and the progress record with the state of the topics.

        Raises:
            TransactionFailedError: A record was not acknowledged.
            OutputRefusedError: Kafka rejects a record; the error names the document.
            OvertakenError: Another run has taken over.
            StateError: A document belongs to no transaction of the batch, or to no view.
        """
        self._producer.begin()
        self._reached(SinkStep.BEGUN)
        try:
            for views in self._topics.values():
                for view, found in merge(*map(self._documents, views), key=_commit_lsn):
                    self._produce_documents(view, found)
            self._produce_order()
            self._reached(SinkStep.PRODUCED)
            self._producer.flush(lambda: self._first_error() is not None)
        except UnfitValueError as error:
            hint = "correct the row, or cast the column to text in the view (a new revision)"
            raise OutputRefusedError(self._settings.pipeline, "a document", str(error), hint) from error
        except TransactionFailedError:
            with suppress(SlackwaterError):
                self._producer.serve()
            self._check_refused()
            raise
        self._check_refused()
        self._check_delivered()
        self._reached(SinkStep.FLUSHED)
        progress = replace(progress, topics=self._topics_after(self._ranges()))
        for unit in self._units:
            self._produce_commit_record(unit)
        self._reached(SinkStep.COMMIT_RECORDS)
        produce_progress(self._producer, self._settings, progress)
        return self._written, progress

    def commit(self) -> None:
        """Makes the batch visible at once; raises like :meth:`produce`, but the outcome is then unknown."""
        self._producer.commit()

    def _documents(self, view: int) -> Iterator[_OfView]:
        """Yields a view's documents; those of several views are merged, so that a topic is in commit order.

        Otherwise, the offsets of one commit would include documents of others.
        """
        return ((view, found) for found in self._commits.documents(view))

    def _produce_documents(self, view: int, found: CommittedDocuments) -> None:
        """Passes on a view's documents of a commit, in the form in which they are written."""
        output, unit = self._settings.outputs[view], found.unit
        topic, begin, written = output.name, output.begin, self._written
        report = self._offsets[unit.commit_lsn].setdefault(view, DeliveredOffsets()).report
        headers, ids = self._headers(found.commit_lsn, found.xid), None
        if len(self._topics[topic]) > 1:
            headers.append((HEADER_VIEW, output.view.encode()))
        if output.cloudevents:
            headers += event_attributes(self._settings.pipeline, output, found)
            ids = self._ids.setdefault((topic, unit.commit_lsn), event_ids(self._batch.header, unit))
        produce, serve, place = self._producer.produce, self._producer.serve, output.partition
        events = found.documents if output.table is None else self._changes.events(view, found)
        for _, bare_key, document in events:
            key = begin.key + bare_key
            if document is not None and begin.value:
                document = begin.value + document
            try:
                own = headers if ids is None else [*headers, (HEADER_EVENT_ID, next(ids))]
                produce(topic, key, document, own, report, place(bare_key))
            except OutputRefusedError as error:
                raise self._refused(output, error, key, len(document or b"")) from error
            written.documents += 1
            if document is None:
                written.deletes += 1
            if not written.documents % _SERVE_EVERY:
                serve()

    def _produce_order(self) -> None:
        """Writes the records that make a source of the outputs that are tables."""
        self._handed_over = self._written.documents
        self._written.deletes += self._changes.deletes
        for topic, key, value, unit in self._changes.order_records():
            self._handed_over += 1
            report = self._order_offsets[topic].report
            self._producer.produce(topic, key, value, self._headers(unit.commit_lsn, unit.xid), report)
            if not self._handed_over % _SERVE_EVERY:
                self._producer.serve()

    def _reports(self) -> Iterator[DeliveredOffsets]:
        return chain(
            self._order_offsets.values(),
            chain.from_iterable(each.values() for each in self._offsets.values()),
        )

    def _first_error(self) -> KafkaError | None:
        return next((each.first_error for each in self._reports() if each.first_error is not None), None)

    def _check_refused(self) -> None:
        """Raises if a document failed for a permanent reason."""
        for view, output in enumerate(self._settings.outputs):
            for by_view in self._offsets.values():
                failed = by_view.get(view)
                if failed is None or failed.first_error is None or failed.largest_failed is None:
                    continue
                error = refusal(self._settings, "a document", failed.first_error)
                if error is not None:
                    size, key = failed.largest_failed
                    raise self._refused(output, error, key, size)
        for topic, failed in self._order_offsets.items():
            if failed.first_error is not None:
                what = f"a record of topic {topic!r}"
                error = refusal(self._settings, what, failed.first_error)
                if error is not None:
                    raise error

    def _refused(
        self, output: OutputTopic, error: OutputRefusedError, key: bytes | None, size: int
    ) -> OutputRefusedError:
        view = self._settings.outputs.index(output)
        begin = output.begin
        lsns = [
            lsn
            for chunk in self._batch.chunks(view)
            for lsn, found, document in chunk
            if begin.key + found == key
            and (output.table is not None or len(begin.value + (document or b"")) == size)
        ]
        bare_key = (key or b"").removeprefix(begin.key)
        shown = bare_key.decode(errors="backslashreplace")[:_SHOWN_KEY]
        at = f", commit LSN {format_position(max(lsns))}" if lsns else ""
        what = (
            f"a document of view {output.view or output.name!r} for topic {output.name!r}, key {shown}{at}, "
            f"{size:,} bytes"
        )
        if _TOO_LARGE not in error.reason:
            return OutputRefusedError(self._settings.pipeline, what, error.reason, error.hint)
        limit = self._limits.get(output.name)
        reason = (
            error.reason if limit is None else f"{error.reason}, the topic's max.message.bytes is {limit:,}"
        )
        if self._settings.emit is Emit.LATEST:
            mend = "; or make it smaller in the database: the next start publishes only its newest state"
        else:
            mend = (
                "; or change the view (a new revision): the documents of all commits are published, so a "
                "later, smaller one does not help"
            )
        return OutputRefusedError(self._settings.pipeline, what, reason, error.hint + mend)

    def _ranges(self) -> WrittenRanges:
        """Returns the offsets of each topic's first and last documents of the batch."""
        order = {topic: offsets.ranges() for topic, offsets in self._order_offsets.items()}
        return self._ranges_of(self._offsets.values()) | order

    def _ranges_of(self, offsets: Iterable[Mapping[int, DeliveredOffsets]]) -> dict[str, _Ranges]:
        found: dict[str, _Ranges] = {}
        for view, delivered in chain.from_iterable(each.items() for each in offsets):
            ranges = found.setdefault(self._settings.outputs[view].name, {})
            for partition, each in delivered.ranges().items():
                seen = ranges.get(partition)
                ranges[partition] = each if seen is None else _joined(seen, each)
        return {topic: dict(sorted(ranges.items())) for topic, ranges in found.items() if ranges}

    def _check_delivered(self) -> None:
        delivered = sum(each.delivered for each in self._reports())
        if delivered != self._handed_over:
            self._producer.check()
            first = self._first_error()
            raise TransactionFailedError(
                "flush",
                f"{self._handed_over - delivered} of {self._handed_over} records failed: "
                f"{'no reason given' if first is None else first.str()}",
                is_transient=first is not None and is_transient(first),
            )

    def _produce_commit_record(self, unit: CommitUnit) -> None:
        """Writes the record to the commit topic of each topic; it contains the offsets of all topics."""
        header = self._batch.header
        offsets = self._ranges_of([self._offsets[unit.commit_lsn]])
        schemas = [each.schema_name for each in self._settings.outputs]
        record = CommitRecord(
            pipeline=self._settings.pipeline,
            source=header.source,
            timeline=header.timeline,
            commit_lsn=unit.commit_lsn,
            previous_lsn=unit.previous_lsn,
            xid=unit.xid,
            commit_ts_ms=unit.commit_ts_ms,
            offsets=offsets,
            skipped=unit.skipped,
            commit_ts_ns=unit.commit_ts_ms * _NS_PER_MS,
            schemas={name: tuple(schemas[v] for v in self._topics[name]) for name in offsets},
        )
        headers, value = self._headers(unit.commit_lsn, unit.xid), encode_commit_record(record)
        for topic in self._topics:
            self._producer.produce(commit_topic(topic), None, value, headers, None)
        in_avro = encode_commit_avro(record) if self._settings.commit_begins else b""
        for topic, begin in self._settings.commit_begins.items():
            self._producer.produce(topic, None, begin + in_avro, headers, None)

    def _headers(self, commit_lsn: int, xid: int | None) -> Headers:
        headers: Headers = [
            (HEADER_COMMIT_LSN, str(commit_lsn).encode()),
            (HEADER_PIPELINE, self._settings.pipeline.encode()),
        ]
        if xid is not None:
            headers.append((HEADER_XID, str(xid).encode()))
        return headers


def produce_progress(
    producer: KafkaTransactions, settings: KafkaSinkSettings, progress: ProgressRecord
) -> None:
    """Passes on a progress record."""
    value = encode_progress_record(progress)
    producer.produce(settings.progress_topic, settings.pipeline.encode(), value, [], None)


def event_attributes(
    pipeline: str, output: OutputTopic, found: CommittedDocuments
) -> list[tuple[str, str | bytes | None]]:
    """Returns the headers of CloudEvents that the documents of a commit have in common: all except the id.

    This is the binary content mode of CloudEvents' Kafka binding: values stay the same. The contents of
    Slackwater's own headers are extension attributes.
    """
    time = from_epoch_ms(found.unit.commit_ts_ms).isoformat(timespec="milliseconds")
    attributes = {
        "specversion": _CLOUDEVENTS_VERSION,
        "source": f"/{_OWN}/{pipeline}/{output.name}",
        "type": f"{_OWN}.{output.schema_name}",
        "time": time.replace("+00:00", "Z"),
        f"{_OWN}pipeline": pipeline,
        f"{_OWN}commitlsn": str(found.commit_lsn),
    }
    if found.xid is not None:
        attributes[f"{_OWN}xid"] = str(found.xid)
    return [
        ("content-type", b"application/json"),
        *((f"ce_{name}", value.encode()) for name, value in attributes.items()),
    ]


def event_ids(header: BatchHeader, unit: CommitUnit) -> Iterator[bytes]:
    """Yields the ids of an output's documents in a commit: the id of the commit, and their numbers from 1.

    They are unique within the output, because each commit record covers other commits, and becomes visible
    once.
    """
    of_commit = commit_id(header.timeline, unit.commit_lsn)
    return (f"{of_commit}-{number}".encode() for number in count(1))
