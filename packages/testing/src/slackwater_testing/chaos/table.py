"""The result: fault x times x changes x lost x repeated x torn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from slackwater_certify import Certificate
from slackwater_testing.chaos.faults import FAULTS
from slackwater_testing.chaos.run import Occurrence

HEADINGS = ("fault", "times", "changes", "lost", "repeated", "torn", "visible again after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The whole run."""

    outputs: int
    """Documents and deletes that were judged."""
    changes: int
    """Change events in the topics, repeats and the snapshot included."""
    lost: int
    repeated: int
    torn: int
    findings: int
    """Of every kind."""


def totals(certificate: Certificate) -> Totals:
    """Sums up what the certifier found."""
    return Totals(
        outputs=certificate.outputs,
        changes=certificate.events,
        lost=certificate.lost,
        repeated=certificate.repeated,
        torn=certificate.torn + certificate.wrong_lsn,
        findings=certificate.findings,
    )


def rows(occurrences: Iterable[Occurrence], certificate: Certificate) -> list[Row]:
    """Makes a row for each kind of fault, in the order of the table of faults.

    Wrong documents are put down to every fault during which they were published; the column can thus add up
    to more, or less, than were found. Of what was lost or repeated only the sum is known.
    """
    by_fault: dict[str, list[Occurrence]] = {}
    for occurrence in occurrences:
        by_fault.setdefault(occurrence.planned.fault, []).append(occurrence)
    return [_row(name, by_fault[name], certificate) for name in FAULTS if name in by_fault]


def _row(name: str, occurrences: Sequence[Occurrence], certificate: Certificate) -> Row:
    recoveries = [occurrence.recovery_seconds for occurrence in occurrences]
    return Row(
        fault=name,
        times=len(occurrences),
        changes=sum(occurrence.changes for occurrence in occurrences),
        lost=None if certificate.lost else 0,
        repeated=None if certificate.repeated else 0,
        torn=wrong_during(occurrences, certificate),
        recovery_seconds=round(median(recoveries), 1),
        longest_recovery_seconds=round(max(recoveries), 1),
    )


def wrong_during(occurrences: Iterable[Occurrence], certificate: Certificate) -> int:
    """Wrong outputs that were published during these occurrences."""
    spans = [(each.began_ms, each.recovered_ms) for each in occurrences]
    starts = [bucket.start_ms for bucket in certificate.timeline]
    width = starts[1] - starts[0] if len(starts) > 1 else 0
    return sum(
        bucket.wrong
        for bucket in certificate.timeline
        if any(begin <= bucket.start_ms + width and bucket.start_ms <= end for begin, end in spans)
    )


def markdown(table: Iterable[Row], whole: Totals) -> str:
    """Writes a line per fault, and one for the whole run, for the README."""
    lines = [_line(HEADINGS), "|---|---:|---:|---:|---:|---:|---:|"]
    listed = list(table)
    for row in listed:
        recovery = f"{row.recovery_seconds:.1f} s"
        if row.times > 1:
            recovery += f" (at most {row.longest_recovery_seconds:.1f} s)"
        unknown = ["?" if number is None else str(number) for number in (row.lost, row.repeated)]
        cells = (str(row.times), f"{row.changes:,}", *unknown, str(row.torn))
        lines.append(_line((row.fault, *cells, recovery)))
    numbers = (sum(row.times for row in listed), whole.changes, whole.lost, whole.repeated, whole.torn)
    lines.append(_line(("**the whole run**", *(f"**{number:,}**" for number in numbers), "")))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_details(table: Iterable[Row], whole: Totals) -> dict[str, object]:
    """Makes the details of a result for the results file."""
    return {"table": [asdict(row) for row in table], "whole": asdict(whole)}


def from_details(details: Mapping[str, Any]) -> tuple[list[Row], Totals]:
    """Reads what :func:`to_details` wrote."""
    return [Row(**row) for row in details["table"]], Totals(**details["whole"])
