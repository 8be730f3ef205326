"""What is judged: an engine takes batches of change events and gives changed documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from slackwater.engine.local import LocalEngine
from slackwater.engine.state.manifest import State
from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import EnginePlan
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.differential.case import Batch, Case
from slackwater_lab.differential.history import schema_ddl

Event = tuple[str, str, int, bytes | None, bytes | None, int | None]
"""Table, operation, commit LSN, old row, new row, own LSN."""


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document that an engine published.

    Attributes:
        view: Number of the view.
        lsn: Commit LSN.
        key: Its key as JSON.
        document: The document as JSON; None: it vanished.
    """

    view: int
    lsn: int
    key: bytes
    document: bytes | None


class RefusedViewError(Exception):
    """The engine does not take a view.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine(Protocol):
    """Runs the views of a case. One thread."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """Processes whole transactions.

        Args:
            events: In commit order.
            batch: How they are to be processed.
            first_lsn: Of the batch's first commit, which may have no events.

        Returns:
            The documents that changed, in the order in which they are published.
        """

    def close(self) -> None:
        """Frees what it holds; called once, at last."""


MakeEngine = Callable[[Case], Engine]
"""Makes an engine for a case, with its views compiled and empty state.

Raises:
    RefusedViewError: It does not take the case's views.
"""


def make_plan(ddl: str, views: tuple[tuple[str, str], ...]) -> EnginePlan:
    """Compiles the views of a case.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    try:
        return compile_pipeline(views, parse_catalog({"schema.sql": ddl}))
    except SqlTextError as error:
        raise RefusedViewError(str(error)) from error


@lru_cache(maxsize=2)
def compiled(ddl: str, views: tuple[tuple[str, str], ...], buckets: int, every_commit: bool) -> LocalEngine:
    """The engine of a pipeline, with any rows; kept, since shrinking runs many histories of one pipeline.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    return LocalEngine(make_plan(ddl, views), buckets=buckets, every_commit=every_commit)


class JudgedEngine:
    """The engine: everything but Spark, Kafka and the disk."""

    def __init__(self, case: Case) -> None:
        views = tuple((f"{view.name}.sql", view.sql()) for view in case.views)
        self._engine = compiled(schema_ddl(case.tables), views, case.buckets, case.every_commit)
        self._engine.reset()

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        if batch.loses_index:
            for number, (stage, bucket) in enumerate(list(self._engine.indexes)):
                if number % 2 == batch.size % 2:
                    self._engine.lose_index(stage, bucket)
        before = self._engine.state if batch.is_repeated else None
        documents = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if before is not None:
            self._repeat(before, documents, events, batch, first_lsn)
        return [
            ChangedDocument(view, lsn, key, document)
            for view, of_view in documents.items()
            for lsn, key, document in of_view
        ]

    def _repeat(
        self, before: State, first: object, events: Sequence[Event], batch: Batch, first_lsn: int
    ) -> None:
        """The state is the one before the batch, the indexes are already ahead."""
        self._engine.return_to(before)
        second = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if second != first:
            raise AssertionError(f"repeated, the batch gave something else: first {first}, then {second}")

    def close(self) -> None:
        """See `Engine`."""
