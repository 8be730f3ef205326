"""One seed harness for every subject: plans, tallies, shrinking and planted faults. It prints nothing."""

import inspect
import logging
import multiprocessing
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

_PORTION = 10
"""Seeds that a process takes at once."""
_MOST_CHECKS = 3_000
"""At most this many cases are checked to make one smaller."""
Plant = Callable[[], AbstractContextManager[None]]
"""Has a fault in place as long as the context lasts."""
RIGHT = "right"
"""The verdict when everything held."""
CRASHED = "crashed"
"""The verdict when the judged code raised what it never should; the problem begins with the error's name."""


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A rule that can be taken out.

    Attributes:
        rule: What does not hold then.
        plant: Takes the rule out, and puts it back.
        only: The features with which this is found soon; empty: all may occur.
        first_seed: Where to begin, for a fault that shows seldom.
    """

    rule: str
    plant: Plant
    only: tuple[str, ...] = ()
    first_seed: int = 0


def replaced(owner: Any, attribute: str, wrong: Callable[[Any], Any]) -> Plant:
    """Puts a wrong thing in the place of an attribute of a class or module."""

    @contextmanager
    def plant() -> Iterator[None]:
        right = getattr(owner, attribute)
        setattr(owner, attribute, wrong(right))
        try:
            yield
        finally:
            setattr(owner, attribute, right)

    return plant


def edited(old: str, new: str) -> Callable[[Any], Any]:
    """Makes a function again from its source, with one place changed.

    Raises:
        LookupError: when it is used, if the function has not exactly one such place.
    """

    def edit(right: Callable[..., Any]) -> Callable[..., Any]:
        source = textwrap.dedent(inspect.getsource(right))
        if source.count(old) != 1:
            raise LookupError(f"{right.__qualname__} has not exactly one {old!r}")
        found: dict[str, Any] = {}
        code = compile(source.replace(old, new), inspect.getsourcefile(right) or "", "exec")
        exec(code, right.__globals__, found)  # noqa: S102 - our own source
        return cast(Callable[..., Any], found[right.__name__])

    return edit


class SeededCase(Protocol):
    """Everything that decides one check, as data: a scenario of the simulator, a view with its history."""

    @property
    def seed(self) -> int: ...
    @property
    def features(self) -> Collection[str]: ...
    def command(self) -> str:
        """The command that checks exactly this case again."""


CaseT = TypeVar("CaseT", bound=SeededCase)
Case_co = TypeVar("Case_co", bound=SeededCase, covariant=True)


class CheckResult(Protocol[Case_co]):
    """The result of checking a case. Picklable: results come from other processes.

    The verdict is `RIGHT`, `CRASHED`, or the word of the subject, such as the promise that was broken. The
    judged code is to blame for a failure. What was done is counted by plural nouns, whose sums are shown.
    """

    @property
    def case(self) -> Case_co: ...
    @property
    def verdict(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def is_failure(self) -> bool: ...
    @property
    def counts(self) -> Mapping[str, int]: ...


ResultT = TypeVar("ResultT", bound=CheckResult[Any])


@dataclass(frozen=True, slots=True)
class LeaveOut(Generic[CaseT]):
    """Makes a case smaller by leaving out as many parts as possible: halves, quarters, …, single ones.

    Attributes:
        parts: The parts of a case that can be left out.
        keep: The case with only these of its parts.
    """

    parts: Callable[[CaseT], tuple[Any, ...]]
    keep: Callable[[CaseT, tuple[Any, ...]], CaseT]


@dataclass(frozen=True, slots=True)
class Simplify(Generic[CaseT, ResultT]):
    """Makes a case smaller by taking simpler ones until none of them fails any more.

    Attributes:
        candidates: Cases that are simpler than that of a result.
    """

    candidates: Callable[[ResultT], Iterable[CaseT]]


Step = LeaveOut[CaseT] | Simplify[CaseT, ResultT]
"""A way in which cases are made smaller."""


class Subject(Protocol[CaseT, ResultT]):
    """Something that is tested with random cases. Picklable: it is sent to other processes.

    Every method is called with the plan's fault in place, and gives equal answers for equal arguments.
    """

    @property
    def features(self) -> Collection[str]: ...
    @property
    def faults(self) -> Mapping[str, PlantedFault]: ...

    def generate(self, seed: int, only: Sequence[str]) -> CaseT:
        """Makes the case of a seed, with these features at most; empty: any."""

    def check(self, case: CaseT) -> ResultT:
        """Checks a case. What the judged code raises is a result, too."""

    def shrinking_steps(self) -> Sequence[Step[CaseT, ResultT]]:
        """Lists the ways in which cases can be made smaller; empty: they stay as they are."""

    def variants(self, case: CaseT) -> Iterable[CaseT]:
        """Lists cases as small as this one; a smaller case is taken when any of its variants fails."""

    def report(self, result: ResultT) -> str:
        """Writes everything that helps to understand a failure, with the command that repeats it."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[CaseT, ResultT]):
    """A number of seeds and how they are run.

    Attributes:
        subject: What is tested.
        first: The first seed.
        count: How many.
        only: Names of the features that may occur; empty: all.
        fault: Name of the fault that is planted; None: none is.
        stops: Whether to end with the portion of the first failure.
    """

    subject: Subject[CaseT, ResultT]
    first: int
    count: int
    only: tuple[str, ...] = ()
    fault: str | None = None
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Tally(Generic[ResultT]):
    """The sum of what a number of seeds gave.

    Attributes:
        verdicts: How many seeds ended how.
        features: In how many cases a feature occurred, those set aside left out.
        counts: How much was done, by a plural noun.
        failed: The failures, in the order of the seeds.
        set_aside: Results that say nothing about the judged code, in the order of the seeds.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failed: tuple[ResultT, ...] = ()
    set_aside: tuple[ResultT, ...] = ()

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return self.verdicts.total()

    @property
    def checked(self) -> int:
        """The number of seeds that say something about the judged code."""
        return self.seeds - len(self.set_aside)

    def __add__(self, other: "Tally[ResultT]") -> "Tally[ResultT]":
        return Tally(
            self.verdicts + other.verdicts,
            self.features + other.features,
            self.counts + other.counts,
            _by_seed((*self.failed, *other.failed)),
            _by_seed((*self.set_aside, *other.set_aside)),
        )


OnProgress = Callable[[Tally[ResultT]], None]
"""Told what all seeds so far gave."""


def run(
    plan: Plan[CaseT, ResultT], jobs: int = 1, on_progress: OnProgress[ResultT] | None = None
) -> Tally[ResultT]:
    """Checks all seeds of a plan."""
    tally: Tally[ResultT] = Tally()
    for part in _parts(plan, jobs):
        tally += part
        if on_progress is not None:
            on_progress(tally)
        if tally.failed and plan.stops:
            break
    return tally


def first_failure(plan: Plan[CaseT, ResultT]) -> ResultT | None:
    """Runs a plan up to the first seed that fails; None when none does."""
    for seed in range(plan.first, plan.first + plan.count):
        tally = _run_portion((plan, [seed]))
        if tally.failed:
            return tally.failed[0]
    return None


def smallest(failed: ResultT, plan: Plan[CaseT, ResultT]) -> ResultT:
    """Finds the smallest form of a failure that it can."""
    with _at_work(plan):
        return shrink(failed, plan.subject)


def explain(failed: ResultT, plan: Plan[CaseT, ResultT]) -> str:
    """Writes the report of the smallest form of a failure."""
    with _at_work(plan):
        return plan.subject.report(shrink(failed, plan.subject))


def _parts(plan: Plan[CaseT, ResultT], jobs: int) -> Iterator[Tally[ResultT]]:
    seeds = range(plan.first, plan.first + plan.count)
    portions = [(plan, seeds[i : i + _PORTION]) for i in range(0, plan.count, _PORTION)]
    if jobs == 1:
        yield from map(_run_portion, portions)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run_portion, portions)


def _run_portion(job: tuple[Plan[CaseT, ResultT], Sequence[int]]) -> Tally[ResultT]:
    plan, seeds = job
    tally: Tally[ResultT] = Tally()
    with _at_work(plan):
        for seed in seeds:
            tally += _tally(plan.subject.check(plan.subject.generate(seed, plan.only)))
    return tally


def _tally(result: ResultT) -> Tally[ResultT]:
    is_set_aside = result.verdict != RIGHT and not result.is_failure
    return Tally(
        Counter([result.verdict]),
        Counter(() if is_set_aside else result.case.features),
        Counter(result.counts),
        (result,) if result.is_failure else (),
        (result,) if is_set_aside else (),
    )


def _by_seed(results: tuple[ResultT, ...]) -> tuple[ResultT, ...]:
    return tuple(sorted(results, key=lambda result: result.case.seed))


@contextmanager
def _at_work(plan: Plan[CaseT, ResultT]) -> Iterator[None]:
    """The plan's fault is in place, and what simulated processes log is not shown."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with nullcontext() if plan.fault is None else plan.subject.faults[plan.fault].plant():
            yield
    finally:
        logging.disable(before)


def shrink(failed: ResultT, subject: Subject[CaseT, ResultT], most_checks: int = _MOST_CHECKS) -> ResultT:
    """Finds the smallest failing case that it can; at worst the one that was given."""
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
