"""TRUNCATE in a bucket: all rows of an input vanish, also those of which the batch says nothing."""

from collections.abc import Collection, Sequence

import msgspec

from slackwater_spark.stage.entry import group_width, is_digest
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.packing import PackingInput
from slackwater_spark.stage.wire import Event
from slackwater_sql.row_codec import RowCodec


def in_log_order(event: Event) -> tuple[int, int]:
    """Sorts events by commit, and those of a commit as the database made them."""
    return event[0], -event[5]


class StoredKeys:
    """The stage keys under which a bucket has rows. Reads the bucket once, when first asked."""

    def __init__(
        self, contents: IndexTransaction, inputs: Sequence[PackingInput], codecs: Sequence[RowCodec]
    ) -> None:
        self._contents = contents
        self._codecs = codecs
        self._positions = [i.positions(i.key) for i in inputs]
        self._keys: list[set[bytes]] | None = None

    def of(self, number: int) -> Collection[bytes]:
        """The keys of an input's rows."""
        if self._keys is None:
            self._keys = self._read()
        return self._keys[number]

    def _read(self) -> list[set[bytes]]:
        found: list[set[bytes]] = [set() for _ in self._positions]
        for name, value in self._contents.entries():
            width = group_width(name)
            number = name[width] - 1
            if 0 <= number < len(found):
                group = name[:width]
                found[number].add(self._key(number, value) if is_digest(group) else group)
        return found

    def _key(self, number: int, row: bytes) -> bytes:
        """Of a long key the entry's name has only a digest; the row has its columns."""
        values = self._codecs[number].unpack(row)
        return msgspec.msgpack.encode(tuple(values[position] for position in self._positions[number]))
