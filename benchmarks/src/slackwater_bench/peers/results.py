"""Results of peers: runs, their file ``benchmarks/results/peers.jsonl``, and the table of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from slackwater.protocol import Clock
from slackwater_bench.peers.registry import Peer
from slackwater_bench.scenario import (
    Direction,
    Measured,
    Parameters,
    RunContext,
    Scenario,
    make_result,
    scenario_results,
)
from slackwater_certify import Certificate
from slackwater_lab.errors import RunFailedError
from slackwater_lab.results import RESULTS, append


class Setting(StrEnum):
    """The two ways in which change events come to a peer."""

    BACKLOG = "backlog"
    """The topics are full before the peer starts."""
    LIVE = "live"
    """They are written at a steady rate while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSummary:
    """The certificate, as far as the table needs it."""

    documents: int
    """Documents and deletes that the peer wrote."""
    torn: int
    """Match no committed state of their order."""
    contradictory: int
    """Torn documents that show it themselves: the invariants do not hold."""
    went_back: int
    """Show an older state than one shown before."""
    repeated: int
    """Show the same state again."""
    lost: int
    """Orders whose last state was never shown."""
    final_differences: int
    """Orders whose last document is wrong, missing or too many."""
    delay_p50_ms: int | None
    delay_p99_ms: int | None

    @classmethod
    def from_certificate(cls, certificate: Certificate) -> "CertificateSummary":
        """From what the checker found."""
        delay = certificate.delay_ms
        return cls(
            documents=certificate.outputs,
            torn=certificate.torn + certificate.wrong_lsn,
            contradictory=certificate.invariant_violations,
            went_back=certificate.order_violations,
            repeated=certificate.repeated,
            lost=certificate.lost,
            final_differences=certificate.final_differences,
            delay_p50_ms=delay.p50 if delay else None,
            delay_p99_ms=delay.p99 if delay else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """One peer in one setting. Either ``not_run`` says why there are no numbers, or all are there."""

    peer: str
    setting: Setting
    not_run: str | None = None
    events: int = 0
    """Change events in the topics."""
    startup_seconds: float = 0.0
    """From the start of the process until it reads."""
    seconds: float = 0.0
    """From then until the broker appended the last document."""
    memory_mib: float = 0.0
    """Peak of proportional set sizes, all processes of the peer together."""
    verdict: CertificateSummary | None = None

    @property
    def events_per_second(self) -> float:
        """Change events by seconds."""
        return self.events / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The run as it is in a results file."""
        return {**asdict(self), "events_per_second": round(self.events_per_second)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PeerRun":
        """The reverse of :meth:`to_json`."""
        known = {name: found for name, found in value.items() if name in cls.__dataclass_fields__}
        verdict = known.pop("verdict", None)
        known["setting"] = Setting(known["setting"])
        return cls(**known, verdict=CertificateSummary(**verdict) if verdict else None)


def _no_single_run(parameters: Parameters, context: RunContext) -> Measured:
    raise RunFailedError("peers", "is run by its own command: python -m slackwater_bench peers")


SCENARIO = Scenario(
    name="peers",
    version=1,
    unit="events/s",
    direction=Direction.HIGHER,
    measures="Change events by the time from the first read to the last document, per peer and setting.",
    why="What consistency costs, and what its absence shows.",
    points=(),
    quick_points=(),
    run=_no_single_run,
)


def store(run: PeerRun, settings: str, options: Mapping[str, int], clock: Clock) -> None:
    """Adds a run to the file, settings included."""
    parameters: Parameters = {"peer": run.peer, "setting": str(run.setting), **options}
    measured = Measured(round(run.events_per_second), {**run.to_json(), "settings": settings})
    append(make_result(SCENARIO, parameters, measured, clock), RESULTS)


def stored_runs() -> list[PeerRun]:
    """All runs of the present version, oldest first."""
    return [PeerRun.from_json(result.details) for result in scenario_results(SCENARIO)]


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
