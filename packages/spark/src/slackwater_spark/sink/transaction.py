"""What one Kafka transaction of the sink holds, in which order it is produced."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter

from confluent_kafka import KafkaError

from slackwater_engine.documents import DocumentBatch, in_commit_order, malformed_batch
from slackwater_engine.payloads import Document
from slackwater_engine.scope import Scope
from slackwater_markers.kafka_retry import is_transient
from slackwater_protocol import (
    BatchHeader,
    CommitRecord,
    OffsetRange,
    ProgressRecord,
    TopicState,
    encode_commit_record,
    encode_progress_record,
    format_position,
)
from slackwater_protocol.keys import HEADER_COMMIT_LSN, HEADER_PIPELINE, HEADER_XID
from slackwater_spark.sink.errors import OutputRefusedError, SinkError
from slackwater_spark.sink.offsets import DeliveredOffsets
from slackwater_spark.sink.probe import SinkStep
from slackwater_spark.sink.producer import Headers, OutputProducer, TransactionFailedError
from slackwater_spark.sink.refusals import refusal
from slackwater_spark.sink.settings import Emit, KafkaSinkSettings, OutputTopic

WrittenRanges = Mapping[str, Mapping[int, OffsetRange]]
"""Offsets of a batch's documents by output topic and partition."""
TopicsAfter = Callable[[WrittenRanges], Mapping[str, TopicState]]

_SERVE_EVERY = 1000
_SHOWN_KEY = 200
_TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).name()


@dataclass(frozen=True, slots=True)
class CommitUnit:
    """What one commit record stands for, and where its documents went."""

    commit_lsn: int
    previous_lsn: int
    xid: int | None
    commit_ts_ms: int
    skipped: tuple[int, ...] = ()
    """Transactions in it that an operator let pass though rows were missing."""
    offsets: dict[str, DeliveredOffsets] = field(default_factory=dict)
    """By output topic."""

    def offsets_of(self, topic: str) -> DeliveredOffsets:
        """Of the documents in one topic."""
        return self.offsets.setdefault(topic, DeliveredOffsets())


@dataclass(slots=True)
class Written:
    """What went into the output topics."""

    documents: int = 0
    deletes: int = 0


def commit_units(header: BatchHeader, emit: Emit, scope: Scope = Scope.STRICT) -> list[CommitUnit]:
    """The commit records of a batch, ascending, covering ``(from_lsn, to_lsn]`` without a hole.

    In scope ``aggregate`` there is one for the batch: its LSN is the one that all groups have reached.

    ``latest`` has one for the batch. ``transactions`` has one for each source transaction with a change
    event, also if it changed
    nothing in the view; if the batch ends above the last of them (or holds none), one without xid closes it.
    Each names the transactions in it that were skipped; the last one those of which the header has no commit.
    """
    if emit is Emit.LATEST or scope is Scope.AGGREGATE:
        return [CommitUnit(header.to_lsn, header.from_lsn, None, header.commit_ts_ms, header.skipped)]
    units = []
    previous = header.from_lsn
    unnamed = dict.fromkeys(header.skipped)
    for xid, commit_lsn, commit_ts_ms in header.transactions:
        skipped = (xid,) if xid in unnamed else ()
        unnamed.pop(xid, None)
        units.append(CommitUnit(commit_lsn, previous, xid, commit_ts_ms, skipped))
        previous = commit_lsn
    if previous < header.to_lsn or not units:
        units.append(CommitUnit(header.to_lsn, previous, None, header.commit_ts_ms))
    units[-1] = replace(units[-1], skipped=(*units[-1].skipped, *unnamed))
    return units


def _joined(one: OffsetRange, other: OffsetRange) -> OffsetRange:
    return OffsetRange(
        one.count + other.count,
        min(one.first_offset, other.first_offset),
        max(one.last_offset, other.last_offset),
    )


class BatchTransaction:
    """Writes one batch through a producer, from begin to commit. Used once.

    Args:
        settings: Of the sink.
        producer: Open, without a transaction.
        batch: What to write.
        reached: Is told of each step.
        topics_after: Called when all documents are acknowledged; says what the progress record shall say of
            the topics. What it raises ends the transaction.
        limits: Largest record that an output takes, in bytes, as far as it is known.
    """

    def __init__(
        self,
        settings: KafkaSinkSettings,
        producer: OutputProducer,
        batch: DocumentBatch,
        reached: Callable[[SinkStep], None],
        topics_after: TopicsAfter = lambda _: {},
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._batch = batch
        self._reached = reached
        self._topics_after = topics_after
        self._limits = limits or {}
        self._units = commit_units(batch.header, settings.emit, settings.scope)
        self._written = Written()

    def produce(self, progress: ProgressRecord) -> tuple[Written, ProgressRecord]:
        """Begins the transaction and hands over documents, commit records, then progress.

        Returns:
            What was written, and the progress record with the state of the topics.

        Raises:
            TransactionFailedError: a record was not acknowledged.
            OutputRefusedError: Kafka will not take a record; names the document.
            ProducerFencedError: another run took over.
            EngineStateError: a document belongs to no transaction of the batch, or to no view.
        """
        self._check_views()
        self._producer.begin()
        self._reached(SinkStep.BEGUN)
        try:
            for view, output in enumerate(self._settings.outputs):
                for unit, headers, documents in self._documents(view):
                    self._produce_documents(output, unit.offsets_of(output.name), headers, documents)
            self._reached(SinkStep.PRODUCED)
            self._producer.flush(self._has_failed)
        except TransactionFailedError:
            with suppress(SinkError):
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
        self._produce_progress(progress)
        self._reached(SinkStep.PROGRESS)
        return self._written, progress

    def commit(self) -> None:
        """Makes all of it visible at once; raises like :meth:`produce`, the outcome is then unknown."""
        self._producer.commit()

    def _check_views(self) -> None:
        foreign = sorted(set(self._batch.payloads) - set(range(len(self._settings.outputs))))
        if foreign:
            reason = f"documents of view {foreign[0]}, of {len(self._settings.outputs)} view(s)"
            raise malformed_batch(self._batch.batch_id, reason)

    def _documents(self, view: int) -> Iterator[tuple[CommitUnit, Headers, Iterable[Document]]]:
        whole = self._units[0]
        is_latest, is_strict = self._settings.emit is Emit.LATEST, self._settings.scope is Scope.STRICT
        if is_latest and is_strict:
            headers = self._headers(whole.commit_lsn, None)
            for chunk in self._chunks(view):
                yield whole, headers, chunk
            return
        xids = {commit_lsn: xid for xid, commit_lsn, _ in self._batch.header.transactions}
        by_lsn = {unit.commit_lsn: unit for unit in self._units}
        for commit_lsn, documents in groupby(self._in_commit_order(view), itemgetter(0)):
            unit = by_lsn.get(commit_lsn)
            if not is_strict:  # rows of snapshots may be shown at LSNs that no transaction has
                unit = whole if commit_lsn > whole.previous_lsn else None
            if unit is None:
                raise malformed_batch(
                    self._batch.batch_id,
                    f"a document of commit LSN {commit_lsn}, which is not in the batch's header",
                )
            yield unit, self._headers(commit_lsn, None if is_latest else xids.get(commit_lsn)), documents

    def _in_commit_order(self, view: int) -> Iterable[Document]:
        """A view's documents; those of a single commit, however many, are never in memory together."""
        if self._settings.scope is Scope.STRICT and len(self._units) == 1:
            return chain.from_iterable(self._chunks(view))
        return in_commit_order(self._chunks(view))

    def _chunks(self, view: int) -> Iterator[list[Document]]:
        if not self._settings.outputs[view].keys_move:
            return self._batch.chunks(view)
        return self._batch.settled(view, every_commit=self._settings.emit is Emit.TRANSACTIONS)

    def _produce_documents(
        self, output: OutputTopic, offsets: DeliveredOffsets, headers: Headers, documents: Iterable[Document]
    ) -> None:
        produce, serve = self._producer.produce, self._producer.serve
        topic, report = output.name, offsets.report
        written = self._written
        for _, key, document in documents:
            try:
                produce(topic, key, document, headers, report)
            except OutputRefusedError as error:
                raise self._refused(output, error, key, len(document or b"")) from error
            written.documents += 1
            if document is None:
                written.deletes += 1
            if not written.documents % _SERVE_EVERY:
                serve()

    def _reports(self) -> Iterator[DeliveredOffsets]:
        return chain.from_iterable(unit.offsets.values() for unit in self._units)

    def _first_error(self) -> KafkaError | None:
        return next((each.first_error for each in self._reports() if each.first_error is not None), None)

    def _has_failed(self) -> bool:
        return self._first_error() is not None

    def _check_refused(self) -> None:
        """Whether a document failed for a reason that stays."""
        for output in self._settings.outputs:
            for unit in self._units:
                failed = unit.offsets.get(output.name)
                if failed is None or failed.first_error is None or failed.largest_failed is None:
                    continue
                error = refusal(self._settings.pipeline, "a document", failed.first_error)
                if error is not None:
                    size, key = failed.largest_failed
                    raise self._refused(output, error, key, size)

    def _refused(
        self, output: OutputTopic, error: OutputRefusedError, key: bytes | None, size: int
    ) -> OutputRefusedError:
        view = self._settings.outputs.index(output)
        lsns = [
            lsn
            for chunk in self._batch.chunks(view)
            for lsn, found, document in chunk
            if found == key and len(document or b"") == size
        ]
        shown = (key or b"").decode(errors="replace")[:_SHOWN_KEY]
        at = f", commit LSN {format_position(max(lsns))}" if lsns else ""
        what = (
            f"a document of view {output.view or output.name!r} for topic {output.name!r}, key {shown}{at}, "
            f"{size:,} bytes"
        )
        if _TOO_LARGE not in error.reason:
            return OutputRefusedError(self._settings.pipeline, what, error.reason, error.advice)
        limit = self._limits.get(output.name)
        reason = (
            error.reason if limit is None else f"{error.reason}, the topic's max.message.bytes is {limit:,}"
        )
        if self._settings.emit is Emit.LATEST:
            mend = "; or make it smaller in the database: the next start publishes its newest state only"
        else:
            mend = (
                "; or change the view (a new revision): each commit's document is published, so a later, "
                "smaller one does not help"
            )
        return OutputRefusedError(self._settings.pipeline, what, reason, error.advice + mend)

    def _ranges(self) -> WrittenRanges:
        """Of all units together: where an output's first and last documents of the batch went."""
        found: dict[str, dict[int, OffsetRange]] = {}
        for unit in self._units:
            for topic, offsets in unit.offsets.items():
                of_topic = found.setdefault(topic, {})
                for partition, each in offsets.ranges().items():
                    seen = of_topic.get(partition)
                    of_topic[partition] = each if seen is None else _joined(seen, each)
        return found

    def _check_delivered(self) -> None:
        delivered = sum(each.delivered for each in self._reports())
        if delivered != self._written.documents:
            first = self._first_error()
            raise TransactionFailedError(
                "flush",
                f"{self._written.documents - delivered} of {self._written.documents} records failed: "
                f"{'no reason given' if first is None else first.str()}",
                is_transient=first is not None and is_transient(first),
            )

    def _produce_commit_record(self, unit: CommitUnit) -> None:
        """The same into the commit topic of each output: who reads one learns where the others stand."""
        header = self._batch.header
        ranges = {topic: offsets.ranges() for topic, offsets in unit.offsets.items()}
        record = CommitRecord(
            pipeline=self._settings.pipeline,
            source=header.source,
            timeline=header.timeline,
            commit_lsn=unit.commit_lsn,
            previous_lsn=unit.previous_lsn,
            xid=unit.xid,
            commit_ts_ms=unit.commit_ts_ms,
            offsets={topic: found for topic, found in ranges.items() if found},
            skipped=unit.skipped,
        )
        headers, value = self._headers(unit.commit_lsn, unit.xid), encode_commit_record(record)
        for output in self._settings.outputs:
            self._producer.produce(output.commits, None, value, headers, None)

    def _produce_progress(self, progress: ProgressRecord) -> None:
        self._producer.produce(
            self._settings.progress_topic,
            self._settings.pipeline.encode(),
            encode_progress_record(progress),
            [],
            None,
        )

    def _headers(self, commit_lsn: int, xid: int | None) -> Headers:
        headers: Headers = [
            (HEADER_COMMIT_LSN, str(commit_lsn).encode()),
            (HEADER_PIPELINE, self._settings.pipeline.encode()),
        ]
        if xid is not None:
            headers.append((HEADER_XID, str(xid).encode()))
        return headers
