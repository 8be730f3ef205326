"""The one policy for errors of Kafka: which pass, how long they are waited for, and what to do about others.

A broker that restarts, a leader or coordinator that moves, a connection that breaks, an answer that is late:
none of them is about the data. Errors that are (offsets that are gone, a topic that does not exist, a missing
right, a fenced producer) are never retried, nor are unknown errors.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from slackwater.protocol import Clock, StateError, SystemClock

if TYPE_CHECKING:  # most readers need no administration, and start without its modules
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

TRANSIENT_CODES = frozenset(
    (
        # the connection
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own codes have no other name
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError.NETWORK_EXCEPTION,
        # time
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        # who leads a partition
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        # whether there are enough replicas
        KafkaError._ISR_INSUFF,  # noqa: SLF001
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        # coordinators
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        # errors that librdkafka itself says to retry
        KafkaError._DESTROY_BROKER,  # noqa: SLF001
        KafkaError._RETRY,  # noqa: SLF001
        KafkaError._WAIT_CACHE,  # noqa: SLF001
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
    )
)

ABSENT_CODES = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
)
"""There is no such topic or partition, as far as the broker, or librdkafka, knows."""

OUT_OF_RANGE_CODES = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001
"""A partition does not have the offset that is to be read: records were deleted, or it was recreated."""

GROUP_REFUSED = KafkaError.GROUP_AUTHORIZATION_FAILED
"""Not a failure of a reader that joins no group: librdkafka looks for the coordinator of every consumer's
group, but reads without one."""

_LASTING = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "lower transaction_timeout in the settings, or raise the broker's transaction.max.timeout.ms"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, or write smaller records",
    KafkaError.INVALID_RECORD: (
        "the broker's log names the rule that the record violates; a compacted topic, for example, accepts "
        "no records without a key"
    ),
    KafkaError.TOPIC_EXCEPTION: "use a name that Kafka accepts for the topic",
}
"""What to do about errors that another attempt would meet again."""

NEW_TOPIC_SECONDS = 5.0
"""How long brokers may deny a topic: a new one becomes known to them one after the other."""
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_QUIET_SECONDS = 1.0
"""Shorter delays are not logged, such as a broker that does not know a new topic yet."""
_FIRST_NEWS_SECONDS, _LONGEST_NEWS_SECONDS = 5.0, 60.0
"""The time between the first two lines in the log while something is waited for, and between late ones."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


def is_transient(error: KafkaError) -> bool:
    """Returns whether the same request may succeed later without any intervention."""
    return not error.fatal() and (error.retriable() or error.code() in TRANSIENT_CODES)


def kafka_error(error: BaseException) -> KafkaError | None:
    """Returns Kafka's own error in one of its client's; None for any other."""
    first = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return first if isinstance(first, KafkaError) else None


def code_of(error: BaseException) -> int | None:
    """Returns the code of Kafka's own error in one of its client's; None for any other."""
    found = kafka_error(error)
    return None if found is None else found.code()


def reason_of(error: BaseException) -> str:
    """Returns Kafka's own words in an error of its client, and the text of any other error."""
    found = kafka_error(error)
    return str(error) if found is None else found.str()


def is_silence(error: BaseException) -> bool:
    """Returns whether an error, or the client's error behind it, only means that no answer came."""
    known = kafka_error(error.__cause__ or error)
    return known is not None and is_transient(known)


def check_visible(client: Consumer, topic: str, seconds: float) -> None:
    """Returns if the user may see a topic, or if there is none.

    Only this request reports a missing right. To others, the topic seems to be absent or empty.

    Raises:
        KafkaException: The user may not see the topic, or Kafka does not answer.
    """
    found = client.list_topics(topic, seconds).topics.get(topic)
    error = None if found is None else found.error
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)


def create_topics(admin: "AdminClient", topics: "Sequence[NewTopic]", seconds: float) -> None:
    """Creates topics; existing ones are left unchanged, so the request can be repeated.

    Raises:
        KafkaException: Kafka refuses or does not answer.
    """
    for made in admin.create_topics(list(topics), request_timeout=seconds).values():
        try:
            made.result(seconds)
        except KafkaException as error:
            found = kafka_error(error)
            if found is None or found.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def watermark_offsets(consumer: Consumer, place: TopicPartition, seconds: float) -> tuple[int, int]:
    """Returns the first offset of a partition and the one after its last record.

    Raises:
        KafkaException: Kafka refuses, or there is no such partition.
        TimeoutError: It did not answer in time; :meth:`KafkaRetry.call` retries.
    """
    found = consumer.get_watermark_offsets(place, seconds)
    if found is None:
        raise TimeoutError
    return found


class Retry:
    """How long consecutive failures are waited for, and when they are worth a line in the log.

    The time begins with the first failure, and again with the first one after a success. Used by one thread.

    Args:
        what: Who retries, or the operation and its place, for the log.
        seconds: How long failures may continue; without end by default.
        clock: Measures the time.
        pause: Waits for this many seconds.
    """

    def __init__(
        self,
        what: str,
        seconds: float = math.inf,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._what, self._seconds = what, seconds
        self._clock, self._pause = clock or SystemClock(), pause
        self.reset()

    def reset(self) -> None:
        """Notes a success."""
        self._deadline = self._news_at = -math.inf
        self._pause_seconds, self._news_seconds = _FIRST_PAUSE_SECONDS, _FIRST_NEWS_SECONDS
        self.last_error: KafkaError | BaseException | str | None = None
        """The last failure; None: there was none since the last success."""

    def begin(self) -> None:
        """Begins the time now, not with the first failure."""
        self._deadline = self._clock.monotonic() + self._seconds

    @property
    def remaining_seconds(self) -> float:
        """The remaining time; never 0, which librdkafka takes for "do not wait"."""
        return max(0.001, self._deadline - self._clock.monotonic())

    @property
    def is_over(self) -> bool:
        """True if failures have continued for too long."""
        return -math.inf < self._deadline <= self._clock.monotonic()

    @property
    def outcome(self) -> str:
        """The duration of the attempts, and the last failure."""
        last = "" if self.last_error is None else f": {_text(self.last_error)}"
        return f"tried for {self._seconds:g} s{last}"

    def note(self, error: KafkaError | BaseException | str) -> None:
        """Notes a failure; says so in the log at once, and then less and less often, up to once a minute."""
        if self._deadline == -math.inf:
            self.begin()
        self.last_error = error
        now = self._clock.monotonic()
        if now >= self._news_at:
            self._news_at = now + self._news_seconds
            self._news_seconds = min(2 * self._news_seconds, _LONGEST_NEWS_SECONDS)
            left = max(0.0, self._deadline - now)
            end = "" if left == math.inf else f", for {left:.0f} s at most"
            _log.warning("%s: %s; trying again%s", self._what, _text(error), end)

    def pause(self) -> None:
        """Waits, longer each time, but not beyond the deadline."""
        self._pause(min(self._pause_seconds, self.remaining_seconds))
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)


class KafkaRetry(Retry):
    """The deadline of one operation, which may consist of several requests. Used by one thread.

    Its time begins at once. What passes within a second is not logged.
    """

    def __init__(
        self,
        what: str,
        seconds: float,
        *,
        also: Collection[int] = (),
        clock: Clock | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(f"Kafka: {what}", seconds, clock=clock, pause=pause)
        self._also = also
        self.begin()
        self._news_at = self._clock.monotonic() + _QUIET_SECONDS

    def is_transient(self, error: KafkaError) -> bool:
        """Returns whether an error is transient, in general or in this operation."""
        return is_transient(error) or (error.code() in self._also and not error.fatal())

    def call(self, request: Callable[[float], T]) -> T:
        """Makes a request until it succeeds; passes it the seconds that are left.

        Raises:
            KafkaException: A permanent error, or the last one at the deadline, with the duration.
        """
        while True:
            try:
                return request(self.remaining_seconds)
            except KafkaException as error:
                self.wait_after(error)
            except TimeoutError:
                self.wait_after(KafkaException(KafkaError(KafkaError._TIMED_OUT)))  # noqa: SLF001

    def wait_after(self, error: KafkaException) -> None:
        """Pauses if the error is transient and there is time left.

        Raises:
            KafkaException: The error if it is permanent; at the deadline, the last one with the duration.
        """
        found = kafka_error(error)
        if found is None or not self.is_transient(found):
            raise error
        self.note(found)
        if self.is_over:
            raise KafkaException(KafkaError(found.code(), self.outcome)) from error
        self.pause()


def await_topic(client: Consumer, topic: str, hint: str) -> None:
    """Waits until brokers no longer deny the topic of a group, for :data:`NEW_TOPIC_SECONDS` at most.

    librdkafka reports a denial once, and takes the topic up when a list of all topics contains it.

    Raises:
        StateError: There is no such topic.
        KafkaException: Kafka does not answer.
    """
    is_denied = False

    def ask(seconds: float) -> None:
        nonlocal is_denied
        if topic not in client.list_topics(timeout=seconds).topics:
            is_denied = True
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    try:
        KafkaRetry(f"looking up topic {topic}", NEW_TOPIC_SECONDS, also=ABSENT_CODES).call(ask)
    except KafkaException as error:
        if not is_denied:  # the last answer may also have been late
            raise
        raise StateError(f"topic {topic} does not exist", hint) from error


def _text(error: KafkaError | BaseException | str) -> str:
    return error.str() if isinstance(error, KafkaError) else str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRights:
    """The rights of a client in the words of its messages, to be read after "grant"."""

    user: str
    """Such as ``the producer's user``."""
    on_topics: str
    """Such as ``Write on its topics``."""
    on_group: str = "Read on its group"
    on_id: str = "Write on its transactional id"

    def advice(self, error: KafkaError) -> str | None:
        """Returns what to do about an error; None if another attempt may succeed, or nothing is known."""
        missing = {
            KafkaError.TOPIC_AUTHORIZATION_FAILED: self.on_topics,
            # A user who may write to some topic may also write idempotently.
            KafkaError.CLUSTER_AUTHORIZATION_FAILED: self.on_topics,
            KafkaError.GROUP_AUTHORIZATION_FAILED: self.on_group,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: self.on_id,
        }.get(error.code())
        return _LASTING.get(error.code()) if missing is None else f"grant {self.user} {missing}"
