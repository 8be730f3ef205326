"""Changes packed by bucket for a stage: internal."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from slackwater_engine.records.batch import OffsetSpan
from slackwater_engine.records.changes import BatchChanges
from slackwater_engine.records.record import bad_input
from slackwater_protocol import format_position

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from slackwater_engine.pack.packer import EventPacker

_UNSETTLED = 500
"""So many changes of a span are kept as objects: as many as a processor's cache holds."""

_idle: dict[str, list["EventPacker"]] = {}
"""Empty packers of this process, by specification: building one compiles its codecs."""


class PackedWriter:
    """Turns changes into Arrow batches of packed rows.

    Each span is packed by itself, since spans of several partitions arrive interleaved: so the payloads of a
    batch are the same at every attempt.

    Args:
        packing: The specification, as the option has it.
        schema: As Spark resolved it.
        changes: Decides what counts.
    """

    def __init__(self, packing: str, schema: "StructType", changes: BatchChanges) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._packing = packing
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._changes = changes

    def write(
        self, header: bytes | None, portions: Iterator[tuple[OffsetSpan, list["Message"]]]
    ) -> Iterator["RecordBatch"]:
        """Yields the header's row, if there is one, then one batch per span that holds changes."""
        if header is not None:
            yield from self._header_rows(header)
        packers: dict[int, EventPacker] = {}
        unsettled: Counter[int] = Counter()
        for span, messages in portions:
            packer = packers.get(span.sequence)
            if packer is None:
                packer = packers[span.sequence] = self._packer()
            self._pack(packer, span, messages)
            unsettled[span.sequence] += len(messages)
            if unsettled[span.sequence] >= _UNSETTLED:
                unsettled[span.sequence] = 0
                packer.settle()
        for sequence in sorted(packers):
            packed = list(packers[sequence].payloads())
            if packed:
                yield self._batch(packed, sequence)
        _idle.setdefault(self._packing, []).extend(packers.values())

    def _header_rows(self, header: bytes) -> Iterator["RecordBatch"]:
        """Yields the header's row, and one that lets the group of a stage without key columns exist."""
        from slackwater_engine.payloads import HEADER_BUCKET, HEADER_STAGE, TOUCH_SEQUENCE

        yield self._batch([(HEADER_STAGE, HEADER_BUCKET, header)], 0)
        packer = self._packer()
        if packer.can_touch:
            packer.touch(_first_lsn(header))
            yield self._batch(list(packer.payloads()), TOUCH_SEQUENCE)
        _idle.setdefault(self._packing, []).append(packer)

    def _pack(self, packer: "EventPacker", span: OffsetSpan, messages: list["Message"]) -> None:
        """Packs regular records together, the others one by one."""
        window = self._changes.window(span)
        if window is None:
            self._pack_each(packer, span, messages)
            return
        table = packer.table(window.table)
        try:
            envelopes = table.decode([message.value() for message in messages])
        except (ValueError, RecursionError):  # which record, and what is wrong with it, is found one by one
            self._pack_each(packer, span, messages)
            return
        done = table.add_regular(envelopes, window)
        while done < len(messages):
            self._pack_each(packer, span, messages[done : done + 1])
            done += 1 + table.add_regular(envelopes[done + 1 :], window)

    def _pack_each(self, packer: "EventPacker", span: OffsetSpan, messages: list["Message"]) -> None:
        from slackwater_engine.errors import PackingError
        from slackwater_sql.errors import SqlError

        add = packer.add
        for message, change, commit_lsn in self._changes.find(span, messages):
            before, after = change.before, change.after
            try:
                add(
                    change.table,
                    change.op,
                    commit_lsn,
                    None if before is None else bytes(before),
                    None if after is None else bytes(after),
                    change.lsn,
                )
            except (PackingError, SqlError) as error:
                problem = f"in the transaction with commit LSN {format_position(commit_lsn)}, {error}"
                raise bad_input(message, problem) from error

    def _packer(self) -> "EventPacker":
        from slackwater_engine.pack.packer import EventPacker
        from slackwater_engine.pack.specification import PackingSpec

        idle = _idle.get(self._packing)
        return idle.pop() if idle else EventPacker(PackingSpec.from_json(self._packing))

    def _batch(self, packed: list[tuple[int, int, bytes]], sequence: int) -> "RecordBatch":
        import pyarrow

        stages, buckets, payloads = zip(*packed, strict=True)
        columns = [stages, buckets, [sequence] * len(packed), payloads]
        arrays = [
            pyarrow.array(column, type=field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _first_lsn(header: bytes) -> int:
    """Returns the LSN of the batch's first commit."""
    from slackwater_protocol import decode_batch_header

    decoded = decode_batch_header(header)
    return decoded.transactions[0][1] if decoded.transactions else decoded.to_lsn
