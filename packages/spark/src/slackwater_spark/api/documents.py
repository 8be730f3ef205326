"""Documents of views as rows of a frame, for any sink of Spark's."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.scope import Scope
from slackwater_engine.settings import StageSettings
from slackwater_spark.api.changes import Changes
from slackwater_spark.api.errors import QueryShapeError
from slackwater_spark.api.unpacking import unpacking
from slackwater_spark.pipeline import PipelineDefinition
from slackwater_spark.sink import Emit
from slackwater_spark.source.data_source import FORMAT
from slackwater_spark.source.options import SourceOptions
from slackwater_sql.plan import DocumentsOutput, EnginePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOCUMENT_ROWS: Final = "`view` STRING, commit_lsn BIGINT, key STRING, document STRING"
"""``key`` and ``document`` are JSON; ``document`` is null when the key has left the view.

``commit_lsn`` is that of the commit (``transactions``), or of a commit of the batch, at or above the one that
made the document what it is (``latest``).
"""


@dataclass(frozen=True)
class Documents:
    """The documents of views, as a stream; made by :func:`stateful` and :meth:`Pipeline.documents`."""

    changes: Changes
    """The source."""
    definition: PipelineDefinition = field(repr=False)
    """What computes them."""

    @classmethod
    def of(cls, changes: Changes, definition: PipelineDefinition) -> "Documents":
        """The documents that a pipeline makes of these changes.

        Raises:
            QueryShapeError: the changes are not all there are: documents would lack rows.
        """
        options = changes.options
        if not changes.streaming or options.starting != "earliest" or options.allow_truncated_start:
            raise QueryShapeError(
                "documents are made of all rows there are",
                "leave out streaming=False, starting='latest' and allow_truncated_start",
            )
        if definition.scope is not Scope.STRICT:
            problem = "in scope 'aggregate' batches are not whole transactions"
            raise QueryShapeError(problem, "use scope 'strict', or `slackwater run`")
        return cls(changes, definition)

    @property
    def session(self) -> "SparkSession":
        """Where queries run."""
        return self.changes.session

    @property
    def options(self) -> SourceOptions:
        """Of the source; without secrets when printed."""
        return self.changes.options

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.definition.plan.views)

    def packed(self) -> "DataFrame":
        """As sinks take them: batch headers and packed documents."""
        from slackwater_spark.operator.processor import stages

        definition, changes = self.definition, self.changes
        options = {**changes.spark_options, "tables": ",".join(definition.tables)}
        options["packing"] = packing_spec(definition.plan, definition.buckets).to_json()
        packed = changes.session.readStream.format(FORMAT).options(**options).load()
        settings = StageSettings(buckets=definition.buckets, every_commit=self._every_commit)
        return stages(packed, definition.plan, settings, definition.evaluators)

    def rows(self) -> "DataFrame":
        """A stream of changed documents: the columns of ``DOCUMENT_ROWS``.

        All that a batch changes comes in one batch: the documents of several views always agree with each
        other. Within a view a key occurs once per batch (``latest``) or per commit (``transactions``).
        """
        documents = self.packed().where("stage < 0").select("stage", "payload")
        plan = self.definition.plan
        has_moves = any(_may_move(plan, number) for number in range(len(plan.views)))
        if has_moves:
            # A key may move between buckets; what both say is put together per view.
            documents = documents.repartition("stage")
        return documents.mapInArrow(
            unpacking(self.views, settle=has_moves, every_commit=self._every_commit), DOCUMENT_ROWS
        )

    @property
    def _every_commit(self) -> bool:
        return self.definition.emit is Emit.TRANSACTIONS


def _may_move(plan: EnginePlan, view: int) -> bool:
    """Whether documents of one key may come from several buckets in one batch."""
    last = next(stage for stage in plan.stages if stage.output == DocumentsOutput(view))
    return last.accumulate is None and (last.rows is None or last.rows.latest_statement is None)
