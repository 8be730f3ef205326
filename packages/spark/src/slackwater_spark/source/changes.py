"""From records to the changes of a batch: drops what does not belong, refuses what cannot be understood."""

from collections.abc import Iterator, Sequence

from confluent_kafka import Message

from slackwater_cdc import CdcError, Change, decode_change
from slackwater_protocol.keys import data_topic
from slackwater_spark.source.batch import BatchTask
from slackwater_spark.source.errors import BadInputError
from slackwater_spark.source.plan import OffsetSpan

FIRST_BYTES = 200
"""How much of a value an error shows."""
_OPERATIONS = frozenset({"c", "u", "d", "r"})

Located = tuple[Message, Change, int]
"""The record, what it says, and the commit LSN of its transaction."""


class BatchChanges:
    """Finds a batch's changes among the records of its spans.

    Rows of commits outside a span's LSNs belong to another batch. Rows whose transaction is not in the
    batch's table are repetitions of earlier ones, or rows of an initial snapshot that was started again. All
    of them are dropped. Rows of transactions known to stand in Kafka twice are compared by change identity
    ``(xid, lsn, table, op, key)`` within their partition; only the first counts.

    Args:
        task: What is read.
        source: The connector's ``topic.prefix``.
        tables: The tables that the query reads.
    """

    def __init__(self, task: BatchTask, source: str, tables: Sequence[str]) -> None:
        self._by_xid = task.table.by_xid()
        self._snapshots = task.table.snapshot_lsns
        self._repeated = task.repeated
        self._seen: set[tuple[object, ...]] = set()
        self._tables = {data_topic(source, table): table for table in tables}
        self._source = source

    def of(self, span: OffsetSpan, messages: list[Message]) -> Iterator[Located]:
        """The changes among records of a span, in their order.

        Raises:
            BadInputError: at the first record that cannot be understood.
        """
        table = self._tables[span.topic]
        commit_lsn_of, repeated = self._by_xid.get, self._repeated
        after_lsn, up_to_lsn = span.after_lsn, span.up_to_lsn
        for message in messages:
            value = message.value()
            if value is None:
                continue
            try:
                change = decode_change(value)
            except CdcError as error:
                raise bad_input(message, str(error)) from error
            xid = change.xid
            commit_lsn = commit_lsn_of(xid) if xid is not None else self._outside(message, change)
            if commit_lsn is None or not after_lsn < commit_lsn <= up_to_lsn:
                continue
            is_odd = change.op not in _OPERATIONS or change.table != table
            if is_odd and self._may_be_left_out(message, change):
                continue
            if commit_lsn in repeated and self._is_double(message, change):
                continue
            yield message, change, commit_lsn

    def _outside(self, message: Message, change: Change) -> int | None:
        """The snapshot's LSN for a row of an initial snapshot that counts."""
        if change.op == "m":
            return None
        if not change.is_snapshot:
            problem = "a row of an incremental snapshot, which is not supported yet"
            raise bad_input(message, f"{problem}; take a new initial snapshot instead")
        return change.lsn if change.lsn in self._snapshots else None

    def _may_be_left_out(self, message: Message, change: Change) -> bool:
        """Logical messages, and rows of another table whose topic has the same name."""
        if change.op == "m":
            return True
        if change.op == "t":
            problem = f"TRUNCATE of {change.table}, which is not supported yet"
            raise bad_input(message, f"{problem}; delete rows with DELETE, or skip it (skipped.operations=t)")
        if change.op not in _OPERATIONS:
            raise bad_input(message, f"operation {change.op!r}, expected one of c, r, u, d")
        if data_topic(self._source, change.table) != message.topic():
            raise bad_input(message, f"a change of table {change.table!r}; is the topic's name routed?")
        return change.table not in self._tables.values()

    def _is_double(self, message: Message, change: Change) -> bool:
        key = message.key()
        if key is None:
            problem = (
                f"rows of {change.table} stand in Kafka twice and the table has no key to compare them by"
            )
            raise bad_input(message, f"{problem}; give it a primary key and start with a new snapshot")
        identity = (message.partition(), change.xid, change.lsn, change.table, change.op, key)
        if identity in self._seen:
            return True
        self._seen.add(identity)
        return False


def bad_input(message: Message, problem: str) -> BadInputError:
    """The error for a record, with its place."""
    value = message.value() or b""
    return BadInputError(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        problem,
        value[:FIRST_BYTES],
    )
