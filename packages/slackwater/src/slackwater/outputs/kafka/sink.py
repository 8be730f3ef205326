"""The exactly-once Kafka sink: one Kafka transaction per batch, written by the driver.

A run opens its producer once: ``init_transactions()`` fences every earlier run and ends its open transaction.
*Then* the progress record is read, compared with the topics, and written again with the id of this run. Each
batch is one transaction of documents, commit records and the progress record. After any error in a
transaction, the producer is discarded, a new one is opened, and the progress topic shows whether the batch is
there; nothing is tried twice on one producer. A run takes over again only while the newest progress record is
its own: a superseded run stays fenced.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, Unpack

from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.registry import (
    RegistryRefusedError,
    RegistryUnavailableError,
    Schema,
    SchemaKind,
    SchemaRegistry,
    subject,
    wire_header,
)
from slackwater.kafka.transactions import KafkaTransactions
from slackwater.outputs.contract import OutputRefusedError
from slackwater.outputs.kafka.answers import (
    SinkProducer,
    TransactionFailedError,
    newest_progress,
)
from slackwater.outputs.kafka.guard import TopicGuard
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic, RecordBegin
from slackwater.outputs.kafka.transaction import BatchTransaction, produce_progress
from slackwater.outputs.sink import Failure, Sink, SinkOptions, Written
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    OvertakenError,
    ProgressRecord,
    SchemaLanguage,
    SlackwaterError,
    UnavailableError,
    commit_schema,
    epoch_ms,
    nothing_visible,
    visible_progress,
)
from slackwater.protocol.errors import run_overtaken

_BATCH_BYTES = 1_000_000
"""librdkafka's own limit."""
_TIMED_OUT: Final = "a transaction that was open for too long"


class KafkaSink(Sink):
    """A :class:`~slackwater.outputs.sink.Sink` that writes documents to topics."""

    _settings: KafkaSinkSettings
    _failures = TransactionFailedError, OvertakenError, RegistryUnavailableError

    def __init__(
        self,
        settings: KafkaSinkSettings,
        *,
        connect: Callable[[KafkaSinkSettings], KafkaTransactions] = SinkProducer,
        **options: Unpack[SinkOptions],
    ) -> None:
        place, patience = f"Kafka at {settings.kafka.bootstrap}", settings.patience.total_seconds()
        if (waiting := options.get("waiting")) is not None:
            step = f"waiting at most {patience:.0f} s for {place}, which does not answer as it should"
            settings = replace(settings, pause=lambda seconds: waiting.pause(seconds, step))
        kept_in = f"topic {settings.progress_topic}"
        super().__init__(settings, place, kept_in, **options)
        self._patient = replace(settings, request_timeout=settings.patience)
        """For requests while a batch is being written, so that a temporary failure of a broker does not end
        the run."""
        self._connect = connect
        self._guard = TopicGuard(self._patient)
        self._producer: KafkaTransactions | None = None
        self._timeout = settings.transaction_timeout
        self._limits: Mapping[str, int] = {}
        self._transaction: BatchTransaction | None = None
        self._progress: ProgressRecord | None = None
        self._put_progress = nothing_visible(settings.pipeline)

    def open(self) -> ProgressRecord | None:
        """See :meth:`Sink.open`. It creates missing topics.

        Before that, it registers the schemas of its outputs, so that a rejected schema affects no run.
        """
        self._settings = self._with_schemas()
        self._guard.create_missing(newest_progress(self._settings, may_be_absent=True))
        return super().open()

    def check(self, query_id: str | None) -> None:
        """See :meth:`Sink.check`. Before that, it checks whether the registry accepts the schemas."""
        self._with_schemas(only_checks=True)
        super().check(query_id)

    def _with_schemas(self, *, only_checks: bool = False) -> KafkaSinkSettings:
        settings, what = self._settings, "checking schemas" if only_checks else "registering schemas"
        place = f"schema registry {'' if settings.registry is None else settings.registry.url}"
        ask = partial(with_schema_ids, settings, only_checks=only_checks)
        return self._patiently(what, settings.patience, ask, place)

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
        if self._producer is not None and self._transaction is not None:
            self._producer.abort()
        self._drop_producer()
        self._guard.close()

    def _read(self) -> ProgressRecord | None:
        return visible_progress(newest_progress(self._settings, may_be_absent=True))

    def _take_over(self) -> ProgressRecord | None:
        try:
            self._connect_producer(self._begin_run)
        except OvertakenError as error:  # by a run that this one has overtaken without its knowing
            raise TransactionFailedError("open", error.found) from error
        return self._progress

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        """Connects another producer if the batch takes longer than the transactions of this one may."""
        timeout = self._settings.timeout_for(batch.size_bytes)
        if timeout != self._timeout:
            self._drop_producer()
            self._timeout = timeout
        self._connected()
        return self._progress

    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        states = self._guard.states
        outputs = [
            replace(each, partitions=len(states[each.name].end)) if each.partition_by else each
            for each in self._settings.outputs
        ]
        self._transaction = BatchTransaction(
            replace(self._settings, outputs=tuple(outputs)),
            self._connected(),
            batch,
            lambda step: self._probe(step, batch.batch_id),
            self._guard.states_after,
            self._limits,
            epoch_ms(self._clock.now()),
        )
        written, self._put_progress = self._transaction.produce(progress)
        return written

    def _commit(self) -> None:
        transaction, self._transaction = self._transaction, None  # its outcome is now Kafka's to tell
        assert transaction is not None  # noqa: S101 - it was put
        transaction.commit()
        self._progress = self._put_progress
        self._guard.states = self._progress.topics

    def _discard(self) -> None:
        """Leaves a transaction to :meth:`_judged` or :meth:`close`, which end it with its producer."""

    def _judged(self, what: str, error: Exception) -> Failure:
        if isinstance(error, RegistryUnavailableError):
            return Failure(error.problem)
        self._drop_producer()
        if isinstance(error, OvertakenError):
            self._refuse_overtaken()
            return Failure(f"{_TIMED_OUT}: {error.found}", self._settings.attempts)
        is_transient = isinstance(error, TransactionFailedError) and error.is_transient
        return Failure(str(error), self._settings.attempts, is_transient)

    def _begin_run(self, producer: KafkaTransactions) -> ProgressRecord | None:
        """Writes the newest progress again, with the id of this run, when no earlier run writes any more."""
        newest = newest_progress(self._patient)
        self._guard.check(newest)
        known = self._rooted(newest or nothing_visible(self._settings.pipeline))
        claim = replace(known, run=self._run, topics=self._guard.states)
        self._write_alone(producer, claim)
        return visible_progress(claim)

    def _write_states(self) -> None:
        """Writes the newest progress again, with the current state of the topics."""
        if self._fenced is not None:
            raise self._fenced
        producer = self._connected()
        known = self._progress or nothing_visible(self._settings.pipeline)
        progress = replace(known, run=self._run, topics=self._guard.states)
        try:
            self._write_alone(producer, progress)
        except OvertakenError as error:
            self._drop_producer()
            self._refuse_overtaken()
            raise TransactionFailedError(_TIMED_OUT, error.found, is_transient=True) from error
        except SlackwaterError:
            self._drop_producer()
            raise
        self._progress = visible_progress(progress)

    def _write_alone(self, producer: KafkaTransactions, progress: ProgressRecord) -> None:
        """Writes a progress record in a separate transaction."""
        producer.begin()
        produce_progress(producer, self._settings, progress)
        producer.commit()

    def _connected(self) -> KafkaTransactions:
        return self._producer or self._take_over_again()

    def _take_over_again(self) -> KafkaTransactions:
        """Connects a new producer for the same run, unless another run has begun.

        This is checked twice. A run that begins in between would be fenced, but finds that the newest record
        is its own, and takes over again.
        """
        self._refuse_overtaken()
        return self._connect_producer(self._go_on)

    def _go_on(self, _producer: KafkaTransactions) -> ProgressRecord | None:
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
            self._drop_producer()
            detail = f"the newest progress record is of run {newest.run or '(older version)'}"
            self._fenced = run_overtaken(self._settings.pipeline, detail)
            raise self._fenced
        if newest is not None:  # a transaction whose answer was lost may have become visible
            self._guard.states = newest.topics
        return visible_progress(newest)

    def _connect_producer(
        self, begin: Callable[[KafkaTransactions], ProgressRecord | None]
    ) -> KafkaTransactions:
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
            self._drop_producer()
            raise
        return producer

    def _drop_producer(self) -> None:
        producer, self._producer, self._transaction = self._producer, None, None
        if producer is not None:
            producer.discard()


def _batch_size(limits: Mapping[str, int]) -> dict[str, str]:
    """Returns settings that limit the producer's batches to the record size that each output accepts.

    Otherwise, small documents could be rejected.
    """
    return {"batch.size": str(min(limits.values()))} if limits and min(limits.values()) < _BATCH_BYTES else {}


def with_schema_ids(settings: KafkaSinkSettings, *, only_checks: bool = False) -> KafkaSinkSettings:
    """Registers the schemas of all outputs; returns settings whose outputs have the beginnings of records.

    The ids are valid for the entire run, so none of its batches needs the registry. Nothing is registered if
    it only checks.

    Raises:
        ConfigError: There is no registry, or it rejects our credentials.
        OutputRefusedError: It rejects a schema.
        RegistryUnavailableError: It does not answer.
    """
    formed = [(each, each.form) for each in settings.outputs if each.form is not None]
    concerned = [output.name for output, form in formed if form.value_schema or form.key_schema]
    concerned += settings.avro_commits
    if not concerned:
        return settings
    if settings.registry is None:
        raise ConfigError(
            f"pipeline {settings.pipeline!r} publishes topic {concerned[0]!r} with a schema, but no "
            "schema registry is configured",
            "set registry.url (SLACKWATER_REGISTRY_URL); `slackwater config` shows it",
        )
    register = partial(SchemaRegistry(settings.registry).register, only_checks=only_checks)
    of_commits = Schema(SchemaKind.AVRO, commit_schema(SchemaLanguage.AVRO))
    try:
        outputs = tuple(_with_ids(settings.pipeline, output, register) for output in settings.outputs)
        with _refusing(settings.pipeline, "the schema of commit records"):
            begins = {
                topic: wire_header(register(subject(topic, of_keys=False), of_commits))
                for topic in settings.avro_commits
            }
        return replace(settings, outputs=outputs, commit_begins=begins)
    except OutputRefusedError:
        raise
    except ConfigError as error:
        raise ConfigError(f"pipeline {settings.pipeline!r}: {error}") from error


def _with_ids(pipeline: str, output: OutputTopic, register: Callable[[str, Schema], int]) -> OutputTopic:
    if output.form is None:
        return output
    begins = []
    for schema, of_keys in ((output.form.key_schema, True), (output.form.value_schema, False)):
        if schema is None:
            begins.append(b"")
            continue
        with _refusing(pipeline, f"the schema of view {output.view or output.name!r}"):
            name = subject(output.name, schema.name, output.subject_strategy, of_keys=of_keys)
            begins.append(wire_header(register(name, schema)))
    return replace(output, begin=RecordBegin(*begins))


@contextmanager
def _refusing(pipeline: str, what: str) -> Iterator[None]:
    try:
        yield
    except RegistryRefusedError as error:
        raise OutputRefusedError(pipeline, what, error.reason, error.hint) from error
