"""Results of peers: runs, their file ``benchmarks/results/peers.jsonl``, and the table of them."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from slackwater.protocol import Clock
from slackwater_bench.peers.registry import Peer
from slackwater_bench.scenario import package_versions
from slackwater_certify import Certificate
from slackwater_lab.results import RESULTS, append, new_result, read_results

_NAME, _VERSION = "peers", 1

Details = Mapping[str, Any]
"""One peer in one setting, as it is in a results file: ``not_run`` says why there are no numbers, or all are.

``seconds`` are those from the first read until the broker appended the last document, ``startup_seconds``
those before, and ``memory_mib`` is the peak of proportional set sizes of all processes together.
"""


class Setting(StrEnum):
    """The two ways in which change events come to a peer."""

    BACKLOG = "backlog"
    """The topics are full before the peer starts."""
    LIVE = "live"
    """They are written at a steady rate while it runs."""


def run_details(
    peer: Peer, setting: Setting, certificate: Certificate, *, has_delay: bool, seconds: float, **found: float
) -> Details:
    """The result of a run with what the certificate says.

    ``torn`` documents match no committed state of their order, ``contradictory`` ones break the invariants,
    too; ``lost`` are orders whose last state was never shown.
    """
    delay = certificate.delay_ms if has_delay else None
    return {
        "peer": peer.name,
        "setting": str(setting),
        "not_run": None,
        "events": certificate.events,
        "seconds": seconds,
        **found,
        "verdict": {
            "documents": certificate.outputs,
            "torn": certificate.torn + certificate.wrong_lsn,
            "contradictory": certificate.invariant_violations,
            "went_back": certificate.order_violations,
            "repeated": certificate.repeated,
            "lost": certificate.lost,
            "final_differences": certificate.final_differences,
            "delay_p50_ms": delay.p50 if delay else None,
            "delay_p99_ms": delay.p99 if delay else None,
        },
        "events_per_second": round(certificate.events / seconds) if seconds else 0,
        "settings": peer.settings,
    }


def store(run: Details, options: Mapping[str, int], clock: Clock) -> None:
    """Adds a run to the file."""
    result = new_result(
        _NAME,
        _VERSION,
        parameters={"peer": run["peer"], "setting": run["setting"], **options},
        value=run.get("events_per_second", 0),
        unit="events/s",
        details=run,
        clock=clock,
        versions=package_versions(),
    )
    append(result, RESULTS)


def stored_runs() -> list[Details]:
    """All runs of the present version, oldest first."""
    return [result.details for result in read_results(_NAME) if result.version == _VERSION]


HEADER = (
    "peer",
    "backlog: change events/s",
    "start",
    "documents",
    "torn",
    "final state right",
    "live: documents",
    "torn",
    "final state right",
    "delay p50 / p99",
    "memory",
)
NOTHING = "-"


def latest_runs(runs: Iterable[Details]) -> dict[tuple[str, str], Details]:
    """The last run of each peer and setting."""
    return {(run["peer"], run["setting"]): run for run in runs}


def render(peers: Sequence[Peer], runs: Mapping[tuple[str, str], Details]) -> str:
    """One row per peer, then the reasons of what was not run, then the settings."""
    rows = [
        (peer.title, *_backlog(runs.get((peer.name, Setting.BACKLOG))), *_live(peer, runs)) for peer in peers
    ]
    lines = [_line(HEADER), _line(["---"] * len(HEADER)), *map(_line, rows)]
    reasons = [
        f"- {peer.title}, {setting}: not run: {run['not_run']}"
        for peer in peers
        for setting in Setting
        if (run := runs.get((peer.name, setting))) and run["not_run"]
    ]
    settings = [f"- {peer.title}: {peer.settings}" for peer in peers]
    return "\n".join([*lines, *(["", *reasons] if reasons else []), "", "Settings:", "", *settings])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _backlog(run: Details | None) -> list[str]:
    if run is None or run["not_run"]:
        return [_missing(run), *[NOTHING] * 4]
    rate, startup = f"{run['events_per_second']:,}", f"{run['startup_seconds']:.1f} s"
    return [rate, startup, *_judged(run["verdict"])]


def _live(peer: Peer, runs: Mapping[tuple[str, str], Details]) -> list[str]:
    run = runs.get((peer.name, Setting.LIVE))
    of_both = [runs.get((peer.name, setting)) for setting in Setting]
    memory = _memory(max((each.get("memory_mib", 0.0) for each in of_both if each), default=0.0))
    if run is None or run["not_run"]:
        return [_missing(run), *[NOTHING] * 3, memory]
    delay = " / ".join(_ms(run["verdict"][f"delay_{name}_ms"]) for name in ("p50", "p99"))
    return [*_judged(run["verdict"]), delay, memory]


def _missing(run: Details | None) -> str:
    return "not run" if run else NOTHING


def _judged(verdict: Mapping[str, int]) -> list[str]:
    documents, torn, wrong = (verdict[name] for name in ("documents", "torn", "final_differences"))
    share = f" ({torn / max(documents, 1):.1%})" if torn else ""
    return [f"{documents:,}", f"{torn:,}{share}", f"no, {wrong:,} orders" if wrong else "yes"]


def _memory(mib: float) -> str:
    if not mib:
        return NOTHING
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _ms(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,} ms"
