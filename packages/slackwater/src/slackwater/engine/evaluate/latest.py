"""Evaluates complete keys after a batch; a digest of the last document shows whether it has changed.

This is the hot loop of views whose keys are read completely. Regular events need no history: only the last
event of a row counts. Other events (TRUNCATE, rows that lack values, very long keys) are evaluated by
:class:`TouchedKeys`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from slackwater.engine.evaluate.points import MAX_ROWS_PER_CALL, Call
from slackwater.engine.evaluate.touched_keys import OWN_LSN, TouchedKeys
from slackwater.engine.evaluate.withheld import KeyStatus, WithheldKeys
from slackwater.engine.index import Contents
from slackwater.engine.payloads import Event, Outcome
from slackwater.engine.settings import PartEvaluator
from slackwater.engine.state.entry import (
    DOCUMENT_TAG,
    HASH_BYTES,
    MAX_PART_BYTES,
    Entry,
    digest,
    part,
    sharer_part,
)
from slackwater.sql.plan import DocumentsOutput, RowsPart, StagePlan
from slackwater.sql.stage_evaluation import Failures

LARGE_KEY_ENTRIES: Final = 64
"""The number of a key's entries from which on the rows of the events are read first, since perhaps none of
them differs."""

NewRows = dict[bytes, bytes | None]
"""The rows of a key after a batch, by tag and primary key; None for a deleted row."""


@dataclass(slots=True)
class _Batch:
    """The rows of keys after the regular events."""

    keys: dict[bytes, NewRows] = field(default_factory=dict)
    deletes: dict[bytes, dict[bytes, int]] = field(default_factory=dict)
    """Deletes of rows that must exist before the batch: the commit LSN, by key and row."""
    irregular: set[bytes] = field(default_factory=set)
    """The keys whose events need their history."""

    def delete(self, key: bytes, name: bytes, lsn: int, *, may_overlap: bool) -> None:
        """Adds a delete of a row that is under the key, as far as the batch shows.

        If rows of one key may overlap, it may be another row than the newest one.
        """
        rows = self.keys[key]
        if name not in rows:
            self.deletes.setdefault(key, {})[name] = lsn
        elif rows[name] is None or may_overlap:
            self.irregular.add(key)
        rows[name] = None


class LatestEvaluation:
    """Evaluates a rows part with a `latest_statement` that publishes documents. Use it from one thread.

    Besides the digest of a key's last document, it stores the key of the document's record, which a delete
    needs.
    """

    def __init__(
        self,
        stage: StagePlan,
        rows: RowsPart,
        evaluator: PartEvaluator,
        sharer: int = 0,
        withheld: WithheldKeys | None = None,
    ) -> None:
        self._withheld = withheld
        assert isinstance(rows.output, DocumentsOutput)  # noqa: S101 - else there is no `latest_statement`
        self._view = rows.output.view
        self._document_tag = sharer_part(sharer) + DOCUMENT_TAG
        self._touched = TouchedKeys(stage, rows)
        self._tags = self._touched.tags
        self._is_global = not stage.key
        self._evaluator = evaluator

    def __call__(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, lsn: int | None
    ) -> None:
        """Adds the changes that these events cause, and the documents, to the outcome; changes no contents.

        The events are sorted by commit LSN. The `lsn` is that of the documents, or `OWN_LSN`; None for that
        of the newest event. Raises the same errors as :class:`CommitEvaluation`.
        """
        batch = self._net(events, contents)
        at = events[-1][0] if lsn is None else lsn
        lsns = cache(lambda: {event[2]: event[0] for event in events})

        def newest(key: bytes) -> int:
            return lsns().get(key, events[-1][0])

        call = _LatestCall(Call(len(self._tags)))
        for key in sorted(batch.keys):
            self._add(key, batch, contents, outcome, call)
            if call.size > MAX_ROWS_PER_CALL:
                self._conclude(call, outcome, at, newest)
                call = _LatestCall(Call(len(self._tags)))
        self._conclude(call, outcome, at, newest)

    def _net(self, events: Sequence[Event], contents: Contents) -> _Batch:
        """Keeps the last event of each row, and, for irregular keys, the result of their history."""
        batch = _Batch()
        keys, tags, may_overlap = batch.keys, self._tags, self._touched.may_overlap
        for lsn, number, key, primary_key, row, _ in events:
            rows = keys.get(key)
            if rows is None:
                rows = keys[key] = {}
            if row.__class__ is bytes:
                rows[tags[number] + primary_key] = row
            elif row is None and key and number >= 0:
                name = tags[number] + primary_key
                if number not in self._touched.of_stages or rows.get(name) is None:
                    batch.delete(key, name, lsn, may_overlap=may_overlap[number])
            else:
                batch.irregular.add(key)
        for key, rows in keys.items():
            if len(key) > MAX_PART_BYTES or len(max(rows, key=len, default=b"")) > MAX_PART_BYTES:
                batch.irregular.add(key)
        if batch.irregular or (self._is_global and keys):
            self._with_histories(batch, events, contents)
        return batch

    def _with_histories(self, batch: _Batch, events: Sequence[Event], contents: Contents) -> None:
        """Replaces irregular keys by the result of their history.

        For a TRUNCATE, these are all keys, also those without events.
        """
        irregular = batch.irregular
        if b"" in irregular or self._is_global:
            of_keys, batch.keys, batch.deletes = events, {}, {}
        else:
            of_keys = [event for event in events if event[2] in irregular]
            for key in irregular:
                del batch.keys[key]
                batch.deletes.pop(key, None)
        for touched in self._touched.find(of_keys, contents, OWN_LSN):
            width = len(touched.group)
            batch.keys[touched.key] = {name[width:]: t[-1][1] for name, t in touched.changed.items()}

    def _add(
        self, key: bytes, batch: _Batch, contents: Contents, outcome: Outcome, call: "_LatestCall"
    ) -> None:
        """Adds a key's rows to the call if some of them have changed."""
        new_rows = batch.keys[key]
        deletes = batch.deletes.get(key)
        group = part(key)
        entries = contents.group(group, LARGE_KEY_ENTRIES)
        if len(entries) == LARGE_KEY_ENTRIES:
            if deletes is None and self._are_stored(group, new_rows, contents):
                return
            entries = contents.group(group)
        changed = len(outcome.changes)
        is_withheld = self._withheld is not None and (self._withheld.entry(key), b"") in entries
        kept, last = self._merged(entries, len(group), new_rows, outcome)
        for tail, lsn in deletes.items() if deletes else ():
            if tail in new_rows:
                self._touched.check_delete(key, tail[0] - 1, lsn)
        for tail, new in new_rows.items():
            if new is not None:
                outcome.change(group + tail, None, new)
                kept.append((tail[0], new))
        if len(outcome.changes) == changed and not (self._is_global and last is None and not is_withheld):
            return
        if is_withheld:
            call.withheld.add(len(call.last))
        call.add(key, (group + self._document_tag, last), kept)

    def _merged(
        self, entries: Sequence[Entry], width: int, new_rows: NewRows, outcome: Outcome
    ) -> tuple[list[tuple[int, bytes]], bytes | None]:
        """Returns the stored rows as they are now, with their tags, and the last document's entry.

        The rows that stay in `new_rows` are not stored.
        """
        last = None
        kept: list[tuple[int, bytes]] = []
        inputs = range(1, len(self._tags) + 1)
        for name, row in entries:
            tail = name[width:]
            if tail in new_rows:
                new = new_rows.pop(tail)
                outcome.change(name, row, new)
                if new is not None:
                    kept.append((tail[0], new))
            elif tail == self._document_tag:
                last = row
            elif tail[0] in inputs:
                kept.append((tail[0], row))
        return kept, last

    def _are_stored(self, group: bytes, new_rows: NewRows, contents: Contents) -> bool:
        stored = contents.get_many(group + tail for tail in new_rows)
        return all(stored.get(group + tail) == row for tail, row in new_rows.items())

    def _conclude(
        self, call: "_LatestCall", outcome: Outcome, lsn: int, newest: Callable[[bytes], int]
    ) -> None:
        """Evaluates the call, and emits the documents that differ from the last ones."""
        keys = call.call.keys
        if not keys:
            return
        rows = call.call.versions(self._touched.codecs)
        failures: Failures | None = None if self._withheld is None else {}
        results = self._evaluator.latest(rows, keys, lambda number: newest(keys[number]), failures)
        if self._withheld is not None and failures is not None:
            status = KeyStatus(self._withheld, outcome)
            for number in call.withheld:
                status.begin(keys[number])
            for number in sorted(call.withheld | failures.keys()):
                status.note(keys[number], lsn, failures.get(number))
            status.keep()
        found = {group: (key.encode(), document) for group, key, document in results}
        documents = outcome.view(self._view)
        for number, (name, last) in enumerate(call.last):
            current = found.get(number)
            value = None if current is None else digest(current[1]) + current[0]
            if value == last:
                continue
            outcome.change(name, last, value)
            at = newest(keys[number]) if lsn == OWN_LSN else lsn
            if current is not None:
                documents.append((at, *current))
            elif last is not None:
                documents.append((at, last[HASH_BYTES:], None))


@dataclass(slots=True)
class _LatestCall:
    """A call without points, with the last documents of its keys."""

    call: Call
    last: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Names and values of the entries of the keys' last documents."""
    size: int = 0
    withheld: set[int] = field(default_factory=set)
    """The numbers of the keys that were withheld before the batch."""

    def add(self, key: bytes, last: tuple[bytes, bytes | None], rows: list[tuple[int, bytes]]) -> None:
        """Adds a key with its rows, by tag."""
        number = self.call.add(key)
        self.last.append(last)
        self.size += len(rows)
        for tag, row in rows:
            columns = self.call.rows[tag - 1]
            columns.keys.append(number)
            columns.rows.append(row)
