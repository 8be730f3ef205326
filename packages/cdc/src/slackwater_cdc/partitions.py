"""The partitions of a source's data topics."""

from collections.abc import Iterator

from slackwater_cdc.context import Context
from slackwater_cdc.partition import Partition
from slackwater_protocol import SourceTopics


class Partitions:
    """Every partition that was declared.

    Args:
        topics: Which topic has a table's rows.
        context: What the partitions work on.
    """

    def __init__(self, topics: SourceTopics, context: Context) -> None:
        self._topics = topics
        self._context = context
        self._by_key: dict[tuple[str, int], Partition] = {}
        self._by_topic: dict[str, list[Partition]] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_key.values())

    def add(self, topic: str, number: int, start: int) -> Partition:
        """A partition that is read from an offset on; the same again when it is known."""
        key = topic, number
        if key not in self._by_key:
            partition = self._by_key[key] = Partition(self._context, topic, number, start)
            self._by_topic.setdefault(topic, []).append(partition)
        return self._by_key[key]

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
