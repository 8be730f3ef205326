"""Documents of views as rows of a frame, for any sink of Spark's."""

from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.settings import Scope, StageSettings
from slackwater_spark.api.changes import Changes
from slackwater_spark.api.document_rows import DOCUMENT_ROWS, document_unpacker
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.operator.processor import stages
from slackwater_spark.pipeline import PipelineDefinition
from slackwater_spark.pipeline.tables import keys_move
from slackwater_spark.sink import Emit
from slackwater_spark.source.data_source import FORMAT
from slackwater_spark.source.options import SourceOptions


@dataclass(frozen=True)
class Documents:
    """The documents of views, as a stream; made by :func:`stateful` and :meth:`Pipeline.documents`."""

    changes: Changes
    """The changes that they are made of."""
    definition: PipelineDefinition = field(repr=False)
    """The pipeline that computes them."""

    @classmethod
    def of(cls, changes: Changes, definition: PipelineDefinition) -> "Documents":
        """Describes the documents that a pipeline makes of these changes.

        Raises:
            PipelineConfigError: the changes are not all there are: documents would lack rows.
        """
        options = changes.options
        if not changes.streaming or options.starting != "earliest" or options.allow_truncated_start:
            raise PipelineConfigError(
                "documents are made of all rows there are",
                "leave out streaming=False, starting='latest' and allow_truncated_start",
            )
        if definition.scope is not Scope.STRICT:
            problem = "in scope 'aggregate' batches are not whole transactions"
            raise PipelineConfigError(problem, "use scope 'strict', or `slackwater run`")
        return cls(changes, definition)

    @property
    def session(self) -> "SparkSession":
        """The session that queries run in."""
        return self.changes.session

    @property
    def options(self) -> SourceOptions:
        """The options of the source; without secrets when printed."""
        return self.changes.options

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(view.name for view in self.definition.plan.views)

    def packed(self) -> "DataFrame":
        """Reads batch headers and packed documents, as sinks take them."""
        definition, changes = self.definition, self.changes
        options = {**changes.spark_options, "tables": ",".join(definition.tables)}
        options["packing"] = packing_spec(definition.plan, definition.buckets).to_json()
        packed = changes.session.readStream.format(FORMAT).options(**options).load()
        settings = StageSettings(buckets=definition.buckets, every_commit=self._every_commit)
        return stages(packed, definition.plan, settings, definition.evaluators)

    def rows(self) -> "DataFrame":
        """Reads a stream of changed documents: the columns of ``DOCUMENT_ROWS``.

        All that a batch changes comes in one batch: the documents of several views always agree with each
        other. Within a view a key occurs once per batch (``latest``) or per commit (``transactions``).
        """
        documents = self.packed().where("stage < 0").select("stage", "payload")
        plan = self.definition.plan
        has_moves = any(keys_move(plan, number) for number in range(len(plan.views)))
        if has_moves:
            # A key may move between buckets; what both say is put together per view.
            documents = documents.repartition("stage")
        return documents.mapInArrow(
            document_unpacker(self.views, settle=has_moves, every_commit=self._every_commit), DOCUMENT_ROWS
        )

    @property
    def _every_commit(self) -> bool:
        return self.definition.emit is Emit.TRANSACTIONS
