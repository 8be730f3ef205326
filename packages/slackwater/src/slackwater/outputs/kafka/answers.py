"""What a sink asks Kafka: transient errors are waited out, and others become errors with a remedy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from slackwater.cdc.avro import HEADER_BYTES
from slackwater.cdc.commit_avro import decode_commit_avro
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import (
    ABSENT_CODES,
    KafkaRetry,
    NeededRights,
    code_of,
    is_transient,
    kafka_error,
    reason_of,
)
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.outputs.contract import OutputRefusedError
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.protocol import (
    CommitPosition,
    ProgressRecord,
    SlackwaterError,
    UnavailableError,
    decode_commit_record,
    decode_progress_record,
)
from slackwater.protocol.errors import run_overtaken

T = TypeVar("T")

_LONGEST_REQUEST_SECONDS = 5.0
"""The maximum duration of one request, because a run can be stopped between two requests."""

_ADVICE: Mapping[int, str] = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "raise the broker's transaction.max.timeout.ms to 15 minutes, or make batches smaller "
        "(run.max_events_per_batch)"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "raise max.message.bytes of the topic (and message.max.bytes in the pipeline's Kafka options, if it "
        "is set there)"
    ),
    KafkaError.POLICY_VIOLATION: (
        "a policy of the broker forbids it (create.topic.policy.class.name): create the topics by hand as "
        "the policy requires"
    ),
    KafkaError.INVALID_REPLICATION_FACTOR: "set kafka.replication_factor to at most the number of brokers",
    KafkaError.INVALID_CONFIG: "correct the topic's configuration",
    KafkaError.UNSUPPORTED_VERSION: "the broker is too old for transactions: upgrade it",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "set another compression.type in kafka.options",
}
"""What helps a pipeline more than, or beside, the advice for every client."""


def refusal(settings: KafkaSinkSettings, what: str, error: KafkaError) -> OutputRefusedError | None:
    """Returns the error to raise if Kafka would answer the same again; None if the next answer may differ."""
    topics = ", ".join((*settings.written_topics, settings.progress_topic))
    name = settings.kafka.options.get("sasl.username")
    needed = NeededRights(
        user="the pipeline's user" if name is None else f"the user {name!r}",
        on_topics=f"Write, Read and DescribeConfigs on {topics}, and Create if they do not exist",
        on_id=f"Write on the transactional id {settings.transactional_id!r}",
    )
    advice = _ADVICE.get(error.code()) or needed.advice(error)
    if advice is None:
        return None
    reason = f"{error.str()} ({error.name()})"
    return OutputRefusedError(settings.pipeline, what, reason, f"{advice}, then start the pipeline again")


@contextmanager
def answered(settings: KafkaSinkSettings, what: str) -> Iterator[None]:
    """Turns what Kafka's client raises into an error with a remedy.

    Raises:
        UnavailableError: The next answer may differ.
        OutputRefusedError: Kafka refuses the request.
    """
    try:
        yield
    except KafkaException as error:
        reason = kafka_error(error)
        refused = None if reason is None else refusal(settings, what, reason)
        raise refused or UnavailableError(
            f"pipeline {settings.pipeline!r}: Kafka at {settings.kafka.bootstrap} did not complete {what}: "
            f"{reason_of(error)}",
            "check that this address is right and that the brokers are running, then start the pipeline "
            "again. Nothing is lost or partly visible",
        ) from error


def until_answered(settings: KafkaSinkSettings, what: str, ask: Callable[[float], T]) -> T:
    """Returns Kafka's answer; repeats the request after transient errors, within the request time-out.

    An unknown topic counts as one that was created a moment ago. Raises the same errors as :func:`answered`.

    Args:
        settings: Contains the time-out.
        what: The name of the request, for the error.
        ask: Called with the seconds that each of its requests may take; may raise ``TimeoutError``.
    """
    retry = KafkaRetry(
        what, settings.request_timeout.total_seconds(), also=ABSENT_CODES, pause=settings.pause
    )
    with answered(settings, what):
        return retry.call(lambda seconds: ask(min(seconds, _LONGEST_REQUEST_SECONDS)))


def newest_progress(settings: KafkaSinkSettings, *, may_be_absent: bool = False) -> ProgressRecord | None:
    """Returns the newest committed progress record, also of a run that has made nothing visible yet.

    The result is final only if it is read after ``init_transactions()``. An unknown topic is waited for,
    unless it may be absent: then there is no progress.

    Raises:
        UnavailableError: The broker does not answer.
        OutputRefusedError: The topic may not be read.
        InputError: The newest record is not a progress record, or has a newer version.
    """
    value = _newest_value(settings, settings.progress_topic, may_be_absent=may_be_absent)
    return None if value is None else decode_progress_record(value)


def newest_commit(settings: KafkaSinkSettings, topic: str) -> tuple[str, CommitPosition] | None:
    """Returns the pipeline and the commit of the newest record of a commit topic.

    Raises the same errors as :func:`newest_progress`.
    """
    value = _newest_value(settings, topic)
    if value is None:
        return None
    if topic in settings.avro_commits:
        return decode_commit_avro(value[HEADER_BYTES:])
    record = decode_commit_record(value)
    return record.pipeline, CommitPosition(record.timeline, record.commit_lsn)


def first_visible(
    settings: KafkaSinkSettings, topic: str, positions: Mapping[int, int]
) -> tuple[int, int] | None:
    """Returns a record that a ``read_committed`` reader sees at or after these offsets.

    Returns its partition and offset; None if there is none. Raises like :func:`newest_progress`.
    """
    if not positions:
        return None
    with answered(settings, f"reading {topic}"), _reader(settings, topic) as reader:
        places = {(topic, partition): offset for partition, offset in positions.items()}
        spans = {place: (offset, reader.bounds(place)[1]) for place, offset in places.items()}
        record = next(reader.read(spans), None)
        return None if record is None else (record.partition() or 0, record.offset() or 0)


def _newest_value(settings: KafkaSinkSettings, topic: str, *, may_be_absent: bool = False) -> bytes | None:
    """Returns the newest committed record's value in a topic of one partition."""
    expected = () if may_be_absent else (topic,)
    with answered(settings, f"reading {topic}"), _reader(settings, *expected) as reader:
        try:
            reader.places(topic)
        except KafkaException as error:
            if may_be_absent and code_of(error) in ABSENT_CODES:
                return None
            raise
        found = reader.newest((topic, 0))
        return found[0].value() if found else None


def _reader(settings: KafkaSinkSettings, *expected: str) -> TopicReader:
    seconds = settings.request_timeout.total_seconds()
    return TopicReader(settings.kafka.client_config, seconds, expected=expected, pause=settings.pause)


class TransactionFailedError(UnavailableError):
    """A transaction failed, or its outcome is unknown: discard the producer, then read the progress topic."""

    def __init__(self, what: str, detail: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{what}: {detail}")
        self.args = what, detail
        self.what = what
        self.detail = detail
        self.is_transient = is_transient
        """Whether another producer may succeed later without any intervention."""


class SinkProducer(KafkaTransactions):
    """Writes under the transactional id of a pipeline.

    Every method raises :class:`OvertakenError` if Kafka has given the transactional id to another
    producer, or ended a transaction that was open for too long; :class:`OutputRefusedError` for what Kafka
    would reject again; and :class:`TransactionFailedError` for all other errors.
    """

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        super().__init__(
            settings.kafka,
            settings.transactional_id,
            transaction_timeout=settings.transaction_timeout,
            request_timeout=settings.request_timeout,
        )

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        reason: KafkaError = error.args[0]
        if is_fenced(reason):
            return run_overtaken(self._settings.pipeline, reason.str())
        if (refused := refusal(self._settings, what, reason)) is not None:
            return refused
        detail = f"{reason.name()}: {reason.str()}"
        return TransactionFailedError(what, detail, is_transient=is_transient(reason))
