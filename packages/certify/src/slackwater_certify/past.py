"""The committed past of a source: from its topics to the committed states of every document."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from slackwater_certify.connections import Connections
from slackwater_certify.fold import Fold
from slackwater_certify.history import History
from slackwater_certify.kafka import existing, place_of, read_topics
from slackwater_certify.specification import Specification
from slackwater_certify.versions import Versions, WaveTables, row_keys
from slackwater_certify.view import View

REPORT_EVERY = 200_000


@dataclass(frozen=True, slots=True)
class Past:
    """What was committed. A context manager."""

    versions: Versions
    tables: WaveTables
    transactions: Sequence[tuple[int, int]]
    """LSN and commit time of those with changes, in commit order."""
    events: int
    notes: Sequence[str]

    def __enter__(self) -> "Past":
        return self

    def __exit__(self, *_: object) -> None:
        self.tables.__exit__(None, None, None)


def read_past(
    specification: Specification, view: View, connections: Connections, on_progress: Callable[[str], None]
) -> Past:
    """Reads the source's topics and evaluates the view on every committed state.

    Raises:
        CertifyError: a topic cannot be read, or the view cannot be evaluated.
    """
    with without_cyclic_gc():
        history, notes = _read_history(specification, view, connections, on_progress)
        return past_of(history, specification, view, on_progress, notes)


def past_of(
    history: History,
    specification: Specification,
    view: View,
    on_progress: Callable[[str], None],
    notes: Sequence[str] = (),
) -> Past:
    """The same from a history that was read before, and that this uses up.

    Raises:
        ViewError: the view cannot be evaluated.
    """
    fold = Fold(view.tables, row_keys(specification, view))
    if not specification.view.rows:
        fold.add_document(())
    fold.start(history.snapshot())
    transactions: list[tuple[int, int]] = []
    short = 0
    for transaction in history.transactions(is_last_use=True):
        fold.commit(transaction)
        transactions.append((transaction.commit_lsn, transaction.commit_ts_ms))
        short += len(transaction.changes) < transaction.announced
    fold.finish()
    on_progress(f"{len(transactions):,} transactions changed {len(fold.lsns):,} documents")
    tables = WaveTables(view, fold.intervals)
    for rows in fold.intervals.values():
        rows.columns.clear()
    versions = Versions(view, fold, is_whole=not specification.view.rows)
    versions.evaluate(tables, on_progress)
    return Past(versions, tables, transactions, history.events, [*notes, *_notes(history, short)])


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
    specification: Specification, view: View, connections: Connections, on_progress: Callable[[str], None]
) -> tuple[History, list[str]]:
    bootstrap = connections.brokers("to read the change topics; or judge by invariants alone")
    source, history = specification.source, History(view.tables)
    wanted = sorted({source.topic(table) for table in view.tables})
    topics = existing(bootstrap, wanted, connections.kafka)
    # The transaction topic first: END records that come while the rows are read would name rows not read.
    for message in read_topics(bootstrap, [source.transactions], connections.kafka):
        value = message.value()
        if value is not None:
            history.add_transaction_record(value, place_of(message))
    for message in read_topics(bootstrap, topics, connections.kafka) if topics else ():
        value = message.value()
        if value is not None:
            history.add_row(value, place_of(message))
            if history.events % REPORT_EVERY == 0:
                on_progress(f"reading the change topics, {history.events:,} change events")
    missing = sorted(set(wanted) - set(topics))
    return history, [f"topic {topic} does not exist: taken as empty" for topic in missing]


def _notes(history: History, short: int) -> Iterator[str]:
    unfinished = history.unfinished()
    if unfinished:
        yield f"{len(unfinished):,} transactions have changes but no END: taken as not committed"
    if short:
        yield f"{short:,} transactions have fewer changes in the topics than their END announces"
    if history.void_snapshot_rows:
        yield f"{history.void_snapshot_rows:,} rows of interrupted or later snapshots were left out"
    for kind, count in history.ignored.items():
        yield f"{count:,} {kind} were left out"
