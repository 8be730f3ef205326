"""Kafka's answers to a sink: waits out transient errors, and turns others into errors with a remedy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from slackwater.kafka.retry import ABSENT_CODES, KafkaRetry, NeededRights, kafka_error, reason_of
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.waiting import tried
from slackwater.pipeline.errors import OutputRefusedError
from slackwater.protocol import UnavailableError

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
    needed = NeededRights(
        user=_user(settings),
        on_topics=f"Write, Read and DescribeConfigs on {topics}, and Create if they do not exist",
        on_id=f"Write on the transactional id {settings.transactional_id!r}",
    )
    advice = _ADVICE.get(error.code()) or needed.advice(error)
    if advice is None:
        return None
    reason = f"{error.str()} ({error.name()})"
    return OutputRefusedError(settings.pipeline, what, reason, f"{advice}, then start the pipeline again")


def _user(settings: KafkaSinkSettings) -> str:
    name = settings.kafka.options.get("sasl.username")
    return "the pipeline's user" if name is None else f"the user {name!r}"


def unavailable(
    settings: KafkaSinkSettings, what: str, detail: str, *, attempts: int = 1
) -> UnavailableError:
    """Returns the error for something that Kafka did not do within the allowed attempts."""
    return UnavailableError(
        f"pipeline {settings.pipeline!r}: Kafka at {settings.kafka.bootstrap} "
        f"did not complete {what}{tried(attempts)}: {detail}",
        "check that this address is right and that the brokers are running, then start the pipeline again. "
        "Nothing is lost or partly visible",
    )


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
        raise refused or unavailable(settings, what, reason_of(error)) from error


def until_answered(settings: KafkaSinkSettings, what: str, ask: Callable[[float], T]) -> T:
    """Returns Kafka's answer; repeats the request after transient errors, within the request time-out.

    An unknown topic counts as one that was created a moment ago. Raises the same errors as :func:`answered`.

    Args:
        settings: Contains the time-out.
        what: The name of the request, for the error.
        ask: Called with the seconds that each of its requests may take; raises ``KafkaException`` or
            ``TimeoutError``.
    """
    retry = KafkaRetry(
        what, settings.request_timeout.total_seconds(), also=ABSENT_CODES, pause=settings.pause
    )
    with answered(settings, what):
        return retry.call(lambda seconds: ask(min(seconds, _LONGEST_REQUEST_SECONDS)))
