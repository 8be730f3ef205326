"""Writes a certificate as people read it."""

from collections.abc import Iterator, Sequence

from slackwater_certify.certificate import Certificate, Mode

_BARS = " ▁▂▃▄▅▆▇█"


def report(certificate: Certificate) -> str:
    """Returns the verdict, the counts, a chart over time and examples, as lines of text."""
    return "\n".join(_lines(certificate)) + "\n"


def _lines(certificate: Certificate) -> Iterator[str]:
    rows = [*_what(certificate), *_counts(certificate), *_delay(certificate)]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name:<{width}}  {text}".rstrip()
    yield f"{'verdict':<{width}}  {_verdict(certificate)}"
    yield from _chart(certificate)
    for kind, texts in certificate.examples.items():
        yield ""
        yield f"{kind}, for example:"
        for text in texts:
            yield f"  {text[:400]}"
    for note in certificate.notes:
        yield f"note: {note}"


def _what(certificate: Certificate) -> Iterator[tuple[str, str]]:
    yield "output", certificate.output
    if certificate.mode is not Mode.INVARIANT:
        changes = f"{certificate.events:,} change events in {certificate.transactions:,} transactions"
        yield "judged against", f"every committed state of {changes}"
    if certificate.mode is not Mode.ORACLE:
        yield "judged by", "the invariants of certify.toml"
    seen = f"{certificate.outputs:,}, {certificate.deletes:,} of them deletes"
    if certificate.snapshots:
        seen += f", in {certificate.snapshots:,} snapshots"
    if certificate.commits:
        seen += f", in {certificate.commits:,} commits"
    yield "outputs seen", seen


def _counts(certificate: Certificate) -> Iterator[tuple[str, str]]:
    if certificate.mode is not Mode.INVARIANT:
        share = 100 * certificate.torn / certificate.outputs if certificate.outputs else 0
        yield "torn", f"{certificate.torn:,} match no committed state ({share:.1f} %)"
        yield "wrong LSN", f"{certificate.wrong_lsn:,} match another commit than they claim"
        yield "largest error", f"{certificate.largest_error:,.10g}"
        yield "longest wrong", f"{certificate.longest_wrong_seconds:,.1f} s"
        yield "order violations", f"{certificate.order_violations:,}"
        yield "lost", f"{certificate.lost:,}"
        yield "repeated", f"{certificate.repeated:,}"
        if certificate.commits:
            yield "outside commits", f"{certificate.uncovered:,}"
    elif certificate.torn:
        yield "unreadable", f"{certificate.torn:,}"
    if certificate.snapshots:
        yield "whole snapshots", f"{certificate.inconsistent_states:,} are at no single commit"
    if certificate.mode is not Mode.ORACLE:
        yield "invariants", f"{certificate.invariant_violations:,} violations"
        if certificate.mode is Mode.INVARIANT:
            yield "largest error", f"{certificate.largest_error:,.10g}"
    yield "final state", f"{certificate.final_differences:,} of {certificate.documents:,} documents differ"
    if certificate.history_differences:
        yield "topics", f"{certificate.history_differences:,} documents differ between topics and database"


def _delay(certificate: Certificate) -> Iterator[tuple[str, str]]:
    delays = certificate.delay_ms
    if delays is not None:
        values = f"p50 {delays.p50:,} ms, p90 {delays.p90:,} ms, p99 {delays.p99:,} ms, max {delays.max:,} ms"
        yield "commit to visible", f"{values} (by {certificate.clock})"


def _verdict(certificate: Certificate) -> str:
    if certificate.outputs == 0:
        return "NOTHING WAS JUDGED: the output is empty"
    return "clean" if certificate.is_clean else f"VIOLATED: {certificate.findings:,} findings"


def _chart(certificate: Certificate) -> Iterator[str]:
    timeline = certificate.timeline
    if len(timeline) < 2:
        return
    width_ms = timeline[1].start_ms - timeline[0].start_ms
    yield ""
    yield f"over {len(timeline) * width_ms / 1000:,.1f} s, {width_ms:,} ms a column, largest at the right"
    series: list[tuple[str, Sequence[int], str]] = [
        ("outputs", [bucket.outputs for bucket in timeline], ""),
        ("wrong", [bucket.wrong for bucket in timeline], ""),
        ("delay p50", [bucket.delay_p50_ms or 0 for bucket in timeline], " ms"),
    ]
    for name, values, unit in series:
        yield f"  {name:<10}│{_bars(values)}│ {max(values):,}{unit}"


def _bars(values: Sequence[int]) -> str:
    top = max(*values, 1)
    return "".join(_BARS[-(-max(0, value) * (len(_BARS) - 1) // top)] for value in values)
