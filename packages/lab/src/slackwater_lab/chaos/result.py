"""The result of a chaos run: what happened, what was found wrong, and the table of both.

The table: fault x times x changes x lost x repeated x torn. Runs that are kept are in ``chaos.jsonl``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from slackwater.outputs.contract import SinkKind
from slackwater.protocol import Clock
from slackwater_certify import Certificate
from slackwater_lab.chaos.consumers import GROUPS, GroupFindings
from slackwater_lab.chaos.faults import FAULTS
from slackwater_lab.chaos.schedule import ScheduledFault
from slackwater_lab.errors import RunFailedError
from slackwater_lab.results import RESULTS, Result, append, new_result, read_results

_SCENARIO = "chaos"
_VERSION = 1
_HEADINGS = ("fault", "times", "changes", "lost", "repeated", "torn", "visible again after")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One fault that happened."""

    planned: ScheduledFault
    began: float
    """Seconds of the monotonic clock, as all times here."""
    ended: float
    recovered: float
    """When a commit made after its end was visible."""
    began_ms: int
    """Wall clock."""
    recovered_ms: int
    changes: int
    """Row changes committed between its begin and its recovery."""

    @property
    def recovery_seconds(self) -> float:
        return self.recovered - self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One kind of fault over all its occurrences."""

    fault: str
    times: int
    changes: int
    """Row changes committed from its begin to its recovery; those of overlapping faults count for each."""
    lost: int | None
    """None: something was lost in the run, the certifier cannot say when."""
    repeated: int | None
    """As ``lost``."""
    torn: int
    """Wrong documents: of no committed state, or of another one than they claim."""
    recovery_seconds: float
    """Median, from the end of the fault to a later commit being visible."""
    longest_recovery_seconds: float


RunTotals = Counter[str]
"""The whole run: documents and deletes that were judged (``outputs``), ``changes`` in the topics, repeats and
the snapshot included, what was ``lost``, ``repeated`` and ``torn``, and ``findings`` of every kind."""


def totals(certificate: Certificate) -> RunTotals:
    """Sums up what the certifier found."""
    return Counter(
        outputs=certificate.outputs,
        changes=certificate.events,
        lost=certificate.lost,
        repeated=certificate.repeated,
        torn=certificate.torn + certificate.wrong_lsn,
        findings=certificate.findings,
    )


def rows(occurrences: Iterable[Occurrence], certificate: Certificate) -> list[FaultRow]:
    """Makes a row for each kind of fault, in the order of the table of faults.

    Wrong documents are put down to every fault during which they were published; the column can thus add up
    to more, or less, than were found. Of what was lost or repeated only the sum is known.
    """
    found = list(occurrences)
    once = [[_row(each, certificate) for each in found]]
    return [replace(row, torn=_wrong_during(row.fault, found, certificate)) for row in merged(once)]


def _row(occurrence: Occurrence, certificate: Certificate) -> FaultRow:
    return FaultRow(
        fault=occurrence.planned.fault,
        times=1,
        changes=occurrence.changes,
        lost=None if certificate.lost else 0,
        repeated=None if certificate.repeated else 0,
        torn=0,
        recovery_seconds=occurrence.recovery_seconds,
        longest_recovery_seconds=occurrence.recovery_seconds,
    )


def _wrong_during(fault: str, occurrences: Iterable[Occurrence], certificate: Certificate) -> int:
    """Wrong outputs that were published during the occurrences of a fault."""
    spans = [(each.began_ms, each.recovered_ms) for each in occurrences if each.planned.fault == fault]
    starts = [bucket.start_ms for bucket in certificate.timeline]
    width = starts[1] - starts[0] if len(starts) > 1 else 0
    return sum(
        bucket.wrong
        for bucket in certificate.timeline
        if any(begin <= bucket.start_ms + width and bucket.start_ms <= end for begin, end in spans)
    )


def markdown(table: Iterable[FaultRow], whole: RunTotals) -> str:
    """Writes a line per fault, and one for the whole run, for the README."""
    lines = [_line(_HEADINGS), "|---|---:|---:|---:|---:|---:|---:|"]
    listed = list(table)
    for row in listed:
        recovery = f"{row.recovery_seconds:.1f} s"
        if row.times > 1:
            recovery += f" (at most {row.longest_recovery_seconds:.1f} s)"
        unknown = ["?" if number is None else str(number) for number in (row.lost, row.repeated)]
        cells = (str(row.times), f"{row.changes:,}", *unknown, str(row.torn))
        lines.append(_line((row.fault, *cells, recovery)))
    found = [whole[name] for name in ("changes", "lost", "repeated", "torn")]
    numbers = (sum(row.times for row in listed), *found)
    lines.append(_line(("**the whole run**", *(f"**{number:,}**" for number in numbers), "")))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_details(table: Iterable[FaultRow], whole: RunTotals) -> dict[str, object]:
    """Makes the details of a result for the results file."""
    return {"table": [asdict(row) for row in table], "whole": dict(whole)}


def from_details(details: Mapping[str, Any]) -> tuple[list[FaultRow], RunTotals]:
    """Reads what :func:`to_details` wrote."""
    return [FaultRow(**row) for row in details["table"]], Counter(details["whole"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosResult:
    """The findings of a run."""

    occurrences: tuple[Occurrence, ...]
    missed: tuple[tuple[ScheduledFault, str], ...]
    certificate: Certificate
    deaths: Counter[str]
    """How often the supervisor had to start a part."""
    last_words: tuple[tuple[str, str], ...] = field(repr=False)
    """Program and how its log ended, at each of its deaths."""
    seconds: float
    consumed: tuple[GroupFindings, ...] = ()
    """By consumer group; empty: nobody has read."""

    @property
    def is_clean(self) -> bool:
        """Says that neither the output nor what consumers were given has a fault."""
        groups = all(
            each.is_clean(allows_repeats=not GROUPS[each.group].is_exactly_once) for each in self.consumed
        )
        return self.certificate.is_clean and groups

    @property
    def table(self) -> list[FaultRow]:
        return rows(self.occurrences, self.certificate)

    @property
    def text(self) -> str:
        """The table as Markdown, what was found wrong, and what did not happen."""
        lines = [markdown(self.table, totals(self.certificate))]
        for kind, examples in self.certificate.examples.items():
            lines += [f"{kind}:", *(f"  {example[:400]}" for example in examples)]
        lines += [each.text for each in self.consumed]
        lines += [f"missed: {planned.fault}: {reason}" for planned, reason in self.missed]
        verdict = "nothing" if self.certificate.is_clean else f"{self.certificate.findings} findings"
        lines.append(
            f"{self.certificate.outputs:,} documents of {self.certificate.transactions:,} transactions "
            f"judged: {verdict} wrong; {sum(self.deaths.values())} restarts in {self.seconds:.0f} s"
        )
        return "\n".join(lines)


def keep(
    found: ChaosResult, *, seed: int, kind: str, output: SinkKind, clock: Clock, folder: Path = RESULTS
) -> None:
    """Appends the run to ``chaos.jsonl``."""
    certificate = found.certificate
    result = new_result(
        _SCENARIO,
        _VERSION,
        parameters={"kind": kind, "seed": seed, "output": output.value},
        value=float(certificate.findings),
        unit="violations",
        details={
            "seconds": round(found.seconds),
            "faults": len(found.occurrences),
            "transactions": certificate.transactions,
            "restarts": dict(found.deaths),
            **({"consumed": [asdict(each) for each in found.consumed]} if found.consumed else {}),
            **to_details(found.table, totals(certificate)),
        },
        clock=clock,
    )
    append(result, folder)


def newest_tables(folder: Path = RESULTS) -> str:
    """The newest runs of each output in the results, as Markdown: a line of what they were, and a table.

    Of outputs in Kafka that is one run, of the others, and of runs with consumers, all runs of one code.

    Raises:
        RunFailedError: no run was kept yet.
    """
    runs = read_results(_SCENARIO, folder)
    if not runs:
        reason = "has no run; `python -m slackwater_lab chaos` makes one"
        raise RunFailedError(str(folder / f"{_SCENARIO}.jsonl"), reason)
    by_output: dict[str, list[Result]] = {str(kind): [] for kind in SinkKind}
    for run in runs:
        output = str(run.parameters.get("output", SinkKind.KAFKA))
        with_consumers = " with consumers" if "consumed" in run.details else ""
        by_output.setdefault(f"{output}{with_consumers}", []).append(run)
    texts = []
    for output, found in by_output.items():
        if found:
            same = [run for run in found if run.commit == found[-1].commit]
            texts.append(_runs_text(output, found[-1:] if output == SinkKind.KAFKA else same))
    return "\n\n".join(texts)


def _runs_text(kind: str, runs: Sequence[Result]) -> str:
    """Says what runs of one output were and found, all together."""
    read = [from_details(run.details) for run in runs]
    whole = sum((of_run for _, of_run in read), RunTotals())
    faults, seconds, transactions = (
        sum(run.details[name] for run in runs) for name in ("faults", "seconds", "transactions")
    )
    seeds = ", ".join(str(run.parameters["seed"]) for run in runs)
    what = (
        f"{kind}: {runs[-1].parameters['kind']}, seed {seeds}, {runs[-1].at[:10]}: {faults} faults in "
        f"{seconds:,} s, {transactions:,} transactions, {whole['outputs']:,} published documents and deletes "
        f"judged, {whole['findings']} findings."
    )
    return f"{what}\n\n{markdown(merged([table for table, _ in read]), whole)}"


def merged(tables: Sequence[Sequence[FaultRow]]) -> list[FaultRow]:
    """Makes one table of those of several runs; the median is that of the runs' medians."""
    by_fault: dict[str, list[FaultRow]] = {}
    for row in (row for table in tables for row in table):
        by_fault.setdefault(row.fault, []).append(row)
    return [_merged_row(by_fault[name]) for name in FAULTS if name in by_fault]


def _merged_row(found: Sequence[FaultRow]) -> FaultRow:
    recoveries = [row.recovery_seconds for row in found for _ in range(row.times)]
    return FaultRow(
        fault=found[0].fault,
        times=sum(row.times for row in found),
        changes=sum(row.changes for row in found),
        lost=None if any(row.lost is None for row in found) else 0,
        repeated=None if any(row.repeated is None for row in found) else 0,
        torn=sum(row.torn for row in found),
        recovery_seconds=round(median(recoveries), 1),
        longest_recovery_seconds=round(max(row.longest_recovery_seconds for row in found), 1),
    )
