"""The engines that can be judged, by name."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_differential.case import Batch, Case
from slackwater_differential.engine import ChangedDocument, Event, MakeEngine, RefusedViewError
from slackwater_differential.history import schema_ddl
from slackwater_differential.naive import NaiveEngine
from slackwater_spark.stage.testing import LocalEngine
from slackwater_sql.ddl import parse_catalog
from slackwater_sql.engine import compile_pipeline
from slackwater_sql.errors import ViewError


class UnrepeatableBatchError(Exception):
    """A batch that was run again on the same state gave something else."""


class JudgedEngine:
    """The engine: everything but Spark, Kafka and the disk."""

    def __init__(self, case: Case) -> None:
        catalog = parse_catalog({"schema.sql": schema_ddl(case.tables)})
        views = [(f"{view.name}.sql", view.sql()) for view in case.views]
        try:
            plan = compile_pipeline(views, catalog)
        except ViewError as error:
            raise RefusedViewError(str(error)) from error
        self._engine = LocalEngine(plan, buckets=case.buckets, every_commit=case.every_commit)

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
