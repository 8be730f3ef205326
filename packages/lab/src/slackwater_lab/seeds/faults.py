"""Planted faults: rules taken out of the judged code, to see that its tests notice."""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

Plant = Callable[[], AbstractContextManager[None]]
"""Has a fault in place as long as the context lasts."""


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
