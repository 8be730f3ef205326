"""What a batch of events does to a bucket: the changes of its contents and the documents to emit.

Pure: no Spark, disk or clock. The same events give the same documents in any batching when every commit is
evaluated, and the same final documents in any case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slackwater_spark.stage.entry import DOCUMENT_TAG, Change, digest, input_tag, part
from slackwater_spark.stage.errors import UnknownRowError
from slackwater_spark.stage.evaluation import EvaluationBatches, ViewEvaluator
from slackwater_spark.stage.group import GroupHistory, GroupRules, RowEvent, RowName
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.owner import OWNER_TAG, KeyOwner, KeyOwners, Owners
from slackwater_spark.stage.packing import PackingSpec
from slackwater_spark.stage.truncate import StoredKeys
from slackwater_spark.stage.wire import Document, Event
from slackwater_sql.row_codec import RowCodec


@dataclass(slots=True)
class Outcome:
    """What a batch does to a bucket."""

    documents: list[Document] = field(default_factory=list)
    """To emit: by key, and within a key by commit LSN."""
    changes: list[Change] = field(default_factory=list)
    """Of entries; each name at most once."""
    live_bytes: int = 0
    """By how much names and values of the live entries grow."""


@dataclass(frozen=True, slots=True)
class _TouchedGroup:
    key: bytes
    prefix: bytes
    before: Mapping[RowName, bytes]
    document_hash: bytes | None
    owner: bytes | None
    """Stored partition; scope `aggregate` only."""
    history: GroupHistory


class BucketLogic:
    """Applies events to the contents of buckets; for one thread."""

    def __init__(self, spec: PackingSpec, evaluator: ViewEvaluator, *, every_commit: bool) -> None:
        """The logic of one view.

        Args:
            spec: What the events were packed by.
            evaluator: Of the same view.
            every_commit: Emit the document after each commit that changes it (`transactions`), not only after
                the batch (`latest`).
        """
        self._spec = spec
        self._every_commit = every_commit
        self._codecs = [RowCodec(i.table, i.columns) for i in spec.inputs]
        self._tags = [input_tag(number) for number in range(len(spec.inputs))]
        self._owners = KeyOwners(spec)
        self._evaluations = EvaluationBatches(evaluator, spec, self._codecs, every_commit=every_commit)

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, owners: Owners | None = None
    ) -> Outcome:
        """See :class:`~slackwater_spark.stage.bucket.ApplyEvents`.

        Raises:
            UnknownRowError: an event needs a row that the contents do not have.
            SplitKeyError: a key's rows come from another partition than before.
            EvaluationError: the view's SQL fails on the rows of a key.
        """
        outcome = Outcome()
        touched = self._touched(events, contents, owners)
        evaluated = self._evaluations.evaluate(
            touched, lambda group: group.history, lambda group: self._spec.key_json(group.key).decode()
        )
        for group, documents in evaluated:
            self._conclude(group, documents, outcome)
            if owners is not None:
                _conclude_owner(group, owners[group.key], outcome)
        if not self._every_commit and owners is None and outcome.documents:
            newest = events[-1][0]
            outcome.documents = [(newest, key, document) for _, key, document in outcome.documents]
        return outcome

    def _touched(
        self, events: Sequence[Event], contents: IndexTransaction, owners: Owners | None
    ) -> Iterator[_TouchedGroup]:
        """Groups whose rows really change, by key."""
        by_key = self._by_key(events, StoredKeys(contents, self._spec.inputs, self._codecs))
        for key in sorted(by_key):
            prefix = part(key)
            width = len(prefix)
            before = {name[width:]: value for name, value in contents.group(prefix)}
            document_hash = before.pop(DOCUMENT_TAG, None)
            owner = before.pop(OWNER_TAG, None)
            if owners is not None:
                self._owners.check(owners[key], owner)
            history = self._rules(key).history(before, by_key[key])
            if history.points:
                yield _TouchedGroup(key, prefix, before, document_hash, owner, history)

    def _by_key(self, events: Sequence[Event], stored: StoredKeys) -> dict[bytes, list[RowEvent]]:
        tags = self._tags
        by_key: dict[bytes, list[RowEvent]] = {}
        for lsn, number, key, primary_key, row, _ in events:
            if not key:
                for truncated in {*stored.of(number), *by_key}:
                    by_key.setdefault(truncated, []).append((lsn, tags[number], None))
                continue
            event = (lsn, tags[number] + part(primary_key), row)
            if key in by_key:
                by_key[key].append(event)
            else:
                by_key[key] = [event]
        return by_key

    def _conclude(self, group: _TouchedGroup, documents: Sequence[bytes | None], outcome: Outcome) -> None:
        key_json, last = self._spec.key_json(group.key), group.document_hash
        for lsn, document in zip(group.history.points, documents, strict=True):
            current = None if document is None else digest(document)
            if current != last:
                outcome.documents.append((lsn, key_json, document))
                last = current
        for name, row in group.history.changed.items():
            outcome.changes.append((group.prefix + name, row))
            outcome.live_bytes += _growth(len(group.prefix) + len(name), group.before.get(name), row)
        if last != group.document_hash:
            outcome.changes.append((group.prefix + DOCUMENT_TAG, last))
            outcome.live_bytes += _growth(len(group.prefix) + 1, group.document_hash, last)

    def _rules(self, key: bytes) -> GroupRules:
        def merge(lsn: int, name: RowName, row: tuple[bytes], last: bytes | None) -> bytes:
            number = name[0] - 1
            if last is None:
                problem = "an update leaves out an unchanged value (TOAST)"
                raise self._unknown_row(number, key, lsn, problem)
            codec = self._codecs[number]
            return codec.encode(codec.merge(codec.unpack(row[0]), codec.unpack(last)))

        def check_delete(lsn: int, name: RowName) -> None:
            number = name[0] - 1
            if self._spec.inputs[number].moves:
                raise self._unknown_row(number, key, lsn, "a row is deleted from, or leaves, this key")

        return GroupRules(merge=merge, check_delete=check_delete, every_commit=self._every_commit)

    def _unknown_row(self, number: int, key: bytes, lsn: int, problem: str) -> UnknownRowError:
        table = self._spec.inputs[number].table.full_name
        return UnknownRowError(table, self._spec.key_json(key).decode(), lsn, problem)


def _conclude_owner(group: _TouchedGroup, owner: KeyOwner, outcome: Outcome) -> None:
    """A key without rows belongs to nobody."""
    changed = group.history.changed
    has_rows = any(row is not None for row in changed.values()) or not group.before.keys() <= changed.keys()
    entry = owner.entry if has_rows else None
    if entry != group.owner:
        outcome.changes.append((group.prefix + OWNER_TAG, entry))
        outcome.live_bytes += _growth(len(group.prefix) + 1, group.owner, entry)


def _growth(name_bytes: int, old: bytes | None, new: bytes | None) -> int:
    """By how much an entry grows."""
    before = 0 if old is None else name_bytes + len(old)
    return (0 if new is None else name_bytes + len(new)) - before
