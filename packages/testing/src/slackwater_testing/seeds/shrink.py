"""Makes a failing case small while it still fails in the same way."""

from collections.abc import Callable, Iterable
from typing import Any, Generic

from slackwater_testing.seeds.subject import CRASHED, CaseT, CheckResult, LeaveOut, ResultT, Subject

MOST_CHECKS = 3_000
"""So many cases are checked at most to make one smaller."""


def shrink(failed: ResultT, subject: Subject[CaseT, ResultT], most_checks: int = MOST_CHECKS) -> ResultT:
    """Finds the smallest failing case that it can; at worst the one that was given.

    Args:
        failed: The failure.
        subject: What was tested.
        most_checks: So many cases are tried.
    """
    return _Shrinker(failed, subject, most_checks).shrink()


class _Shrinker(Generic[CaseT, ResultT]):
    def __init__(self, failed: ResultT, subject: Subject[CaseT, ResultT], most_checks: int) -> None:
        self._best = failed
        self._subject = subject
        self._checks_left = most_checks
        self._kind = _kind(failed)

    def shrink(self) -> ResultT:
        before = None
        while before is not self._best and self._checks_left > 0:
            before = self._best
            for step in self._subject.shrinking_steps():
                if isinstance(step, LeaveOut):
                    self._leave_out(step)
                else:
                    self._simplify(step.candidates)
        return self._best

    def _leave_out(self, step: LeaveOut[CaseT]) -> None:
        parts = step.parts(self._best.case)
        size = len(parts)
        while size:
            first = 0
            while first < len(parts) and self._checks_left > 0:
                fewer = (*parts[:first], *parts[first + size :])
                if self._take_if_it_fails(step.keep(self._best.case, fewer)):
                    parts = fewer
                else:
                    first += size
            size //= 2

    def _simplify(self, candidates: Callable[[ResultT], Iterable[CaseT]]) -> None:
        while any(map(self._take_if_it_fails, candidates(self._best))):
            pass

    def _take_if_it_fails(self, candidate: CaseT) -> bool:
        for variant in self._subject.variants(candidate):
            if self._checks_left <= 0:
                return False
            self._checks_left -= 1
            result = self._subject.check(variant)
            if result.is_failure and _kind(result) == self._kind:
                self._best = result
                return True
        return False


def _kind(result: CheckResult[Any]) -> tuple[str, str]:
    """Failures of one kind may be taken for the same one."""
    error = result.problem.partition(":")[0] if result.verdict == CRASHED else ""
    return result.verdict, error
