"""Hands the documents of views to a function, batch by batch; each batch is whole transactions."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slackwater_spark.api.commit_batch import Transaction, source_transaction
from slackwater_spark.api.documents import Documents, run_settings
from slackwater_spark.errors import PipelineConfigError
from slackwater_spark.pipeline import BatchProgress, PipelineDefinition, ViewOutput
from slackwater_spark.pipeline.batch_job import jobs_of_others
from slackwater_spark.pipeline.checkpoint import Checkpoint
from slackwater_spark.pipeline.definition import keys_move
from slackwater_spark.pipeline.runner import PipelineRun
from slackwater_spark.pipeline.settings import revision_checkpoint
from slackwater_spark.sink.function import FunctionFailedError, FunctionSink, SettledBatch

ViewDocument = tuple[int, str, str | None]
"""Commit LSN, key and document, both as JSON; the document is None when the key has left the view."""

_SCHEMA: Final = pa.schema(
    {"view": pa.string(), "commit_lsn": pa.int64(), "key": pa.string(), "document": pa.string()}
)
_ROWS_PER_ARROW_BATCH: Final = 10_000
_FUNCTION: Final = "(a function)"
"""In place of a topic: a checkpoint cannot be used for both."""


@dataclass(frozen=True)
class ViewBatch:
    """All that the commits in ``(from_lsn, to_lsn]`` change in the views of a pipeline.

    Repeated after a crash it has the same number, commits and documents. The views agree with each other: all
    of them are as of ``to_lsn``.
    """

    batch_id: int
    """Batches are numbered from 0, without a hole."""
    source: str
    timeline: int
    from_lsn: int
    """Exclusive: where the batch before ended; 0 at the beginning of the source."""
    to_lsn: int
    """Inclusive."""
    transactions: tuple[Transaction, ...]
    """All transactions with a change event, in commit order, whichever tables they touch."""
    views: tuple[str, ...]
    """The names of the views."""
    session: SparkSession = field(repr=False, compare=False)
    """The session of the documents."""
    load: Callable[[str], Iterator[ViewDocument]] = field(repr=False, compare=False)
    """Gives the documents of a view by its name."""

    def documents(self, view: str) -> Iterator[ViewDocument]:
        """Yields what the batch changes in a view, as tuples of commit LSN, key and document; without Spark.

        With ``emit="latest"`` a key comes once, and its commit LSN is :attr:`to_lsn`. With
        ``emit="transactions"`` it comes once for each commit that changes it, in commit order.

        Args:
            view: Its name.

        Raises:
            PipelineConfigError: there is no such view.
        """
        if view not in self.views:
            raise PipelineConfigError(f"there is no view {view!r}", f"the views are {', '.join(self.views)}")
        return self.load(view)

    def rows(self) -> DataFrame:
        """Makes a frame of what the batch changes in all views.

        Columns ``view``, ``commit_lsn``, ``key`` and ``document``, as :meth:`documents` gives them. The frame
        has its own copy of the documents: it can be used several times, and is not read from Kafka again.
        """
        batches = [batch for view in self.views for batch in _arrow_batches(view, self.documents(view))]
        return self.session.createDataFrame(pa.Table.from_batches(batches, _SCHEMA))


def for_each_document_batch(
    documents: Documents,
    function: Callable[[ViewBatch], None],
    *,
    checkpoint: str | Path,
    available_now: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Hands the documents of views to a function, whole transactions at a time, in commit order; blocks.

    The function is called at least once for each batch. When the process ends after the function has returned
    and before that is noted in the checkpoint, it is called again with the same batch id, commits and
    documents: write the effect and ``batch.to_lsn`` in one transaction of your database, or make the effect
    one that can be repeated, and it is there exactly once. It is also called for batches without documents,
    so that ``to_lsn`` goes on.

    Runs in the session of the documents, which is left as it is. One run per process at a time.

    Args:
        documents: Made by :func:`stateful`, or of a :class:`Pipeline`.
        function: Called in this thread, one batch at a time. What it raises ends the run and is raised here;
            the next run begins with that batch.
        checkpoint: Where state and progress are kept: a path, or an address that ``pyarrow.fs`` knows; one
            for each such run. On a disk of this machine a second run is refused meanwhile; elsewhere it is
            for you to start one only.
        available_now: Ends after what is there at the start.
        on_progress: Called in this thread for each batch whose function has returned.
        stop: Ends the run in order when it is set: a function that is being called returns first.

    Raises:
        PipelineUnavailableError: another run uses the checkpoint, or a server does not answer.
        PipelineStateError: the checkpoint is of documents that meant something else.
        PipelineError: the run cannot begin, or a batch failed.
        EngineError: the state in the checkpoint cannot be read or written.
        CutLogError: Kafka does not answer, or the cut log is not as it was.
    """
    named = documents.definition
    definition = replace(named, outputs=tuple(ViewOutput(each.view, _FUNCTION) for each in named.outputs))
    kept = Checkpoint(revision_checkpoint(str(checkpoint), definition.revision))
    session, views = documents.session, documents.views

    def call(batch: SettledBatch) -> None:
        with jobs_of_others(session.sparkContext):
            function(_view_batch(batch, views, session))

    sink = FunctionSink(
        call,
        pipeline=definition.name,
        emit=definition.emit,
        keys_move=_keys_move(definition),
        store=kept.store,
        place=f"checkpoint {kept.store.address}",
        hold=partial(kept.hold, f"a run of {definition.name}"),
    )
    run = PipelineRun(
        definition,
        run_settings(documents, checkpoint, available_now=available_now),
        sink,
        on_progress=on_progress or (lambda _: None),
        on_step=lambda _: None,
        stop=stop or threading.Event(),
        calls_function=True,
    )
    run.check()
    try:
        run.run(session.sparkContext)
        return
    except FunctionFailedError as failed:
        error = failed.error
    raise error  # out here, where it gets no other error as its context


def _keys_move(definition: PipelineDefinition) -> tuple[bool, ...]:
    plan = definition.plan
    return tuple(keys_move(plan, number) for number in range(len(plan.views)))


def _view_batch(batch: SettledBatch, views: tuple[str, ...], session: SparkSession) -> ViewBatch:
    def load(view: str) -> Iterator[ViewDocument]:
        for commit_lsn, key, document in batch.documents(views.index(view)):
            yield commit_lsn, key.decode(), None if document is None else document.decode()

    header = batch.header
    return ViewBatch(
        batch_id=batch.batch_id,
        source=header.source,
        timeline=header.timeline,
        from_lsn=header.from_lsn,
        to_lsn=header.to_lsn,
        transactions=tuple(source_transaction(*each) for each in header.transactions),
        views=views,
        session=session,
        load=load,
    )


def _arrow_batches(view: str, documents: Iterator[ViewDocument]) -> Iterator[pa.RecordBatch]:
    while part := list(islice(documents, _ROWS_PER_ARROW_BATCH)):
        columns = ([view] * len(part), *zip(*part, strict=True))
        arrays = [pa.array(column, each.type) for column, each in zip(columns, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
