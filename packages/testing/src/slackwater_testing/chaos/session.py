"""A whole chaos run: system up, faults, everything healed, every record judged."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_certify import Certificate, Connections, Mode, certify, load_specification
from slackwater_protocol import Clock
from slackwater_testing.chaos.run import ChaosRun, Occurrence
from slackwater_testing.chaos.schedule import PlannedFault, Round
from slackwater_testing.chaos.system import SOURCE, System
from slackwater_testing.chaos.table import Row, from_details, markdown, rows, to_details, totals
from slackwater_testing.errors import NoResultError
from slackwater_testing.results import RESULTS, Result, append, new_result

SCENARIO = "chaos"
VERSION = 1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosResult:
    """The findings of a run."""

    occurrences: tuple[Occurrence, ...]
    missed: tuple[tuple[PlannedFault, str], ...]
    certificate: Certificate
    deaths: Counter[str]
    """How often the supervisor had to start a part."""
    last_words: tuple[tuple[str, str], ...] = field(repr=False)
    """Program and how its log ended, at each of its deaths."""
    seconds: float

    @property
    def table(self) -> list[Row]:
        """Per kind of fault."""
        return rows(self.occurrences, self.certificate)

    @property
    def text(self) -> str:
        """The table as Markdown, what was found wrong, and what did not happen."""
        lines = [markdown(self.table, totals(self.certificate))]
        for kind, examples in self.certificate.examples.items():
            lines += [f"{kind}:", *(f"  {example[:400]}" for example in examples)]
        lines += [f"missed: {planned.fault}: {reason}" for planned, reason in self.missed]
        verdict = "nothing" if self.certificate.is_clean else f"{self.certificate.findings} findings"
        lines.append(
            f"{self.certificate.outputs:,} documents of {self.certificate.transactions:,} transactions "
            f"judged: {verdict} wrong; {sum(self.deaths.values())} restarts in {self.seconds:.0f} s"
        )
        return "\n".join(lines)


def run_session(
    system: System, rounds: Iterable[Round], say: Say, seconds: float = float("inf")
) -> ChaosResult:
    """Carries the schedule out on a running system, for so long at most, and judges everything.

    Raises:
        NotRecoveredError: the output stood still after a fault.
        CertifyError: the output cannot be judged.
    """
    clock = system.clock
    started = clock.monotonic()
    run = ChaosRun(system, say)
    run.carry_out(rounds, started + seconds)
    run.finish()
    say("judging every record")
    return ChaosResult(
        occurrences=tuple(run.occurrences),
        missed=tuple(run.missed),
        certificate=judge(system),
        deaths=system.deaths.copy(),
        last_words=tuple(system.last_words),
        seconds=clock.monotonic() - started,
    )


def judge(system: System) -> Certificate:
    """Everything the pipeline has published so far, against PostgreSQL and the change topics."""
    specification = load_specification(system.settings.workload.pipeline / "certify.toml")
    if specification.source.name != SOURCE:
        raise ValueError(f"the specification is about source {specification.source.name!r}, not {SOURCE!r}")
    connections = Connections(bootstrap=system.bootstrap, dsn=system.dsn)
    return certify(specification, connections, mode=Mode.BOTH)


def keep(found: ChaosResult, *, seed: int, kind: str, clock: Clock, folder: Path = RESULTS) -> None:
    """Appends the run to ``chaos.jsonl``."""
    certificate = found.certificate
    result = new_result(
        SCENARIO,
        VERSION,
        parameters={"kind": kind, "seed": seed},
        value=float(certificate.findings),
        unit="violations",
        details={
            "seconds": round(found.seconds),
            "faults": len(found.occurrences),
            "transactions": certificate.transactions,
            "restarts": dict(found.deaths),
            **to_details(found.table, totals(certificate)),
        },
        clock=clock,
    )
    append(result, folder)


def newest_table(folder: Path = RESULTS) -> str:
    """The newest run in the results, as Markdown with a line that says what it was.

    Raises:
        NoResultError: there is none.
    """
    path = folder / f"{SCENARIO}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    if not lines:
        raise NoResultError(path)
    run = Result(**json.loads(lines[-1]))
    table, whole = from_details(run.details)
    details, run_of = run.details, run.parameters
    what = (
        f"{run_of['kind']}, seed {run_of['seed']}, {run.at[:10]}: {details['faults']} faults in "
        f"{details['seconds']:,} s, {details['transactions']:,} transactions, {whole.outputs:,} published "
        f"documents and deletes judged, {whole.findings} findings."
    )
    return f"{what}\n\n{markdown(table, whole)}"
