"""A chaos run: the schedule is carried out on a running system, everything is healed, every record judged."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from slackwater.protocol import epoch_ms, format_position
from slackwater_certify import (
    Certificate,
    Connections,
    Mode,
    Specification,
    certify,
    load_specification,
)
from slackwater_lab.chaos.consumers import GroupFindings
from slackwater_lab.chaos.disturber import Disturber
from slackwater_lab.chaos.faults import FAULTS
from slackwater_lab.chaos.result import ChaosResult, Occurrence
from slackwater_lab.chaos.schedule import Round, ScheduledFault
from slackwater_lab.chaos.system import SOURCE, System
from slackwater_lab.errors import NothingToDisturbError, RunFailedError

_RECOVERY_SECONDS = 600.0
"""How long the output may stand still after the end of a fault before that counts as a fault of the product.

A broker waits 60 s for the transaction of a driver that died and a driver needs half a minute to start.
"""
_LSN_SECONDS = 300.0
_CONSUMED_SECONDS = 180.0
"""How long consumers may need to read the rest after the last commit was visible."""

Say = Callable[[str], None]


class ChaosRun:
    """Used by one thread; each fault of a round happens on a thread of its own."""

    def __init__(self, system: System, say: Say, disturber: Disturber | None = None) -> None:
        self.occurrences: list[Occurrence] = []
        self.missed: list[tuple[ScheduledFault, str]] = []
        """Scheduled, but there was nothing to do it to."""
        self._system = system
        self._disturber = disturber or Disturber(system)
        self._say = say
        self._started = system.clock.monotonic()

    def carry_out(self, rounds: Iterable[Round], until: float = float("inf")) -> None:
        """One round after the other, as long as the monotonic clock is below ``until``.

        Raises:
            RunFailedError: the output stood still.
            Exception: a writer failed, or the observer of the output did.
        """
        try:
            for each in rounds:
                if self._system.clock.monotonic() >= until:
                    return
                self._round(each)
        finally:
            self._disturber.heal()

    def finish(self) -> None:
        """Heals everything, stops the writers and returns when their last commit is visible.

        Raises:
            RunFailedError: it does not become visible.
        """
        self._disturber.heal()
        self._system.writers.stop()
        lsn = self._system.write_last()
        self._say("writers stopped; waiting for their last commit")
        self._await_visible(lsn + 1, "the end of all faults")

    def _round(self, round_: Round) -> None:
        self._system.master = round_.master
        self._tell(f"round {round_}")
        begin = self._system.clock.monotonic()
        with ThreadPoolExecutor(len(round_.planned), thread_name_prefix="fault") as pool:
            futures = [pool.submit(self._happen, begin, planned) for planned in round_.planned]
        ended = [happened for future in futures if (happened := future.result()) is not None]
        if ended:
            self._await_recovery(ended)

    def _happen(self, round_began: float, planned: ScheduledFault) -> Occurrence | None:
        """One fault from its begin to its end, on a thread of its own; its changes are those before it."""
        clock, fault = self._system.clock, FAULTS[planned.fault]
        self._sleep(round_began + planned.after_seconds - clock.monotonic())
        changes = self._system.writers.counts().changes
        began, began_ms = clock.monotonic(), epoch_ms(clock.now())
        try:
            fault.begin(self._disturber)
        except NothingToDisturbError as error:
            self._tell(f"    missed {planned.fault}: {error}")
            self.missed.append((planned, str(error)))
            return None
        if fault.end is not None:
            self._sleep(planned.seconds)
            fault.end(self._disturber)
        ended = clock.monotonic()
        return Occurrence(planned, began, ended, ended, began_ms, began_ms, changes)

    def _await_recovery(self, ended: list[Occurrence]) -> None:
        names = " + ".join(each.planned.fault for each in ended)
        lsn = self._lsn(names)
        seen = self._await_visible(lsn, names)
        clock = self._system.clock
        now_ms, changes = epoch_ms(clock.now()), self._system.writers.counts().changes
        for each in ended:
            occurrence = replace(
                each,
                recovered=max(seen, each.ended),
                recovered_ms=now_ms,
                changes=changes - each.changes,
            )
            self.occurrences.append(occurrence)
            self._tell(
                f"    {occurrence.planned.fault}: {occurrence.changes:,} changes, "
                f"visible {occurrence.recovery_seconds:.1f} s after its end"
            )

    def _lsn(self, after: str) -> int:
        """An LSN above all commits so far, as soon as the database answers."""
        found: list[int] = []

        def ask() -> bool:
            lsn = self._system.database_lsn()
            found.extend([] if lsn is None else [lsn])
            return bool(found)

        self._await(ask, _LSN_SECONDS, after, lambda: ("the database", "does not answer"))
        return found[0]

    def _await_visible(self, lsn: int, after: str) -> float:
        system = self._system

        def look() -> bool:
            system.writers.raise_failure()
            return system.visible.newest_lsn >= lsn

        def problem() -> tuple[str, str]:
            seen, wanted = format_position(system.visible.newest_lsn), format_position(lsn)
            return "the output", f"is at {seen}, a commit at {wanted} is not visible"

        self._await(look, _RECOVERY_SECONDS, after, problem)
        seen_at = system.visible.first_at(lsn)
        return system.clock.monotonic() if seen_at is None else seen_at

    def _await(
        self,
        condition: Callable[[], bool],
        seconds: float,
        after: str,
        problem: Callable[[], tuple[str, str]],
    ) -> None:
        if not self._system.wait(condition, seconds):
            what, reason = problem()
            logs = f"what each process said last is in {self._system.settings.logs}"
            raise RunFailedError(what, f"{reason} {seconds:.0f} s after '{after}'; {logs}")

    @staticmethod
    def _sleep(seconds: float) -> None:
        if seconds > 0:
            threading.Event().wait(seconds)

    def _tell(self, line: str) -> None:
        elapsed = self._system.clock.monotonic() - self._started
        self._say(f"{elapsed:6.1f} s  {line}")


def run_session(
    system: System, rounds: Iterable[Round], say: Say, seconds: float = float("inf")
) -> ChaosResult:
    """Carries the schedule out on a running system, for this long at most, and judges everything.

    Raises:
        RunFailedError: the output stood still after a fault.
        CertifyError: the output cannot be judged.
    """
    clock = system.clock
    started = clock.monotonic()
    run = ChaosRun(system, say)
    system.output.begin_judging(*_specified(system))
    run.carry_out(rounds, started + seconds)
    run.finish()
    say("judging every record")
    return ChaosResult(
        occurrences=tuple(run.occurrences),
        missed=tuple(run.missed),
        certificate=judge(system),
        consumed=judge_consumers(system),
        deaths=system.deaths.copy(),
        last_words=tuple(system.last_words),
        seconds=clock.monotonic() - started,
    )


def judge(system: System) -> Certificate:
    """Everything the pipeline has published, against PostgreSQL and the change topics."""
    specification, connections, records = system.output.to_judge(*_specified(system))
    return certify(specification, connections, mode=Mode.BOTH, records=records)


def judge_consumers(system: System) -> tuple[GroupFindings, ...]:
    """Everything that consumers were given, against the topics; waits until they have read all there is."""
    if system.consumers is None:
        return ()
    return system.consumers.judge(lambda condition: system.wait(condition, _CONSUMED_SECONDS))


def _specified(system: System) -> tuple[Specification, Connections]:
    """Returns what the workload says of its output in Kafka, and where the servers are."""
    specification = load_specification(system.settings.workload.pipeline / "certify.toml")
    if specification.source.name != SOURCE:
        raise ValueError(f"the specification is about source {specification.source.name!r}, not {SOURCE!r}")
    return specification, Connections(bootstrap=system.bootstrap, dsn=system.dsn)
