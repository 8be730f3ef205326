"""The comparison in docs/messaging.md, and what crashes cost. Pure; the same results give the same text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from slackwater_bench.messaging.crashes import AT_RANDOM, DECLARED, RECEIVING, SENDING, Cell, Facts
from slackwater_bench.scenario import PointSummary
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.receiving.world import Fault as ReceiveFault
from slackwater_lab.messaging.sending.crash import Fault as SendFault

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


def crash_tables(crashes: Sequence[PointSummary]) -> Iterator[str]:
    """Yields what a crash at each place costs each way, line by line."""
    steps = DECLARED["steps"]
    yield from _crash_table(
        "### Ways of sending, by place", SENDING, crashes, steps["sending"], tuple(SendFault)
    )
    faults = tuple(ReceiveFault)[1:]
    yield from _crash_table("### Ways of receiving, by place", RECEIVING, crashes, steps["receiving"], faults)


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


def _crash_table(
    title: str,
    ways: Mapping[str, Facts],
    points: Sequence[PointSummary],
    steps: Mapping[str, str],
    faults: Sequence[str],
) -> Iterator[str]:
    cells = {str(point.parameters["way"]): _cells(point) for point in points}
    places = [(f"killed after {step}", f"killed when {label}") for step, label in steps.items()]
    places += [(AT_RANDOM, AT_RANDOM), *((fault, fault) for fault in faults)]
    shown = {name: facts for name, facts in ways.items() if name in cells}
    known = {place for place, _ in places}
    found = dict.fromkeys(place for name in shown for place in cells[name])
    places += [(place, place) for place in found if place not in known]
    yield from (title, "")
    yield _row(["", *(facts.short for facts in shown.values())])
    yield "|" + "---|" * (len(shown) + 1)
    for place, label in places:
        yield _row([label, *(_cell(cells[name].get(place)) for name in shown)])
    yield ""


def _cells(point: PointSummary) -> dict[str, Cell]:
    """Returns what all runs have found, by place."""
    found: dict[str, Cell] = {}
    for run in point.runs:
        for place, counts in run.details["cells"].items():
            cell = Cell(**counts)
            found[place] = found[place] + cell if place in found else cell
    return found


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    found = {name: number for name, number in asdict(cell).items() if number and name != "messages"}
    costs = ", ".join(f"**{number} {name}**" for name, number in found.items())
    return f"{costs or 0} of {cell.messages:,}"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")
    return number + unit


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
