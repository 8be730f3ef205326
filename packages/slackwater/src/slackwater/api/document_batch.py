"""Passes the documents of views to a function, in batches of whole transactions."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slackwater.api.commit_batch import Transaction, source_transaction
from slackwater.api.documents import Documents, run_settings
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import SinkSettings
from slackwater.outputs.function import FunctionFailedError, FunctionSink
from slackwater.pipeline import BatchProgress, ViewOutput
from slackwater.pipeline.batch_job import jobs_of_others
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.definition import keys_move
from slackwater.pipeline.runner import PipelineRun
from slackwater.pipeline.settings import revision_checkpoint
from slackwater.protocol import ConfigError

ViewDocument = tuple[int, str, str | None]
"""Commit LSN, key and document, the latter two as JSON; the document is None if the key has left the view."""

_SCHEMA: Final = pa.schema(
    {"view": pa.string(), "commit_lsn": pa.int64(), "key": pa.string(), "document": pa.string()}
)
_ROWS_PER_ARROW_BATCH: Final = 10_000
_FUNCTION: Final = "(a function)"
"""Is recorded instead of a topic, because a checkpoint cannot be used for both."""


@dataclass(frozen=True)
class ViewBatch:
    """Everything that the commits in ``(from_lsn, to_lsn]`` change in the views of a pipeline.

    A batch that is repeated after a crash has the same number, commits and documents. All views show the
    state as of ``to_lsn``, so they agree with each other.
    """

    batch_id: int
    """The number of the batch. Batches are numbered from 0 without gaps."""
    source: str
    timeline: int
    from_lsn: int
    """The end of the previous batch, exclusive; 0 at the beginning of the source."""
    to_lsn: int
    """The end of the batch, inclusive."""
    transactions: tuple[Transaction, ...]
    """All transactions with a change event, in commit order, whichever tables they change."""
    views: tuple[str, ...]
    """The names of the views."""
    session: SparkSession = field(repr=False, compare=False)
    """The session of the documents."""
    load: Callable[[str], Iterator[ViewDocument]] = field(repr=False, compare=False)
    """Returns the documents of a view, given its name."""

    def documents(self, view: str) -> Iterator[ViewDocument]:
        """Yields the changes of a view as tuples of commit LSN, key and document, without Spark.

        With ``emit="latest"``, a key occurs once, and its commit LSN is :attr:`to_lsn`. With
        ``emit="transactions"``, it occurs once for each commit that changes it, in commit order.

        Args:
            view: The name of the view.

        Raises:
            ConfigError: There is no such view.
        """
        if view not in self.views:
            raise ConfigError(f"there is no view {view!r}", f"the views are {', '.join(self.views)}")
        return self.load(view)

    def rows(self) -> DataFrame:
        """Returns a frame with the changes of all views.

        Its columns are ``view``, ``commit_lsn``, ``key`` and ``document``, with the values of
        :meth:`documents`. The frame has its own copy of the documents: it can be used several times, and does
        not read from Kafka again.
        """
        batches = [batch for view in self.views for batch in _arrow_batches(view, self.documents(view))]
        return self.session.createDataFrame(pa.Table.from_batches(batches, _SCHEMA))


def for_each_document_batch(
    documents: Documents,
    function: Callable[[ViewBatch], None],
    *,
    checkpoint: str | Path,
    available_now: bool = False,
    allow_missing_tables: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Passes the documents of views to a function, in whole transactions and in commit order. Blocks.

    The function is called at least once for each batch. If the process ends after the function has returned,
    but before this is recorded in the checkpoint, it is called again with the same batch id, commits and
    documents. To get each effect exactly once, write the effect and ``batch.to_lsn`` in one transaction of
    your database, or use an effect that can be repeated without harm. The function is also called for batches
    without documents, so that ``to_lsn`` advances.

    It runs in the session of the documents, and does not change the session. Only one run per process is
    possible at a time.

    Args:
        documents: Created by :func:`stateful`, or by a :class:`Pipeline`.
        function: Called in this thread, one batch at a time. An error that it raises ends the run and is
            raised here; the next run begins with this batch.
        checkpoint: Where state and progress are kept: a path, or an address that ``pyarrow.fs`` supports; one
            for each such run. On a disk of this machine, a second run at the same time is refused; elsewhere,
            you must start only one.
        available_now: Whether to end after the changes that exist at the start.
        allow_missing_tables: Whether tables without a topic count as empty. Otherwise the run is refused.
        on_progress: Called in this thread for each batch whose function has returned.
        stop: Ends the run in an orderly way when it is set; a function that is being called returns first.

    Raises:
        UnavailableError: Another run uses the checkpoint, or a server does not answer.
        StateError: The checkpoint belongs to documents with another meaning.
        SlackwaterError: The run cannot begin, or a batch failed,
            or the state in the checkpoint cannot be read or written.
        TopicUnavailableError: Kafka does not answer. StateError: The cut log has changed.
    """
    named = documents.definition
    definition = replace(named, outputs=tuple(ViewOutput(each.view, _FUNCTION) for each in named.outputs))
    kept = Checkpoint(revision_checkpoint(str(checkpoint), definition.revision))
    session, views = documents.session, documents.views

    def call(commits: BatchCommits) -> None:
        with jobs_of_others(session.sparkContext):
            function(_view_batch(commits, views, session))

    sink = FunctionSink(
        call,
        SinkSettings(pipeline=definition.name, emit=definition.emit),
        keys_move=tuple(keys_move(definition.plan, number) for number in range(len(views))),
        store=kept.store,
        place=f"checkpoint {kept.store.address}",
        hold=partial(kept.hold, f"a run of {definition.name}"),
    )
    run = PipelineRun(
        definition,
        replace(
            run_settings(documents, checkpoint),
            available_now=available_now,
            allow_missing_tables=allow_missing_tables,
        ),
        sink,
        on_progress=on_progress,
        stop=stop,
        calls_function=True,
    )
    run.check()
    try:
        run.run(lambda: session.sparkContext)
        return
    except FunctionFailedError as failed:
        error = failed.error
    raise error  # out here, where it gets no other error as its context


def _view_batch(commits: BatchCommits, views: tuple[str, ...], session: SparkSession) -> ViewBatch:
    def load(view: str) -> Iterator[ViewDocument]:
        for commit_lsn, key, document in commits.shown(views.index(view)):
            yield commit_lsn, key.decode(), None if document is None else document.decode()

    header = commits.batch.header
    return ViewBatch(
        batch_id=commits.batch.batch_id,
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
