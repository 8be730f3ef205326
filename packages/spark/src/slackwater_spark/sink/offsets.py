"""Which offsets the records of a transaction were given."""

from confluent_kafka import KafkaError, Message

from slackwater_protocol import OffsetRange


class DeliveredOffsets:
    """Counts delivery reports per partition.

    Reports come in the thread that polls or flushes the producer. One instance covers the documents of one
    commit record.
    """

    __slots__ = ("_ranges", "delivered", "first_error", "largest_failed")

    def __init__(self) -> None:
        self._ranges: dict[int, list[int]] = {}
        self.delivered = 0
        self.first_error: KafkaError | None = None
        self.largest_failed: tuple[int, bytes | None] | None = None
        """Bytes of the value, and key, of a record that failed for the same reason as the first one."""

    def report(self, error: KafkaError | None, message: Message) -> None:
        """The ``on_delivery`` callback. Never raises."""
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._failed(error, message)
            return
        self.delivered += 1
        seen = self._ranges.get(partition)
        if seen is None:
            self._ranges[partition] = [1, offset, offset]
        else:
            seen[0] += 1
            if offset > seen[2]:
                seen[2] = offset
            elif offset < seen[1]:
                seen[1] = offset

    def _failed(self, error: KafkaError | None, message: Message) -> None:
        self.first_error = self.first_error or error
        if error is None or self.first_error is None or error.code() != self.first_error.code():
            return
        size = len(message.value() or b"")
        if self.largest_failed is None or size > self.largest_failed[0]:
            self.largest_failed = size, message.key()

    def ranges(self) -> dict[int, OffsetRange]:
        """Count, first and last offset by partition; partitions without a record are absent."""
        return {partition: OffsetRange(*seen) for partition, seen in sorted(self._ranges.items())}
