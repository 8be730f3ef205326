"""The comparison as a Markdown table."""

from collections.abc import Iterable, Mapping, Sequence

from slackwater_bench.peers.outcome import PeerRun, Setting
from slackwater_bench.peers.registry import Peer

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


def latest_runs(runs: Iterable[PeerRun]) -> dict[tuple[str, Setting], PeerRun]:
    """The last run of each peer and setting."""
    return {(run.peer, run.setting): run for run in runs}


def render(peers: Sequence[Peer], runs: Mapping[tuple[str, Setting], PeerRun]) -> str:
    """One row per peer, then the reasons of what was not run, then the settings."""
    rows = [
        (peer.title, *_backlog(runs.get((peer.name, Setting.BACKLOG))), *_live(peer, runs)) for peer in peers
    ]
    lines = [_line(HEADER), _line(["---"] * len(HEADER)), *map(_line, rows)]
    reasons = [
        f"- {peer.title}, {setting}: not run: {run.not_run}"
        for peer in peers
        for setting in Setting
        if (run := runs.get((peer.name, setting))) and run.not_run
    ]
    settings = [f"- {peer.title}: {peer.settings}" for peer in peers]
    return "\n".join([*lines, *(["", *reasons] if reasons else []), "", "Settings:", "", *settings])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _backlog(run: PeerRun | None) -> list[str]:
    if run is None or run.verdict is None:
        return [_missing(run), *[NOTHING] * 4]
    return [
        f"{run.events_per_second:,.0f}",
        f"{run.startup_seconds:.1f} s",
        f"{run.verdict.documents:,}",
        _torn(run),
        _final(run),
    ]


def _live(peer: Peer, runs: Mapping[tuple[str, Setting], PeerRun]) -> list[str]:
    run = runs.get((peer.name, Setting.LIVE))
    of_both = [runs.get((peer.name, setting)) for setting in Setting]
    memory = max((each.memory_mib for each in of_both if each), default=0.0)
    shown = _memory(memory)
    if run is None or run.verdict is None:
        return [_missing(run), *[NOTHING] * 3, shown]
    delay = f"{_ms(run.verdict.delay_p50_ms)} / {_ms(run.verdict.delay_p99_ms)}"
    return [f"{run.verdict.documents:,}", _torn(run), _final(run), delay, shown]


def _missing(run: PeerRun | None) -> str:
    return "not run" if run else NOTHING


def _torn(run: PeerRun) -> str:
    verdict = run.verdict
    if verdict is None:
        return NOTHING
    if not verdict.torn:
        return "0"
    return f"{verdict.torn:,} ({verdict.torn / max(verdict.documents, 1):.1%})"


def _final(run: PeerRun) -> str:
    wrong = run.verdict.final_differences if run.verdict else 0
    return f"no, {wrong:,} orders" if wrong else "yes"


def _memory(mib: float) -> str:
    if not mib:
        return NOTHING
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def _ms(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,} ms"
