"""The exactly-once Kafka sink: one Kafka transaction per batch, written by the driver.

A run opens its producer once: ``init_transactions()`` fences every earlier run and ends its open transaction.
*Then* the progress record is read, compared with the topics, and written again with the id of this run. Each
batch is one transaction of documents, commit records and the progress record. After any error in a
transaction, the producer is discarded, a new one is opened, and the progress topic shows whether the batch is
there; nothing is tried twice on one producer. A run takes over again only while the newest progress record is
its own: a superseded run stays fenced.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import count

from slackwater.engine.documents import DocumentBatch
from slackwater.kafka.retry import KafkaRetry
from slackwater.outputs.batch import (
    check_owner,
    is_covered,
    progress_after,
)
from slackwater.outputs.contract import SinkProbe, SinkStep, WriteReport
from slackwater.outputs.kafka.answers import unavailable
from slackwater.outputs.kafka.guard import TopicGuard
from slackwater.outputs.kafka.producer import (
    OutputProducer,
    SinkProducer,
    TransactionFailedError,
)
from slackwater.outputs.kafka.reading import (
    newest_progress,
    read_progress,
)
from slackwater.outputs.kafka.schemas import with_schema_ids
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.transaction import BatchTransaction, Written
from slackwater.outputs.waiting import Waiting
from slackwater.pipeline.errors import RunOvertakenError
from slackwater.protocol import (
    Clock,
    CommitPosition,
    ProgressRecord,
    SlackwaterError,
    SystemClock,
    UnavailableError,
    encode_progress_record,
    epoch_ms,
    nothing_visible,
    visible_progress,
)

_BATCH_BYTES = 1_000_000
"""librdkafka's own limit."""

_log = logging.getLogger(__name__)


class KafkaSink:
    """A :class:`~slackwater.outputs.contract.Sink` that writes to a topic per view."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        *,
        probe: SinkProbe | None = None,
        clock: Clock | None = None,
        connect: Callable[[KafkaSinkSettings], OutputProducer] = SinkProducer,
        waiting: Waiting | None = None,
    ) -> None:
        if waiting is not None:
            settings = replace(settings, pause=lambda seconds: waiting.pause(seconds, self._wait))
        self._settings = settings
        self._patient = replace(settings, request_timeout=settings.patience)
        """For requests while a batch is being written, so that a temporary failure of a broker does not end
        the run."""
        self._probe: SinkProbe = probe or (lambda step, batch_id: None)
        self._clock = clock or SystemClock()
        self._connect = connect
        self._guard = TopicGuard(self._patient)
        self._producer: OutputProducer | None = None
        self._timeout = settings.transaction_timeout
        """The time-out of the producer's transactions."""
        self._limits: Mapping[str, int] = {}
        self._waiting = waiting or Waiting()
        self._is_open_transaction = False
        self._run = uuid.uuid4().hex
        self._fenced: RunOvertakenError | None = None
        self._progress: ProgressRecord | None = None

    @property
    def place(self) -> str:
        """See :meth:`Sink.place`."""
        return f"Kafka at {self._settings.kafka.bootstrap}"

    @property
    def _wait(self) -> str:
        patience = self._settings.patience.total_seconds()
        return f"waiting at most {patience:.0f} s for {self.place}, which does not answer as it should"

    def check(self, query_id: str | None) -> None:
        """See :meth:`Sink.check`. It refuses if the progress topic belongs to another checkpoint."""
        self._check_owner(read_progress(self._settings, may_be_absent=True), query_id)

    def open(self) -> ProgressRecord | None:
        """Takes over the pipeline: creates missing topics, fences earlier runs, then reads the progress.

        Before that, it registers the schemas of its outputs, so that a rejected schema affects no run.

        Raises:
            ConfigError: Schemas cannot be registered.
            StateError: A topic does not fit, or does not match the progress.
            OutputRefusedError: Kafka does not allow the pipeline to read or write a topic.
            UnavailableError: Kafka does not answer.
        """
        self._settings = with_schema_ids(self._settings, self._waiting, self._clock)
        self._guard.create_missing(newest_progress(self._settings, may_be_absent=True))
        failure = TransactionFailedError("open", "never tried")
        for _ in range(self._settings.attempts):
            try:
                self._connect_producer(self._begin_run)
                return self._progress
            except TransactionFailedError as error:
                failure = error
            except RunOvertakenError as error:  # by a run that this one has overtaken without its knowing
                failure = TransactionFailedError("open", error.found)
        raise unavailable(self._settings, failure.what, failure.detail, attempts=self._settings.attempts)

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes a batch visible, or finds that it is. Idempotent across runs. Blocks until it is certain.

        Args:
            query_id: The id of the checkpoint.
            batch: The batch after the newest visible one.

        Raises:
            RunOvertakenError: Another run has taken over; stop. All later calls raise it, too.
            StateError: The progress belongs to another checkpoint, the batch does not continue it, or
                a topic was changed while the run writes.
            OutputRefusedError: Kafka rejects a record; nothing of the batch is visible.
            UnavailableError: All attempts failed.
            StateError: The batch was not written by a stage; nothing of it is visible.
        """
        if self._fenced is not None:
            raise self._fenced
        self._probe(SinkStep.COLLECTED, batch.batch_id)
        patience = self._settings.patience.total_seconds()
        retry = KafkaRetry(f"batch {batch.batch_id}", patience, clock=self._clock, pause=self._settings.pause)
        for attempt in count(1):
            try:
                return self._write_once(self._producer_for(batch), query_id, batch)
            except RunOvertakenError as error:
                self._discard()
                self._refuse_overtaken()
                what = "a transaction that was open for too long"
                failure = TransactionFailedError(what, error.found, is_transient=True)
            except TransactionFailedError as error:
                self._discard()
                failure = error
            if attempt >= self._settings.attempts and (retry.is_over or not failure.is_transient):
                what = f"batch {batch.batch_id} ({failure.what})"
                raise unavailable(self._settings, what, failure.detail, attempts=attempt) from failure
            _log.warning(
                "batch %d, attempt %d: %s; trying again with a new producer",
                batch.batch_id,
                attempt,
                failure,
            )
            retry.pause()
        raise AssertionError("count() never ends")

    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """See :meth:`Sink.hold`. Compacted topics keep replaced documents for longer in the meantime."""
        until = max(commits.values(), default=None)
        if until is not None or any(state.lag_ms is not None for state in self._guard.states.values()):
            self._guard.hold(until, self._clock.now(), self._write_states)
        return {}

    def close(self) -> None:
        """Ends an open transaction, if Kafka answers, and releases the producer.

        Idempotent, never raises.
        """
        if self._producer is not None and self._is_open_transaction:
            self._producer.abort()
        self._discard()
        self._guard.close()

    def _check_owner(self, progress: ProgressRecord | None, query_id: str | None) -> None:
        kept_in = f"topic {self._settings.progress_topic}"
        check_owner(self._settings.pipeline, progress, query_id, kept_in)

    def _begin_run(self, producer: OutputProducer) -> ProgressRecord | None:
        """Writes the newest progress again, with the id of this run, when no earlier run writes any more."""
        newest = newest_progress(self._patient)
        self._guard.check(newest)
        claim = replace(
            newest or nothing_visible(self._settings.pipeline), run=self._run, topics=self._guard.states
        )
        self._write_alone(producer, claim)
        return visible_progress(claim)

    def _write_states(self) -> None:
        """Writes the newest progress again, with the current state of the topics."""
        if self._fenced is not None:
            raise self._fenced
        producer = self._producer or self._take_over_again()
        known = self._progress or nothing_visible(self._settings.pipeline)
        progress = replace(known, run=self._run, topics=self._guard.states)
        try:
            self._write_alone(producer, progress)
        except RunOvertakenError as error:
            self._discard()
            self._refuse_overtaken()
            what = "a transaction that was open for too long"
            raise TransactionFailedError(what, error.found, is_transient=True) from error
        except SlackwaterError:
            self._discard()
            raise
        self._progress = visible_progress(progress)

    def _write_alone(self, producer: OutputProducer, progress: ProgressRecord) -> None:
        """Writes a progress record in a separate transaction."""
        producer.begin()
        producer.produce(
            self._settings.progress_topic,
            self._settings.pipeline.encode(),
            encode_progress_record(progress),
            [],
            None,
        )
        producer.commit()

    def _producer_for(self, batch: DocumentBatch) -> OutputProducer:
        """Returns the producer, or a new one if the batch takes longer than its transactions may."""
        timeout = self._settings.timeout_for(batch.size_bytes)
        if timeout != self._timeout:
            self._discard()
            self._timeout = timeout
        return self._producer or self._take_over_again()

    def _take_over_again(self) -> OutputProducer:
        """Connects a new producer for the same run, unless another run has begun.

        This is checked twice. A run that begins in between would be fenced, but finds that the newest record
        is its own, and takes over again.
        """
        self._refuse_overtaken()
        return self._connect_producer(self._go_on)

    def _go_on(self, _producer: OutputProducer) -> ProgressRecord | None:
        progress = self._refuse_overtaken()
        self._guard.check_identity()
        return progress

    def _refuse_overtaken(self) -> ProgressRecord | None:
        """Returns what is visible, if this run is still the one that may write."""
        try:
            newest = newest_progress(self._patient)
        except UnavailableError:
            self._guard.check_progress_topic()
            raise
        if newest is not None and newest.run != self._run:
            self._discard()
            detail = f"the newest progress record is of run {newest.run or '(older version)'}"
            self._fenced = RunOvertakenError(self._settings.pipeline, detail)
            raise self._fenced
        if newest is not None:  # a transaction whose answer was lost may have become visible
            self._guard.states = newest.topics
        return visible_progress(newest)

    def _connect_producer(self, begin: Callable[[OutputProducer], ProgressRecord | None]) -> OutputProducer:
        """Connects a producer that fences earlier ones; keeps it if `begin` can then read what is visible."""
        self._limits, kafka = self._guard.largest_records(), self._settings.kafka
        producer = self._producer = self._connect(
            replace(
                self._settings,
                transaction_timeout=self._timeout,
                kafka=replace(kafka, options={**_batch_size(self._limits), **kafka.options}),
            )
        )
        try:
            producer.open()
            self._progress = begin(producer)
        except SlackwaterError:
            self._discard()
            raise
        return producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        self._is_open_transaction = False
        if producer is not None:
            producer.discard()

    def _write_once(self, producer: OutputProducer, query_id: str, batch: DocumentBatch) -> WriteReport:
        self._check_owner(self._progress, query_id)
        started = self._clock.monotonic()
        if self._is_covered(batch):
            return self._report(batch, Written(), started, started, was_covered=True)
        progress = progress_after(self._settings.pipeline, query_id, batch, self._run)
        transaction = BatchTransaction(
            self._settings,
            producer,
            batch,
            lambda step: self._probe(step, batch.batch_id),
            self._guard.states_after,
            self._limits,
            epoch_ms(self._clock.now()),
        )
        self._is_open_transaction = True
        written, progress = transaction.produce(progress)
        produced = self._clock.monotonic()
        self._is_open_transaction = False  # from here on its outcome is Kafka's to tell
        transaction.commit()
        self._progress, self._guard.states = progress, progress.topics
        report = self._report(batch, written, started, produced, was_covered=False)
        self._probe(SinkStep.COMMITTED, batch.batch_id)
        return report

    def _is_covered(self, batch: DocumentBatch) -> bool:
        return is_covered(self._settings.pipeline, batch, self._progress)

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


def _batch_size(limits: Mapping[str, int]) -> dict[str, str]:
    """Returns settings that limit the producer's batches to the record size that each output accepts.

    Otherwise, small documents could be rejected.
    """
    return {"batch.size": str(min(limits.values()))} if limits and min(limits.values()) < _BATCH_BYTES else {}
