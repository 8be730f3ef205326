"""Judges an output: reads the committed past and the output, and gives the verdict."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain

from slackwater_certify.canonical import DocumentReader, distance
from slackwater_certify.certificate import Certificate, Delays, Kind, Mode
from slackwater_certify.claims import ClaimJudge, add_commit_delays
from slackwater_certify.fold import DocumentKey
from slackwater_certify.invariant import InvariantJudge
from slackwater_certify.output import OutputRecords
from slackwater_certify.past import Past, Progress, read_past, without_cyclic_gc
from slackwater_certify.sequence import SequenceJudge, SnapshotJudge
from slackwater_certify.specification import Connections, OutputKind, OutputSpecification, Specification
from slackwater_certify.tally import ReadOutput, Tally, read_outputs
from slackwater_certify.topic import follow_topic, read_topic
from slackwater_certify.view import View, load_view

MAX_DISTANCES = 1_000_000
"""Comparisons that are made at most to find the largest error."""


def wall_clock_ms() -> int:
    """Returns milliseconds since the epoch, for outputs that have no times of their own."""
    return int(datetime.now(UTC).timestamp() * 1000)  # noqa: TID251 - the judge shares no code, so no Clock


def _silent(_text: str) -> None:
    pass


def certify(
    specification: Specification,
    connections: Connections,
    *,
    mode: Mode = Mode.ORACLE,
    records: OutputRecords | None = None,
    delays_since_ms: int | None = None,
    on_progress: Progress = _silent,
) -> Certificate:
    """Judges an output; reads only, and only what is there at the start.

    Nothing should be written meanwhile to what is judged, and the output should have caught up: what has not
    arrived in it counts as lost.

    Args:
        specification: what to judge and by what.
        connections: where the servers are; the final state is compared with the database if ``dsn`` is given.
        mode: by committed states, by invariants, or both.
        records: the output, if it was read before (see :func:`watch_output`).
        delays_since_ms: leave out delays of transactions committed before; milliseconds since the epoch.
        on_progress: is told what is being done.

    Raises:
        CertifyError: something cannot be read or used.
    """
    view = load_view(specification)
    with ExitStack() as stack, without_cyclic_gc():
        if records is None:
            on_progress("reading the output")
            records = read_output(specification.output, view.reader, connections, wall_clock_ms)
        past = None
        if mode is not Mode.INVARIANT:
            past = stack.enter_context(read_past(specification, view, connections, on_progress))
        database = None
        if connections.dsn is not None:
            from slackwater_certify.postgres import read_database

            on_progress("reading the database")
            database = read_database(view, connections.dsn)
        since_ms = records.timed_since_ms if delays_since_ms is None else delays_since_ms
        on_progress("judging the output")
        return judge(
            specification, view, records, past, mode=mode, database=database, delays_since_ms=since_ms
        )


def read_records(specification: Specification, connections: Connections) -> OutputRecords:
    """Reads what the output holds now; give the result to :func:`certify`, maybe with better times.

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
    """Reads an output while it is written, with the times at which it became visible here.

    Blocks until ``is_over`` says so; give the result to :func:`certify`. Tables are read again and again, so
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
    """Reads an output by the adapter of its kind; what an adapter needs is imported only for it.

    Args:
        output: What is read.
        reader: Reads its documents.
        connections: Where the servers are.
        now_ms: The clock of what has no times of its own; lake tables know their times themselves.
        is_over: With it, everything that becomes visible until it says so; None: what is there now.

    Raises:
        CertifyError: it cannot be read.
    """
    match output.kind:
        case OutputKind.TOPIC:
            if is_over is None:
                return read_topic(output, connections)
            return follow_topic(output, connections, is_over, now_ms)
        case OutputKind.POSTGRES:
            from slackwater_certify.postgres import watch_table

            return watch_table(output, reader, connections, is_over or (lambda: True), now_ms)
        case OutputKind.DELTA:
            from slackwater_certify.lake import read_delta

            return read_delta(output, reader)
        case OutputKind.ICEBERG:
            from slackwater_certify.lake import read_iceberg

            return read_iceberg(output, reader)


def judge(
    specification: Specification,
    view: View,
    records: OutputRecords,
    past: Past | None,
    *,
    mode: Mode = Mode.ORACLE,
    database: Mapping[DocumentKey, bytes] | None = None,
    delays_since_ms: int | None = None,
) -> Certificate:
    """Gives the verdict on what was read before; does no input or output.

    Args:
        specification: what is judged.
        view: of the specification.
        records: the output.
        past: the committed past; None: invariants alone judge.
        mode: for the certificate, and whether invariants are judged.
        database: the view's documents in the database, as digests.
        delays_since_ms: leave out delays of transactions committed before.
    """
    tally, outputs = Tally(), iter(records.outputs)
    invariants = InvariantJudge(specification, view.reader, tally.findings)
    with invariants:
        if mode is not Mode.ORACLE:
            outputs = invariants.judge(outputs)
        reads = read_outputs(outputs, view.reader, tally)
        if past is None:
            _take_as_right(reads, tally)
        else:
            _judge_by_past(reads, records, past, tally, delays_since_ms)
        invariants.judge_states(records.commits, records.snapshots)
    tally.end()
    _compare_final(past, database, tally)
    largest, notes = _largest_error(view, past, tally)
    if invariants.thinned:
        notes.append(
            f"state invariants: {invariants.states:,} states judged, {invariants.thinned:,} left out"
        )
    return _certificate(
        specification, records, past, tally, mode, max(largest, invariants.largest_error), notes
    )


def _take_as_right(outputs: Iterator[ReadOutput], tally: Tally) -> None:
    for read in outputs:
        if read.problem is None:
            tally.right(read)


def _judge_by_past(
    outputs: Iterator[ReadOutput], records: OutputRecords, past: Past, tally: Tally, since_ms: int | None
) -> None:
    has_claims = bool(records.commits)
    if not has_claims:
        outputs, has_claims = _peek_claims(outputs)
    if records.snapshots is not None:
        snapshots = SnapshotJudge(past.by_key, [lsn for lsn, _ in past.transactions])
        outputs = snapshots.judge(outputs, tally.findings)
    judging: ClaimJudge | SequenceJudge
    if has_claims:
        judging = ClaimJudge(past.by_key, tally, records.commits)
    else:
        judging = SequenceJudge(past.by_key, tally, since_ms)
    judging.judge(outputs)
    judging.finish()
    if records.commits:
        add_commit_delays(records.commits, past.transactions, tally, since_ms)


def _peek_claims(outputs: Iterator[ReadOutput]) -> tuple[Iterator[ReadOutput], bool]:
    """Whether outputs have LSNs: the first one tells."""
    first = next(outputs, None)
    if first is None:
        return iter(()), False
    return chain([first], outputs), first.output.lsn is not None


def _compare_final(past: Past | None, database: Mapping[DocumentKey, bytes] | None, tally: Tally) -> None:
    """The last value of every document against the database, or against the topics without one."""
    topics = None
    if past is not None:
        finals = ((key, versions.final) for key, versions in past.by_key.items())
        topics = {key: value for key, value in finals if value is not None}
    if database is not None and topics is not None:
        for key in _different(topics, database):
            tally.findings.add(Kind.HISTORY, f"document {key}: the topics lead to another state of it")
    expected, name = (topics, "the topics") if database is None else (database, "the database")
    if expected is None:
        return
    shown = {key: value for key, value in tally.shown.items() if value is not None}
    for key in _different(shown, expected):
        got = (
            "another value"
            if key in shown and key in expected
            else "is there"
            if key in shown
            else "is missing"
        )
        tally.findings.add(Kind.FINAL, f"document {key} {got}, by {name}")


def _different(one: Mapping[DocumentKey, bytes], other: Mapping[DocumentKey, bytes]) -> Iterator[DocumentKey]:
    for key in {**one, **other}:
        if one.get(key) != other.get(key):
            yield key


def _largest_error(view: View, past: Past | None, tally: Tally) -> tuple[float, list[str]]:
    """Measures how far torn documents are from the nearest committed state of theirs."""
    if past is None or not tally.wrong:
        return 0.0, []
    wrong: dict[DocumentKey, list[dict[str, Decimal]]] = {}
    budget, left_out = MAX_DISTANCES, tally.unmeasured
    for key, document in tally.wrong:
        versions = past.by_key.get(key)
        budget -= len(versions.digests) if versions else 0
        if budget < 0:
            left_out += 1
        else:
            wrong.setdefault(key, []).append(view.reader.numbers(document))
    gaps: dict[DocumentKey, list[Decimal | None]] = {key: [None] * len(n) for key, n in wrong.items()}
    for key, document in past.values(wrong.keys()):
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
    past: Past | None,
    tally: Tally,
    mode: Mode,
    largest_error: float,
    notes: list[str],
) -> Certificate:
    count, output = tally.findings.count, specification.output
    return Certificate(
        output=f"{output.kind} {output.name}",
        mode=mode,
        clock=records.clock,
        outputs=tally.outputs,
        deletes=tally.deletes,
        documents=sum(value is not None for value in tally.shown.values()),
        commits=len(records.commits),
        snapshots=len(records.snapshots or ()),
        transactions=len(past.transactions) if past else 0,
        events=past.events if past else 0,
        torn=count(Kind.TORN),
        wrong_lsn=count(Kind.WRONG_LSN),
        largest_error=largest_error,
        longest_wrong_seconds=tally.longest_wrong_ms / 1000,
        order_violations=count(Kind.ORDER),
        lost=count(Kind.LOST),
        repeated=count(Kind.REPEATED),
        uncovered=count(Kind.UNCOVERED),
        inconsistent_states=count(Kind.STATE),
        final_differences=count(Kind.FINAL),
        history_differences=count(Kind.HISTORY),
        invariant_violations=count(Kind.INVARIANT),
        delay_ms=Delays.of(tally.delays),
        timeline=tally.timeline(),
        examples={str(kind): texts for kind, texts in tally.findings.examples.items()},
        notes=[*(past.notes if past else ()), *notes],
    )
