"""Reads the facts from Kafka: which topics exist, where they begin and end, and their last records."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException, Message

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.envelope import End, decode_full_row, decode_transaction
from slackwater.cli.doctor.facts import EndFacts, PartitionFacts, PartitionId
from slackwater.cli.signs import ANSWERS_WITHIN
from slackwater.cli.topics import explained
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import is_transient, kafka_error
from slackwater.protocol import KafkaSettings, SourceTopics

_TAIL = 20
"""Records looked at from a partition's end: the last may be tombstones or markers of Kafka transactions."""
_TAIL_OF_TRANSACTIONS = 500


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
        seconds = ANSWERS_WITHIN.total_seconds()
        self._committed = TopicReader(kafka.client_config, seconds)
        self._all = TopicReader(kafka.client_config, seconds, is_committed=False)
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
            UnavailableError: Kafka does not answer.
        """
        with explained("list topics"):
            known = self._committed.topics()
        data = frozenset(topic for topic in known if topic in named or self._is_data_topic(topic))
        partitions = {(t, n): self._partition((t, n)) for t in sorted(data) for n in range(known[t])}
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

    @staticmethod
    def _bounds(reader: TopicReader, partition: PartitionId) -> tuple[int, int]:
        with explained(f"offsets of {partition[0]}/{partition[1]}"):
            return reader.bounds(partition)

    def _tails(
        self, partitions: Mapping[PartitionId, PartitionFacts], count: int
    ) -> dict[PartitionId, list[Message]]:
        """Reads the last readable records of each partition, in order; what does not come in time is left."""
        spans = {
            partition: (max(facts.low, facts.stable_end - count), facts.stable_end)
            for partition, facts in sorted(partitions.items())
        }
        found: dict[PartitionId, list[Message]] = {partition: [] for partition in spans}
        with explained("reading"):
            try:
                for message in self._committed.read(spans):
                    found[message.topic() or "", message.partition() or 0].append(message)
            except KafkaException as error:
                known = kafka_error(error)
                if known is None or not is_transient(known):
                    raise
        return found


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
