"""Asks Kafka for the facts: which topics there are, where they begin and end, what stands last in them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.envelope import End, decode_full_row, decode_transaction
from slackwater.cli.doctor.facts import EndFacts, PartitionFacts, PartitionId
from slackwater.cli.topics import open_consumer
from slackwater.kafka.retry import GROUP_REFUSED, KafkaRetry, is_transient, reason_of
from slackwater.protocol import KafkaSettings, SourceTopics, SystemClock
from slackwater.settings.errors import unreachable

REQUEST_SECONDS = 5.0
_TAIL = 20
"""Records looked at from a partition's end: the last may be tombstones or markers of Kafka transactions."""
_TAIL_OF_TRANSACTIONS = 500
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """Everything that Kafka says about a source at one moment."""

    data_topics: frozenset[str]
    partitions: Mapping[PartitionId, PartitionFacts]
    transactions: PartitionFacts | None
    ends: tuple[EndFacts, ...]
    """The last ENDs, in the order of the transaction topic."""


class KafkaProbe:
    """Asks Kafka. Use it with ``with``; not thread-safe.

    Args:
        kafka: Where it is.
        topics: Names of the source's topics.
        is_data_topic: Which topics hold rows of its tables.
    """

    def __init__(
        self, kafka: KafkaSettings, topics: SourceTopics, is_data_topic: Callable[[str], bool]
    ) -> None:
        at_end, everything = {"enable.partition.eof": "true"}, {"isolation.level": "read_uncommitted"}
        self._committed = open_consumer(kafka.bootstrap, {**kafka.options, **at_end})
        self._all = open_consumer(kafka.bootstrap, {**kafka.options, **everything})
        self._topics = topics
        self._is_data_topic = is_data_topic

    def __enter__(self) -> "KafkaProbe":
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Frees connections."""
        self._committed.close()
        self._all.close()

    def ask(self, named: Collection[str] = ()) -> KafkaFacts:
        """Asks where everything begins and ends now, and for the last ENDs.

        Args:
            named: Topics that hold rows of its tables, although their names do not show it.

        Raises:
            CommandUnavailableError: Kafka does not answer.
        """
        known = _asked("list topics", lambda: self._committed.list_topics(timeout=REQUEST_SECONDS)).topics
        data = frozenset(topic for topic in known if topic in named or self._is_data_topic(topic))
        partitions = {
            (t, n): self._partition((t, n)) for t in sorted(data) for n in sorted(known[t].partitions)
        }
        name = self._topics.transactions
        transactions = self._partition((name, 0)) if name in known else None
        return KafkaFacts(data, partitions, transactions, self._ends(transactions) if transactions else ())

    def _ends(self, transactions: PartitionFacts) -> tuple[EndFacts, ...]:
        partition = (self._topics.transactions, 0)
        records = self._tails({partition: transactions}, _TAIL_OF_TRANSACTIONS).get(partition, [])
        return tuple(end for record in records if (end := _end(record)) is not None)

    def with_newest_rows(
        self, partitions: Mapping[PartitionId, PartitionFacts]
    ) -> dict[PartitionId, PartitionFacts]:
        """Adds the LSN of the last row of each partition."""
        result = dict(partitions)
        for partition, records in self._tails(partitions, _TAIL).items():
            lsns = [lsn for record in records if (lsn := _row_lsn(record.value())) is not None]
            if lsns:
                result[partition] = replace(result[partition], newest_row_lsn=lsns[-1])
        return result

    def still_hanging(
        self, partitions: Mapping[PartitionId, PartitionFacts]
    ) -> dict[PartitionId, PartitionFacts]:
        """Asks again: nothing hangs where the readable end has moved meanwhile."""
        result = dict(partitions)
        for partition, facts in partitions.items():
            if facts.hangs and self._bounds(self._committed, partition)[1] > facts.stable_end:
                result[partition] = replace(facts, end=facts.stable_end)
        return result

    def _partition(self, partition: PartitionId) -> PartitionFacts:
        low, stable_end = self._bounds(self._committed, partition)
        return PartitionFacts(low=low, stable_end=stable_end, end=self._bounds(self._all, partition)[1])

    def _bounds(self, consumer: Consumer, partition: PartitionId) -> tuple[int, int]:
        bounds = _asked(
            f"offsets of {partition[0]}/{partition[1]}",
            lambda: consumer.get_watermark_offsets(TopicPartition(*partition), REQUEST_SECONDS),
        )
        if bounds is None:
            raise unreachable("Kafka", f"offsets of {partition[0]}/{partition[1]}", "no answer in time")
        return bounds

    def _tails(
        self, partitions: Mapping[PartitionId, PartitionFacts], count: int
    ) -> dict[PartitionId, list[Message]]:
        """Reads the last readable records of each partition, in order."""
        waiting = {partition for partition, facts in partitions.items() if facts.stable_end > facts.low}
        begins = [
            TopicPartition(
                *partition, max(partitions[partition].low, partitions[partition].stable_end - count)
            )
            for partition in sorted(waiting)
        ]
        if not begins:
            return {}
        _asked("reading", lambda: self._committed.assign(begins))
        try:
            return self._read(partitions, waiting)
        finally:
            self._committed.unassign()

    def _read(
        self, partitions: Mapping[PartitionId, PartitionFacts], waiting: Collection[PartitionId]
    ) -> dict[PartitionId, list[Message]]:
        found: dict[PartitionId, list[Message]] = {partition: [] for partition in waiting}
        left, clock = set(waiting), SystemClock()
        deadline = clock.monotonic() + REQUEST_SECONDS
        while left and clock.monotonic() < deadline:
            for message in _asked("reading", lambda: self._committed.consume(1000, 0.1)):
                partition = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is None:
                    found[partition].append(message)
                    if (message.offset() or 0) + 1 >= partitions[partition].stable_end:
                        left.discard(partition)
                elif error.code() == _AT_END:
                    left.discard(partition)
                elif error.code() != GROUP_REFUSED and not is_transient(error):
                    raise unreachable("Kafka", f"reading {partition[0]}/{partition[1]}", error.str())
        return found


def _asked(what: str, question: Callable[[], T]) -> T:
    try:
        return KafkaRetry(what, REQUEST_SECONDS).call(lambda _: question())
    except KafkaException as error:
        raise unreachable("Kafka", what, reason_of(error)) from error


def _end(message: Message) -> EndFacts | None:
    """Reads an END in JSON, with or without schema; returns None for anything else."""
    try:
        end = decode_transaction(message.value() or b"")
    except UndecodableRecordError:
        return None
    if not isinstance(end, End):
        return None
    offset = message.offset() or 0
    return EndFacts(offset=offset, xid=end.xid, commit_lsn=end.commit_lsn, commit_ts_ms=end.commit_ts_ms)


def _row_lsn(value: bytes | None) -> int | None:
    """Reads the LSN of a row in JSON, with or without schema; returns None for anything else."""
    try:
        return decode_full_row(value or b"").source.lsn
    except UndecodableRecordError:
        return None
