"""The ``slackwater`` command where clock and sink obey: ``python -m slackwater_testing.chaos.process``.

::

    process.py CONTROL_FOLDER [--without MECHANISM] COMMAND...

The product is unchanged; its clock and its sink's probe are handed over by this module. ``--without``
switches off a mechanism that a promise rests on, so that the harness can be seen to find it missing.
"""

import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from slackwater_protocol import SystemClock
from slackwater_testing.chaos.control import ControlFolder, KillProbe, moved_clock


def without_progress_check() -> None:
    """The sink writes a batch that comes again although the output has it."""
    from slackwater_spark.sink import kafka

    setattr(kafka, "is_covered", lambda *_: False)  # noqa: B010 - a private name of that module


MECHANISMS: dict[str, Callable[[], None]] = {"progress-check": without_progress_check}


def prepare(control: ControlFolder, mechanisms: list[str]) -> None:
    """Lets this process obey its control folder."""
    import slackwater_spark.pipeline as pipeline

    run: Callable[..., Any] = pipeline.run_pipeline
    SystemClock.now = moved_clock(control)  # type: ignore[method-assign,assignment]
    pipeline.run_pipeline = partial(run, probe=KillProbe(control))
    for name in mechanisms:
        MECHANISMS[name]()


def main(arguments: list[str]) -> None:
    """Runs the command; does not return."""
    control, *rest = arguments
    mechanisms = []
    while rest and rest[0] == "--without":
        mechanisms.append(rest[1])
        rest = rest[2:]
    prepare(ControlFolder(Path(control)), mechanisms)
    sys.argv = ["slackwater", *rest]
    runpy.run_module("slackwater", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
