"""The interface between the seed harness and the thing that it tests, and the faults planted in it."""

import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

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
    """Puts a wrong thing in the place of an attribute of a class or module.

    Args:
        owner: The class or module.
        attribute: The name of the attribute.
        wrong: Makes the wrong thing from the right one.
    """

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


@contextmanager
def planted(faults: Mapping[str, PlantedFault], name: str | None) -> Iterator[None]:
    """Has a fault in place for a while; None: nothing happens."""
    with ExitStack() as stack:
        if name is not None:
            stack.enter_context(faults[name].plant())
        yield


class SeededCase(Protocol):
    """Everything that decides one check, as data: a scenario of the simulator, a view with its history."""

    @property
    def seed(self) -> int:
        """The seed that it was generated from."""

    @property
    def features(self) -> Collection[str]:
        """The features that it contains."""

    def command(self) -> str:
        """The command that checks exactly this case again."""


CaseT = TypeVar("CaseT", bound=SeededCase)
Case_co = TypeVar("Case_co", bound=SeededCase, covariant=True)


class CheckResult(Protocol[Case_co]):
    """The result of checking a case. Picklable: results come from other processes."""

    @property
    def case(self) -> Case_co:
        """The case that was checked."""

    @property
    def verdict(self) -> str:
        """`RIGHT`, `CRASHED`, or the subject's own word, such as the promise that was broken."""

    @property
    def problem(self) -> str:
        """The problem in words; empty when there is none."""

    @property
    def is_failure(self) -> bool:
        """True if the judged code is to blame."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The amount of work that was done, by a plural noun; sums are shown."""


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
    def features(self) -> Collection[str]:
        """The features that cases may contain; ``--only`` names them."""

    @property
    def faults(self) -> Mapping[str, PlantedFault]:
        """The faults that can be planted, by name."""

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
