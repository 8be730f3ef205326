"""Runs an example in a process that kills itself at a step of a transaction, as the kernel would.

    python dying_example.py EXAMPLE STEP COUNT MECHANISM ARGUMENTS...

STEP is ``worked`` (the work is done, the position is not stored), ``stored`` (both are, nothing is committed)
or ``committed``, COUNT the number of the transaction at which it happens; 0: never. MECHANISM is ``with`` or
``without``: then work and position are not stored in one transaction.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from slackwater.client import ConsumerSettings, Transaction
from slackwater.protocol import KafkaSettings

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
STATIC = {"group.instance.id": "one"}
"""A member that starts again continues at once, and not after its predecessor's session."""


class Death:
    """Kills this process when a step was reached this many times."""

    def __init__(self, step: str, count: int) -> None:
        self._step, self._left = step, count

    def after(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> None:
            call(*arguments)
            self._left -= step == self._step
            if step == self._step and self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        return wrapped


def load(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def switch_off(example: ModuleType, handler: Any) -> None:
    """PostgreSQL: two transactions instead of one. Kafka: the consumer commits its offsets by itself."""
    if hasattr(handler, "apply"):

        def process(self: Any, transaction: Transaction) -> None:
            self.apply(transaction)
            self.store(transaction)

        handler.process = process
    else:
        handler.store = lambda *_: None
        example.ConsumerSettings = lambda **_: ConsumerSettings()  # type: ignore[attr-defined]


def main(name: str, step: str, count: str, mechanism: str, *arguments: str) -> None:
    example, death = load(name), Death(step, int(count))
    handler = example.Handler
    if mechanism == "without":
        switch_off(example, handler)
    work = "apply" if hasattr(handler, "apply") else "write"
    for method, reached in ((work, "worked"), ("store", "stored"), ("process", "committed")):
        setattr(handler, method, death.after(reached, getattr(handler, method)))
    example.KafkaSettings = partial(KafkaSettings, options=STATIC)  # type: ignore[attr-defined]
    example.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
