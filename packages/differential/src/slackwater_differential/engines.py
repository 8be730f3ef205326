"""The engines that can be judged, by name."""

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from slackwater_differential.case import Batch, Case
from slackwater_differential.engine import ChangedDocument, Event, MakeEngine, RefusedViewError
from slackwater_differential.faults import distorted, planted_now
from slackwater_differential.history import schema_ddl
from slackwater_differential.naive import NaiveEngine
from slackwater_spark.stage.testing import LocalEngine
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.engine import compile_pipeline
from slackwater_sql.errors import ViewError


@lru_cache(maxsize=2)
def compiled(
    ddl: str, views: tuple[tuple[str, str], ...], buckets: int, every_commit: bool, faults: tuple[str, ...]
) -> LocalEngine:
    """The engine of a pipeline, with any rows; kept, since shrinking runs many histories of one pipeline.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    try:
        plan = compile_pipeline(views, parse_catalog({"schema.sql": ddl}))
    except ViewError as error:
        raise RefusedViewError(str(error)) from error
    return LocalEngine(distorted(plan, faults), buckets=buckets, every_commit=every_commit)


class UnrepeatableBatchError(Exception):
    """A batch that was run again on the same state gave something else."""


class JudgedEngine:
    """The engine: everything but Spark, Kafka and the disk."""

    def __init__(self, case: Case) -> None:
        views = tuple((f"{view.name}.sql", view.sql()) for view in case.views)
        self._engine = compiled(
            schema_ddl(case.tables), views, case.buckets, case.every_commit, planted_now()
        )
        self._engine.reset()

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        if batch.loses_index:
            for number, (stage, bucket) in enumerate(self._engine.states):
                if number % 2 == batch.size % 2:
                    self._engine.lose_index(stage, bucket)
        before = copy.deepcopy(self._engine.states) if batch.is_repeated else None
        documents = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if before is not None:
            self._repeat(before, documents, events, batch, first_lsn)
        return [
            ChangedDocument(view, lsn, key, document)
            for view, of_view in documents.items()
            for lsn, key, document in of_view
        ]

    def _repeat(
        self, before: Any, first: object, events: Sequence[Event], batch: Batch, first_lsn: int
    ) -> None:
        """Spark's state is the one before the batch, the indexes are already ahead."""
        self._engine.states = before
        second = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if second != first:
            raise UnrepeatableBatchError(f"the first time {first}, the second time {second}")

    def close(self) -> None:
        """See `Engine`."""


ENGINES: Mapping[str, MakeEngine] = {"local": JudgedEngine, "naive": NaiveEngine}
