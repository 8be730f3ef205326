"""Documents of whole keys after a batch: the state before is not evaluated, a digest tells what changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackwater_spark.stage.calls import MAX_ROWS_PER_CALL, PartEvaluator
from slackwater_spark.stage.entry import DOCUMENT_TAG, HASH_BYTES, digest
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.outbox import Outbox
from slackwater_spark.stage.part_changes import PartChanges
from slackwater_spark.stage.touched import OWN_LSN, TouchedKey, TouchedKeys
from slackwater_spark.stage.wire import Event
from slackwater_sql.stage_evaluation import RowVersions
from slackwater_sql.stages import DocumentsOutput, RowsPart, StagePlan


@dataclass(slots=True)
class _Call:
    """Keys of one call, as columns."""

    inputs: int
    keys: list[bytes] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    """Of the keys' newest changes."""
    last: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Names and values of the entries of the keys' last documents."""
    groups: list[list[int]] = field(init=False)
    rows: list[list[bytes]] = field(init=False)
    size: int = 0

    def __post_init__(self) -> None:
        self.groups = [[] for _ in range(self.inputs)]
        self.rows = [[] for _ in range(self.inputs)]

    def add(self, number: int, row: bytes) -> None:
        """A row of the last key."""
        self.groups[number].append(len(self.keys) - 1)
        self.rows[number].append(row)
        self.size += 1


class LatestLogic:
    """See :class:`RowsLogic`; for parts with a `latest_statement`.

    Beside the digest of a key's last document its record key is kept, to delete it by.
    """

    def __init__(self, stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator) -> None:
        """The logic of a stage's rows part, which publishes documents."""
        if not isinstance(rows.output, DocumentsOutput):
            msg = f"stage {stage.number}: a statement for live rows, but no documents"
            raise TypeError(msg)
        self._view = rows.output.view
        self._touched = TouchedKeys(stage, rows)
        self._is_global = not stage.key
        self._inputs = len(rows.inputs)
        self._evaluator = evaluator

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, outbox: Outbox, lsn: int
    ) -> PartChanges:
        """The changes of these events; adds documents to the outbox. Changes no contents.

        Args:
            events: By commit LSN.
            contents: Of the bucket.
            outbox: Takes the documents.
            lsn: Of the documents, or `OWN_LSN`.

        Raises:
            UnknownRowError: an event needs a row that the contents do not have.
            EvaluationError: the part's SQL fails on the rows of a key.
        """
        changes = PartChanges()
        call = _Call(self._inputs)
        for of_key in self._touched.of(events, contents, lsn):
            if call.size > MAX_ROWS_PER_CALL:
                self._conclude(call, changes, outbox, lsn)
                call = _Call(self._inputs)
            self._add(of_key, contents, changes, call)
        if call.keys:
            self._conclude(call, changes, outbox, lsn)
        return changes

    def _add(self, of_key: TouchedKey, contents: IndexTransaction, changes: PartChanges, call: _Call) -> None:
        group, changed, width = of_key.group, of_key.changed, len(of_key.group)
        document_name = group + DOCUMENT_TAG
        entries = dict(contents.group(group))
        last = entries.get(document_name)
        if not changed and last is not None:
            return
        for name, transitions in changed.items():
            row = transitions[-1][1]
            changes.set(name, entries.get(name), row)
            if row is None:
                del entries[name]
            else:
                entries[name] = row
        call.keys.append(of_key.key)
        call.lsns.append(of_key.lsn)
        call.last.append((document_name, last))
        inputs = range(self._inputs)
        for name, row in entries.items():
            if (number := name[width] - 1) in inputs:
                call.add(number, row)

    def _conclude(self, call: _Call, changes: PartChanges, outbox: Outbox, lsn: int) -> None:
        rows = [
            RowVersions(groups, codec.unpack_columns(packed))
            for codec, groups, packed in zip(self._touched.codecs, call.groups, call.rows, strict=True)
        ]
        results = self._evaluator.latest(rows, call.keys, call.lsns)
        found = {group: (key.encode(), document) for group, key, document in results}
        documents = outbox.view(self._view)
        for number, (name, last) in enumerate(call.last):
            current = found.get(number)
            value = None if current is None else digest(current[1]) + current[0]
            if value == last:
                continue
            changes.set(name, last, value)
            at = call.lsns[number] if lsn == OWN_LSN else lsn
            if current is not None:
                documents.append((at, *current))
            elif last is not None:
                documents.append((at, last[HASH_BYTES:], None))
