"""Works out the committed states of every document of a view from the source's topics."""

import gc
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from slackwater_certify.canonical import Document, digest
from slackwater_certify.errors import CertifyConfigError
from slackwater_certify.evaluation import VersionedTables
from slackwater_certify.history import History, Skip
from slackwater_certify.kafka import existing, place_of, read_topics
from slackwater_certify.replay import DocumentKey, Replay, row_keys
from slackwater_certify.specification import Connections, Specification
from slackwater_certify.view import View

REPORT_EVERY = 200_000

Progress = Callable[[str], None]


@dataclass(slots=True)
class DocumentVersions:
    """Holds the committed states of one document, without consecutive equal ones."""

    lsns: "array[int]" = field(default_factory=lambda: array("q"))
    """Commit LSN from which on each holds; the first is 0, before the first transaction."""
    times: "array[int]" = field(default_factory=lambda: array("q"))
    """Its commit time, milliseconds since the epoch."""
    digests: list[bytes | None] = field(default_factory=list)
    """None: there is no such document."""

    def add(self, lsn: int, time_ms: int, value: bytes | None) -> None:
        """Adds a later version."""
        if not self.digests or self.digests[-1] != value:
            self.lsns.append(lsn)
            self.times.append(time_ms)
            self.digests.append(value)

    def at(self, lsn: int) -> int:
        """Finds the version that holds at an LSN."""
        return bisect_right(self.lsns, lsn) - 1

    @property
    def final(self) -> bytes | None:
        """Returns the last one."""
        return self.digests[-1]


class CommittedStates:
    """Holds the committed states of all documents of a view. A context manager.

    Version n of all documents is evaluated at once, so there are as many evaluations as the most often
    changed document has versions. Without ``[view.rows]`` there is one version per commit, of all documents.

    Attributes:
        by_key: The committed states of each document.
        transactions: LSN and commit time of those with changes, in commit order.
        events: How many change events were read.
        notes: What the reader of a certificate should know.
        skips: What operators have skipped, by xid.
    """

    def __init__(
        self,
        view: View,
        replay: Replay,
        *,
        is_whole: bool,
        transactions: Sequence[tuple[int, int]],
        events: int,
        notes: Sequence[str],
        skips: Mapping[int, Skip],
    ) -> None:
        self.skips = skips
        self.by_key: dict[DocumentKey, DocumentVersions] = {}
        self.transactions = transactions
        self.events = events
        self.notes = notes
        self._view = view
        self._replay = replay
        self._is_whole = is_whole
        self._tables = VersionedTables(view, replay.intervals)
        for rows in replay.intervals.values():
            rows.columns.clear()

    def __enter__(self) -> "CommittedStates":
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def evaluate(self, on_progress: Progress) -> None:
        """Finds the committed states of all documents."""
        self._tables.restrict(None)
        count = max((len(lsns) for lsns in self._replay.lsns), default=0)
        ids = self._ids()
        shown: dict[DocumentKey, bytes] = {}
        for version in range(count):
            found = self._digests(version)
            if self._is_whole:
                self._add_whole(version, found, shown)
                shown = found
            else:
                ids = [(key, number) for key, number in ids if len(self._replay.lsns[number]) > version]
                self._add_version(version, found, ids)
            if version & (version - 1) == 0 or version % 100 == 0:
                on_progress(
                    f"evaluating the committed states, {version + 1:,} of at most {count:,} per document"
                )

    def values(self, keys: Collection[DocumentKey]) -> Iterator[tuple[DocumentKey, Document]]:
        """Yields the committed states of some documents in full, each with its key; repeats are possible."""
        replay = self._replay
        ids = (
            None if self._is_whole else [i for key in keys if (i := replay.document_ids.get(key)) is not None]
        )
        self._tables.restrict(ids)
        numbers: Iterable[int] = range(len(replay.lsns)) if ids is None else ids
        for version in range(max((len(replay.lsns[number]) for number in numbers), default=0)):
            for document in self._tables.documents(version):
                key = self._view.reader.key_of(document)
                if key in keys:
                    yield key, document

    def _digests(self, version: int) -> dict[DocumentKey, bytes]:
        found: dict[DocumentKey, bytes] = {}
        count = 0
        for document in self._tables.documents(version):
            found[self._view.reader.key_of(document)] = digest(document)
            count += 1
        if len(found) != count:
            shared = count - len(found)
            raise CertifyConfigError(
                f"the view: {shared} documents of one state share a key", "check view.key"
            )
        return found

    def _ids(self) -> list[tuple[DocumentKey, int]]:
        if self._is_whole:
            return []
        self.by_key = {key: DocumentVersions() for key in self._replay.document_ids}
        return list(self._replay.document_ids.items())

    def _add_version(
        self, version: int, found: dict[DocumentKey, bytes], ids: list[tuple[DocumentKey, int]]
    ) -> None:
        lsns, times, by_key = self._replay.lsns, self._replay.times, self.by_key
        for key, number in ids:
            by_key[key].add(lsns[number][version], times[number][version], found.pop(key, None))
        if found:
            problem = f"the view: a document has key {next(iter(found))}, but none of its rows has"
            raise CertifyConfigError(problem, "check [view.rows]")

    def _add_whole(
        self, version: int, found: dict[DocumentKey, bytes], before: dict[DocumentKey, bytes]
    ) -> None:
        lsn, time_ms = self._replay.lsns[0][version], self._replay.times[0][version]
        for key, value in found.items():
            if before.get(key) != value:
                self._versions(key, version).add(lsn, time_ms, value)
        for key in before.keys() - found.keys():
            self.by_key[key].add(lsn, time_ms, None)

    def _versions(self, key: DocumentKey, version: int) -> DocumentVersions:
        versions = self.by_key.get(key)
        if versions is None:
            versions = self.by_key[key] = DocumentVersions()
            if version:
                versions.add(0, 0, None)
        return versions


def read_committed_states(
    specification: Specification, view: View, connections: Connections, on_progress: Progress
) -> CommittedStates:
    """Reads the source's topics and evaluates the view on every committed state.

    Raises:
        CertifyError: a topic cannot be read, or the view cannot be evaluated.
    """
    with without_cyclic_gc():
        history, notes = _read_history(specification, view, connections, on_progress)
        return evaluate_committed_states(history, specification, view, on_progress, notes)


def evaluate_committed_states(
    history: History,
    specification: Specification,
    view: View,
    on_progress: Progress,
    notes: Sequence[str] = (),
) -> CommittedStates:
    """Evaluates the view on a history that was read before, and that this uses up.

    Raises:
        CertifyConfigError: the view cannot be evaluated.
    """
    replay = Replay(view.tables, row_keys(specification, view))
    if not specification.view.rows:
        replay.add_document(())
    replay.start(history.snapshot())
    transactions: list[tuple[int, int]] = []
    short = 0
    for transaction in history.transactions(is_last_use=True):
        replay.commit(transaction)
        transactions.append((transaction.commit_lsn, transaction.commit_ts_ms))
        short += len(transaction.changes) < transaction.announced
    replay.finish()
    on_progress(f"{len(transactions):,} transactions changed {len(replay.lsns):,} documents")
    committed = CommittedStates(
        view,
        replay,
        is_whole=not specification.view.rows,
        transactions=transactions,
        events=history.events,
        notes=[*notes, *_notes(history, short)],
        skips=history.skips,
    )
    committed.evaluate(on_progress)
    return committed


@contextmanager
def without_cyclic_gc() -> Iterator[None]:
    """Millions of small objects without cycles: the collector would only walk through them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_history(
    specification: Specification, view: View, connections: Connections, on_progress: Progress
) -> tuple[History, list[str]]:
    brokers = connections.brokers("to read the change topics; or judge by invariants alone")
    source, history = specification.source, History(view.tables)
    wanted = sorted({source.topic(table) for table in view.tables})
    topics = existing(brokers, wanted)
    for message in read_topics(brokers, cuts) if (cuts := existing(brokers, [source.cuts])) else ():
        history.add_cut(message.value() or b"")
    # The transaction topic first: END records that come while the rows are read would name rows not read.
    for message in read_topics(brokers, [source.transactions]):
        value = message.value()
        if value is not None:
            history.add_transaction_record(value, place_of(message))
    for message in read_topics(brokers, topics) if topics else ():
        value = message.value()
        if value is not None:
            history.add_row(value, place_of(message))
            if history.events % REPORT_EVERY == 0:
                on_progress(f"reading the change topics, {history.events:,} change events")
    missing = sorted(set(wanted) - set(topics))
    return history, [f"topic {topic} does not exist: treated as empty" for topic in missing]


def _notes(history: History, short: int) -> Iterator[str]:
    unfinished = history.unfinished()
    if unfinished:
        yield f"{len(unfinished):,} transactions have changes but no END: treated as not committed"
    if history.skips:
        yield f"{len(history.skips):,} transactions were skipped by an operator"
    if short:
        yield f"{short:,} transactions have fewer changes in the topics than their END announces"
    if history.void_snapshot_rows:
        yield f"{history.void_snapshot_rows:,} rows of interrupted or later snapshots were left out"
    for kind, count in history.ignored.items():
        yield f"{count:,} {kind} were left out"
