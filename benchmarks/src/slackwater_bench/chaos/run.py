"""Carries out a schedule on a running system and notes what happened when."""

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slackwater_bench.chaos.deeds import Deeds
from slackwater_bench.chaos.errors import NothingToDisturbError, NotRecoveredError
from slackwater_bench.chaos.faults import FAULTS
from slackwater_bench.chaos.schedule import Planned, Round
from slackwater_bench.chaos.system import System
from slackwater_protocol import format_lsn

RECOVERY_SECONDS = 150.0
"""So long after the end of a fault the output may stand still before that counts as a fault of the product.

A broker waits 60 s for the transaction of a driver that died and a driver needs half a minute to start.
"""
_LSN_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One fault that happened."""

    planned: Planned
    round: int
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
        """From its end."""
        return self.recovered - self.ended


@dataclass(frozen=True, slots=True)
class _Running:
    planned: Planned
    began: float
    began_ms: int
    changes: int


@dataclass(slots=True)
class _Ended:
    running: _Running
    ended: float
    lsn: int


class ChaosRun:
    """Used by one thread.

    Args:
        system: Runs, with its writers.
        say: Told in lines what happens.
    """

    def __init__(self, system: System, say: Say) -> None:
        self.occurrences: list[Occurrence] = []
        self.missed: list[tuple[Planned, str]] = []
        """Planned, but there was nothing to do it to."""
        self._system = system
        self._deeds = Deeds(system)
        self._say = say
        self._started = system.clock.monotonic()

    def carry_out(self, rounds: Iterable[Round], until: float = float("inf")) -> None:
        """One round after the other, as long as the monotonic clock is below ``until``.

        Raises:
            NotRecoveredError: the output stood still.
            Exception: a writer failed, or the observer of the output did.
        """
        try:
            for each in rounds:
                if self._system.clock.monotonic() >= until:
                    return
                self._round(each)
        finally:
            self._deeds.heal()

    def finish(self) -> None:
        """Heals everything, stops the writers and returns when their last commit is visible.

        Raises:
            NotRecoveredError: it does not become visible.
        """
        self._deeds.heal()
        self._system.writers.stop()
        lsn = self._system.write_last()
        self._say("writers stopped; waiting for their last commit")
        self._await_visible(lsn + 1, "the end of all faults")

    def _round(self, round_: Round) -> None:
        self._system.master = round_.master
        self._tell(f"round {round_}")
        begin = self._system.clock.monotonic()
        order = itertools.count()
        due: list[tuple[float, int, Planned, _Running | None]] = []
        for planned in round_.planned:
            heapq.heappush(due, (begin + planned.after_seconds, next(order), planned, None))
        ended: list[_Ended] = []
        while due:
            at, _, planned, running = heapq.heappop(due)
            self._sleep_until(at)
            if running is None:
                running = self._begin(planned)
                if running is None:
                    continue
                if FAULTS[planned.fault].end is not None:
                    now = self._system.clock.monotonic()
                    heapq.heappush(due, (now + planned.seconds, next(order), planned, running))
                    continue
            else:
                self._end(planned)
            ended.append(_Ended(running, self._system.clock.monotonic(), 0))
        self._await_recovery(round_, ended)

    def _begin(self, planned: Planned) -> _Running | None:
        clock, counts = self._system.clock, self._system.writers.counts()
        running = _Running(planned, clock.monotonic(), int(clock.now().timestamp() * 1000), counts.changes)
        try:
            FAULTS[planned.fault].begin(self._deeds)
        except NothingToDisturbError as error:
            self._tell(f"    missed {planned.fault}: {error}")
            self.missed.append((planned, str(error)))
            return None
        return running

    def _end(self, planned: Planned) -> None:
        end = FAULTS[planned.fault].end
        if end is not None:
            end(self._deeds)

    def _await_recovery(self, round_: Round, ended: list[_Ended]) -> None:
        names = " + ".join(each.running.planned.fault for each in ended)
        lsn = self._lsn(names)
        seen = self._await_visible(lsn, names)
        clock = self._system.clock
        now_ms, changes = int(clock.now().timestamp() * 1000), self._system.writers.counts().changes
        for each in ended:
            occurrence = Occurrence(
                planned=each.running.planned,
                round=round_.number,
                began=each.running.began,
                ended=each.ended,
                recovered=max(seen, each.ended),
                began_ms=each.running.began_ms,
                recovered_ms=now_ms,
                changes=changes - each.running.changes,
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

        if not self._system.wait(ask, _LSN_SECONDS):
            raise NotRecoveredError(after, "any LSN", "?", _LSN_SECONDS, self._system.settings.logs)
        return found[0]

    def _await_visible(self, lsn: int, after: str) -> float:
        system = self._system

        def look() -> bool:
            system.writers.raise_failure()
            return system.visible.newest_lsn >= lsn

        if not system.wait(look, RECOVERY_SECONDS):
            seen = format_lsn(system.visible.newest_lsn)
            raise NotRecoveredError(after, format_lsn(lsn), seen, RECOVERY_SECONDS, system.settings.logs)
        commit = system.visible.first_at(lsn)
        return system.clock.monotonic() if commit is None else commit.at

    def _sleep_until(self, at: float) -> None:
        rest = at - self._system.clock.monotonic()
        if rest > 0:
            threading.Event().wait(rest)

    def _tell(self, line: str) -> None:
        elapsed = self._system.clock.monotonic() - self._started
        self._say(f"{elapsed:6.1f} s  {line}")
