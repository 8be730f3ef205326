"""Rules of the engine that can be taken out, to see that this is noticed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

FAULTS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With a fault, None: without any."""
    if name is None:
        yield
        return
    with FAULTS[name]():
        yield
