"""Errors of the demo.

::

    DemoError
    ├── UnsuitablePipelineError   the demo cannot judge this pipeline
    ├── ServiceEndedError         sidecar or pipeline ended while they were needed
    ├── NotVisibleError           the snapshot or the last commit did not become visible in time
    └── WorkloadError             the writers broke their own invariant: nothing could be judged
"""

from pathlib import Path

from slackwater.errors import SlackwaterError


class DemoError(SlackwaterError):
    """Root of the demo's errors."""


class UnsuitablePipelineError(DemoError):
    """A pipeline the demo cannot judge."""

    def __init__(self, folder: Path, source: str, tables: tuple[str, ...]) -> None:
        super().__init__(folder, source, tables)
        self.folder = folder
        self.source = source
        self.tables = tables

    def __str__(self) -> str:
        return (
            f"the pipeline in {self.folder} does not fit the demo, which needs source {self.source!r} and "
            f"a view over {' and '.join(self.tables)}; take pipelines/orders or a copy of it"
        )


class ServiceEndedError(DemoError):
    """A process of the demo ended by itself."""

    def __init__(self, service: str, log: Path, last_lines: str) -> None:
        super().__init__(service, log, last_lines)
        self.service = service
        self.log = log
        self.last_lines = last_lines

    def __str__(self) -> str:
        return f"the {self.service} ended while the demo needed it; log: {self.log}\n{self.last_lines}"


class NotVisibleError(DemoError):
    """The output does not hold what it should by now."""

    def __init__(self, what: str, seconds: float, seen_lsn: str, logs: Path) -> None:
        super().__init__(what, seconds, seen_lsn, logs)
        self.what = what
        """``initial snapshot`` or ``last commit``."""
        self.seconds = seconds
        self.seen_lsn = seen_lsn
        """Of the newest commit record; ``0/0`` when there is none."""
        self.logs = logs

    def __str__(self) -> str:
        return (
            f"the {self.what} was not visible in the output after {self.seconds:.0f} s; its newest commit "
            f"record is at {self.seen_lsn}. Logs of all parts: {self.logs}"
        )


class WorkloadError(DemoError):
    """What the writers left in the database contradicts the invariant."""

    def __init__(self, orders: tuple[int, ...]) -> None:
        super().__init__(orders)
        self.orders = orders

    def __str__(self) -> str:
        return (
            f"the writers broke the invariant in PostgreSQL itself, in orders {self.orders}: the demo's fault"
        )
