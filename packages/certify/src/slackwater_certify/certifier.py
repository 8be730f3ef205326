"""Judges an output: reads it and the committed states, and compares them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from decimal import Decimal

from slackwater_certify.canonical import DocumentKey, DocumentReader, distance
from slackwater_certify.certificate import Certificate, Delays, Kind, Mode
from slackwater_certify.committed_states import (
    CommittedStates,
    Progress,
    read_committed_states,
    read_database,
    without_cyclic_gc,
)
from slackwater_certify.invariant import InvariantJudge
from slackwater_certify.kafka import follow_topic, read_topic
from slackwater_certify.oracle import judge_by_states
from slackwater_certify.output import Observations, OutputRecords
from slackwater_certify.snapshots import read_lake_table, watch_table
from slackwater_certify.specification import Connections, OutputKind, OutputSpecification, Specification
from slackwater_certify.view import View, load_view, row_keys

MAX_DISTANCES = 1_000_000
"""The most comparisons that are made to find the largest error."""


def wall_clock_ms() -> int:
    """Returns milliseconds since the epoch, for outputs that have no times of their own."""
    return int(datetime.now(UTC).timestamp() * 1000)  # noqa: TID251 - the judge shares no code, so no Clock


def certify(
    specification: Specification,
    connections: Connections,
    *,
    mode: Mode = Mode.ORACLE,
    records: OutputRecords | None = None,
    delays_since_ms: int | None = None,
    on_progress: Progress = lambda _: None,
) -> Certificate:
    """Judges an output. It only reads, and reads only what is there at the start.

    Nothing should be written in the meantime to what is judged, and the output should have caught up: changes
    that have not reached it count as lost.

    Args:
        specification: What to judge, and by what.
        connections: Where the servers are; the final state is compared with the database if ``dsn`` is given.
        mode: By committed states, by invariants, or both.
        records: The output, if it has already been read (see :func:`watch_output`).
        delays_since_ms: Leave out delays of transactions committed before; milliseconds since the epoch.
        on_progress: Receives descriptions of the progress.

    Raises:
        CertifyError: something cannot be read or used.
    """
    view = load_view(specification)
    with ExitStack() as stack, without_cyclic_gc():
        if records is None:
            on_progress("reading the output")
            records = read_output(specification.output, view.reader, connections, wall_clock_ms)
        committed = None
        if mode is not Mode.INVARIANT:
            committed = stack.enter_context(
                read_committed_states(specification, view, connections, on_progress)
            )
        database = None
        if connections.dsn is not None:
            on_progress("reading the database")
            database = read_database(view, connections.dsn, row_keys(specification, view))
        since_ms = records.timed_since_ms if delays_since_ms is None else delays_since_ms
        on_progress("judging the output")
        return judge(
            specification, view, records, committed, mode=mode, database=database, delays_since_ms=since_ms
        )


def read_records(specification: Specification, connections: Connections) -> OutputRecords:
    """Reads the present content of the output, for :func:`certify`; the caller may correct the times.

    Raises:
        CertifyError: it cannot be read.
    """
    view = load_view(specification)
    return read_output(specification.output, view.reader, connections, wall_clock_ms)


def watch_output(
    specification: Specification,
    connections: Connections,
    is_over: Callable[[], bool],
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> OutputRecords:
    """Reads an output while it is being written, and notes when each record became visible here.

    Blocks until ``is_over`` returns true; pass the result to :func:`certify`. Tables are read repeatedly, so
    that every snapshot is judged.

    Raises:
        CertifyError: it cannot be read.
    """
    view = load_view(specification)
    return read_output(specification.output, view.reader, connections, now_ms, is_over)


def read_output(
    output: OutputSpecification,
    reader: DocumentReader,
    connections: Connections,
    now_ms: Callable[[], int],
    is_over: Callable[[], bool] | None = None,
) -> OutputRecords:
    """Reads an output with the adapter for its kind; libraries for lake tables are imported only for them.

    Lake tables record their own times; for other outputs ``now_ms`` is the clock. With ``is_over``,
    everything that becomes visible until it returns true is read; without it, the present content.

    Raises:
        CertifyError: it cannot be read.
    """
    match output.kind:
        case OutputKind.TOPIC:
            if is_over is None:
                return read_topic(output, connections)
            return follow_topic(output, connections, is_over, now_ms)
        case OutputKind.POSTGRES:
            return watch_table(output, reader, connections, is_over or (lambda: True), now_ms)
        case _:
            return read_lake_table(output, reader)


def judge(
    specification: Specification,
    view: View,
    records: OutputRecords,
    committed: CommittedStates | None,
    *,
    mode: Mode = Mode.ORACLE,
    database: Mapping[DocumentKey, bytes] | None = None,
    delays_since_ms: int | None = None,
) -> Certificate:
    """Judges what was read before; performs no input or output.

    ``mode`` appears in the certificate and decides whether invariants are checked; without ``committed``,
    only invariants are. ``database`` contains digests of the view's documents in the database.
    """
    observed, outputs = Observations(), iter(records.outputs)
    with closing(InvariantJudge(specification, view.reader, observed.findings)) as invariants:
        if mode is not Mode.ORACLE:
            outputs = invariants.judge(outputs)
        reads = observed.read(outputs, view.reader)
        if committed is None:
            for read in reads:
                if read.problem is None:
                    observed.record_right(read)
        else:
            judge_by_states(reads, records, committed, observed, delays_since_ms)
        invariants.judge_states(records.commits, records.snapshots)
    observed.finish()
    _compare_final(committed, database, observed)
    largest, notes = _largest_error(view, committed, observed)
    if invariants.thinned:
        notes.append(
            f"state invariants: {invariants.states:,} states judged, {invariants.thinned:,} left out"
        )
    largest = max(largest, invariants.largest_error)
    return _certificate(specification, records, committed, observed, mode, largest, notes)


def _compare_final(
    committed: CommittedStates | None, database: Mapping[DocumentKey, bytes] | None, observed: Observations
) -> None:
    """Compares the last value of every document with the database or, without one, with the topics."""
    topics = None
    if committed is not None:
        finals = ((key, versions.digests[-1]) for key, versions in committed.by_key.items())
        topics = {key: value for key, value in finals if value is not None}
    if database is not None and topics is not None:
        for key in _different(topics, database):
            observed.findings.add(
                Kind.HISTORY_DIFFERENCES,
                f"document {key}: the topics and the database lead to different states",
            )
    expected, name = (topics, "the topics") if database is None else (database, "the database")
    if expected is None:
        return
    shown = {key: value for key, value in observed.shown.items() if value is not None}
    for key in _different(shown, expected):
        is_shown = "has another value" if key in expected else "should not exist"
        got = is_shown if key in shown else "is missing"
        observed.findings.add(Kind.FINAL_DIFFERENCES, f"document {key} {got}, according to {name}")


def _different(one: Mapping[DocumentKey, bytes], other: Mapping[DocumentKey, bytes]) -> Iterator[DocumentKey]:
    for key in {**one, **other}:
        if one.get(key) != other.get(key):
            yield key


def _largest_error(
    view: View, committed: CommittedStates | None, observed: Observations
) -> tuple[float, list[str]]:
    """Measures how far torn documents are from their nearest committed states."""
    if committed is None or not observed.wrong:
        return 0.0, []
    wrong: dict[DocumentKey, list[dict[str, Decimal]]] = {}
    budget, left_out = MAX_DISTANCES, observed.unmeasured
    for key, document in observed.wrong:
        versions = committed.by_key.get(key)
        budget -= len(versions.digests) if versions else 0
        if budget < 0:
            left_out += 1
        else:
            wrong.setdefault(key, []).append(view.reader.numbers(document))
    gaps: dict[DocumentKey, list[Decimal | None]] = {key: [None] * len(n) for key, n in wrong.items()}
    for key, document in committed.values(wrong.keys()):
        numbers = view.reader.numbers(document)
        for position, other in enumerate(wrong[key]):
            gap, least = distance(numbers, other), gaps[key][position]
            gaps[key][position] = gap if least is None else min(gap, least)
    found = [gap for values in gaps.values() for gap in values if gap is not None]
    notes = [f"largest error: {left_out:,} torn documents were not measured"] if left_out else []
    return float(max(found, default=Decimal(0))), notes


def _certificate(
    specification: Specification,
    records: OutputRecords,
    committed: CommittedStates | None,
    observed: Observations,
    mode: Mode,
    largest_error: float,
    notes: list[str],
) -> Certificate:
    output = specification.output
    return Certificate(
        output=f"{output.kind} {output.name}",
        mode=mode,
        clock=records.clock,
        outputs=observed.outputs,
        deletes=observed.deletes,
        withheld=committed.withheld if committed else 0,
        documents=sum(value is not None for value in observed.shown.values()),
        commits=len(records.commits),
        snapshots=len(records.snapshots or ()),
        transactions=len(committed.transactions) if committed else 0,
        events=committed.events if committed else 0,
        **{kind.counter: observed.findings.counts[kind] for kind in Kind},
        largest_error=largest_error,
        longest_wrong_seconds=observed.longest_wrong_ms / 1000,
        delay_ms=Delays.from_values(observed.delays),
        timeline=observed.timeline(),
        examples={str(kind): texts for kind, texts in observed.findings.examples.items()},
        notes=[*(committed.notes if committed else ()), *notes],
    )
