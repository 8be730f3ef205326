"""The exactly-once Kafka sink: one Kafka transaction per batch, written by the driver.

A run opens its producer once: ``init_transactions()`` fences every earlier run and ends what it left open,
*then* the progress record is
read. Each batch is one transaction of documents, commit records and the progress record. Whatever goes wrong
in a transaction, the
producer is discarded, a new one opened, and the progress topic asked whether the batch is there; nothing is
tried twice on one producer.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import count

from slackwater_markers.kafka_retry import KafkaRetry
from slackwater_protocol import BatchHeader, Clock, ProgressRecord, SystemClock
from slackwater_spark.sink.batch import DocumentBatch
from slackwater_spark.sink.errors import OutputUnavailableError, ProducerFencedError, SinkError
from slackwater_spark.sink.probe import NoProbe, SinkProbe, SinkStep
from slackwater_spark.sink.producer import OutputProducer, TransactionalProducer, TransactionFailedError
from slackwater_spark.sink.progress import check_owner, check_unused, is_covered, read_progress
from slackwater_spark.sink.settings import KafkaSinkSettings
from slackwater_spark.sink.topics import ensure_topics
from slackwater_spark.sink.transaction import BatchTransaction, Written

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What one call of :meth:`KafkaSink.write` did."""

    batch_id: int
    header: BatchHeader
    documents: int
    """Records in the output topics, deletes included; 0 for a batch that was visible already."""
    deletes: int
    was_covered: bool
    """Whether the output held the batch already (the run before ended between Kafka's commit and Spark's)."""
    produce_seconds: float
    commit_seconds: float
    visible_at: datetime
    """When the transaction was known to be committed."""


class KafkaSink:
    """Writes a pipeline's batches to its output topics, each exactly once and all at once.

    Used by one thread at a time.
    """

    def __init__(
        self,
        settings: KafkaSinkSettings,
        *,
        probe: SinkProbe | None = None,
        clock: Clock | None = None,
        connect: Callable[[KafkaSinkSettings], OutputProducer] = TransactionalProducer,
    ) -> None:
        self._settings = settings
        self._probe = probe or NoProbe()
        self._clock = clock or SystemClock()
        self._connect = connect
        self._producer: OutputProducer | None = None
        self._timeout = settings.transaction_timeout
        """Of the producer's transactions."""
        self._is_open_transaction = False
        self._progress: ProgressRecord | None = None

    def open(self) -> ProgressRecord | None:
        """Takes the pipeline over: creates missing topics, fences earlier runs, then reads the progress.

        Raises:
            OutputTopicError: a topic does not fit, or holds what was written without this progress.
            OutputUnavailableError: Kafka does not answer.
        """
        ensure_topics(self._settings)
        try:
            self._take_over()
            if self._progress is None:
                check_unused(self._settings)
        except TransactionFailedError as error:
            raise OutputUnavailableError(self._settings.pipeline, error.what, 1, error.detail) from error
        return self._progress

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent over runs; blocks until it is certain.

        Args:
            query_id: Spark's query id from the checkpoint.
            batch: the batch, with the same content each time its number is repeated.

        Raises:
            ProducerFencedError: another run took over; stop.
            PipelineNameTakenError: the progress is of another checkpoint.
            ProgressMismatchError: the batch does not continue the progress.
            OutputUnavailableError: all attempts failed.
            MalformedBatchError: nothing of the batch is visible.
        """
        self._probe.reached(SinkStep.COLLECTED, batch.batch_id)
        patience = self._settings.patience.total_seconds()
        retry = KafkaRetry(f"batch {batch.batch_id}", patience, clock=self._clock)
        for attempt in count(1):
            try:
                return self._write_once(self._producer_for(batch), query_id, batch)
            except ProducerFencedError:
                self._discard()
                raise
            except TransactionFailedError as error:
                self._discard()
                if attempt >= self._settings.attempts and (retry.is_over or not error.is_transient):
                    what = f"batch {batch.batch_id} ({error.what})"
                    raise OutputUnavailableError(
                        self._settings.pipeline, what, attempt, error.detail
                    ) from error
                _log.warning(
                    "batch %d, attempt %d: %s; starting over with a new producer",
                    batch.batch_id,
                    attempt,
                    error,
                )
                retry.pause()
        raise AssertionError("count() never ends")

    def close(self) -> None:
        """Ends an open transaction, if Kafka answers, and lets go of the producer.

        Idempotent, never raises.
        """
        if self._producer is not None and self._is_open_transaction:
            self._producer.abort()
        self._discard()

    def _producer_for(self, batch: DocumentBatch) -> OutputProducer:
        """The producer, or a new one when the batch takes longer than its transactions may."""
        timeout = self._settings.timeout_for(batch.size_bytes)
        if timeout != self._timeout:
            self._discard()
            self._timeout = timeout
        return self._producer or self._take_over()

    def _take_over(self) -> OutputProducer:
        producer = self._connect(replace(self._settings, transaction_timeout=self._timeout))
        try:
            producer.open()
            self._progress = read_progress(replace(self._settings, request_timeout=self._settings.patience))
        except SinkError:
            producer.discard()
            raise
        self._producer = producer
        return producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        self._is_open_transaction = False
        if producer is not None:
            producer.discard()

    def _write_once(self, producer: OutputProducer, query_id: str, batch: DocumentBatch) -> WriteReport:
        check_owner(self._settings.pipeline, self._progress, query_id)
        started = self._clock.monotonic()
        if self._is_covered(batch):
            return self._report(batch, Written(), started, started, was_covered=True)
        progress = self._progress_after(query_id, batch)
        transaction = BatchTransaction(
            self._settings, producer, batch, partial(self._probe.reached, batch_id=batch.batch_id)
        )
        self._is_open_transaction = True
        written = transaction.produce(progress)
        produced = self._clock.monotonic()
        self._is_open_transaction = False  # from here on its outcome is Kafka's to tell
        transaction.commit()
        self._progress = progress
        report = self._report(batch, written, started, produced, was_covered=False)
        self._probe.reached(SinkStep.COMMITTED, batch.batch_id)
        return report

    def _is_covered(self, batch: DocumentBatch) -> bool:
        is_next = batch.batch_id <= (0 if self._progress is None else self._progress.batch_id + 1)
        without_output: frozenset[int] = frozenset() if is_next else self._settings.without_output()
        return is_covered(
            self._settings.pipeline,
            batch.batch_id,
            batch.header,
            self._progress,
            without_output,
        )

    def _progress_after(self, query_id: str, batch: DocumentBatch) -> ProgressRecord:
        return ProgressRecord(
            pipeline=self._settings.pipeline,
            query_id=query_id,
            batch_id=batch.batch_id,
            source=batch.header.source,
            timeline=batch.header.timeline,
            commit_lsn=batch.header.to_lsn,
        )

    def _report(
        self, batch: DocumentBatch, written: Written, started: float, produced: float, *, was_covered: bool
    ) -> WriteReport:
        return WriteReport(
            batch_id=batch.batch_id,
            header=batch.header,
            documents=written.documents,
            deletes=written.deletes,
            was_covered=was_covered,
            produce_seconds=produced - started,
            commit_seconds=self._clock.monotonic() - produced,
            visible_at=self._clock.now(),
        )
