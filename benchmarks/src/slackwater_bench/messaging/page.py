"""The comparison in docs/messaging.md. Pure; the same results give the same text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from slackwater_bench.messaging.crashes import RECEIVING, SENDING, Facts
from slackwater_bench.scenario import PointSummary
from slackwater_lab.errors import RunFailedError

BEGIN: Final = "<!-- The comparison: written by `python -m slackwater_bench page`; do not edit. -->"
END: Final = "<!-- End of the comparison. -->"

_COSTS: Final = (
    ("p50", "latency_ms.p50", " ms"),
    ("p99", "latency_ms.p99", " ms"),
    ("flat out", "messages_per_second", "/s"),
)


def with_comparison(page: str, costs: Sequence[PointSummary]) -> str:
    """Returns the page with another comparison between its markers.

    Raises:
        RunFailedError: It has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunFailedError("docs/messaging.md", f"has no place for the comparison: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{comparison(costs)}\n{END}{after}"


def comparison(costs: Sequence[PointSummary]) -> str:
    """Returns what each way promises, and how fast it is."""
    lines = [*_promises("### Sending", SENDING, costs), *_promises("### Receiving", RECEIVING, costs)]
    return "\n".join(lines)


def _promises(title: str, ways: Mapping[str, Facts], points: Sequence[PointSummary]) -> Iterator[str]:
    has_time = any(facts.shown for facts in ways.values())
    by_way = {str(point.parameters["way"]): point for point in points}
    head = ["way", "guarantee", "order within a key" if has_time else "order"]
    head += ["a message is visible"] if has_time else []
    yield from (title, "")
    yield _row([*head, *(name for name, _, _ in _COSTS)])
    yield "|" + "---|" * len(head) + "---:|" * len(_COSTS)
    for name, facts in ways.items():
        cells = [facts.title, facts.guarantee, facts.order, *([facts.shown] if has_time else ())]
        if name in by_way:
            cells += [_amount(by_way[name].column(column), unit) for _, column, unit in _COSTS]
        else:
            cells += ["not measured", *("" for _ in _COSTS[1:])]
        yield _row(cells)
    yield ""


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")
    return number + unit


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
