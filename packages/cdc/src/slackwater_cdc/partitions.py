"""The partitions of a source's data topics."""

from collections.abc import Iterator, Mapping

from slackwater_cdc.context import Context
from slackwater_cdc.partition import Partition
from slackwater_protocol import SourceTopics


class Partitions:
    """Every partition that was declared.

    Args:
        topics: Which topic has a table's rows.
        context: What the partitions work on.
        counts: How many partitions the topics had earlier.
    """

    def __init__(self, topics: SourceTopics, context: Context, counts: Mapping[str, int]) -> None:
        self._topics = topics
        self._context = context
        self._by_key: dict[tuple[str, int], Partition] = {}
        self._by_topic: dict[str, list[Partition]] = {}
        self._counts = dict(counts)
        self._remembered = 0

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_key.values())

    def add(self, topic: str, number: int, start: int) -> Partition:
        """A partition that is read from an offset on; the same again when it is known."""
        key = topic, number
        if key not in self._by_key:
            partition = self._by_key[key] = Partition(self._context, topic, number, start)
            siblings = self._by_topic.setdefault(topic, [])
            siblings.append(partition)
            self._look_at_growth(topic, siblings)
        return self._by_key[key]

    def remember_counts(self) -> None:
        """Says that those added from now on are new: their topics have grown."""
        if len(self._by_key) != self._remembered:
            self._remembered = len(self._by_key)
            self._counts = {topic: len(partitions) for topic, partitions in self._by_topic.items()}

    def _look_at_growth(self, topic: str, partitions: list[Partition]) -> None:
        """In a topic that has grown a key may have moved to another partition."""
        if len(partitions) > self._counts.get(topic, len(partitions)):
            for partition in partitions:
                partition.has_new_siblings = True

    def of_topic(self, topic: str) -> list[Partition]:
        """The partitions of a topic."""
        return self._by_topic.get(topic, [])

    def of_table(self, table: str) -> list[Partition]:
        """Where rows of a table stand: by the name of its topic, or because some were read there."""
        topic = self._topics.data(table)
        return [p for p in self._by_key.values() if p.topic == topic or table in p.tables]

    def end_offsets(self) -> dict[str, tuple[int, ...]]:
        """End offsets of a cut at the present frontier, by topic."""
        return {
            topic: tuple(p.end_offset() for p in sorted(partitions, key=lambda p: p.number))
            for topic, partitions in sorted(self._by_topic.items())
        }
