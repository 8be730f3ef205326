"""Documents of views as rows of a frame, for any sink of Spark's."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slackwater_spark.source.options import SourceOptions
from slackwater_sql.stages import EnginePlan, RowsPart

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from slackwater_spark.stage.wire import Document

DOCUMENT_ROWS: Final = "`view` STRING, commit_lsn BIGINT, key STRING, document STRING"
"""``key`` and ``document`` are JSON; ``document`` is null when the key has left the view."""

_ROWS_PER_ARROW_BATCH: Final = 10_000


@dataclass(frozen=True)
class Documents:
    """The documents of views, as a stream; made by :func:`stateful` and :meth:`Pipeline.documents`."""

    session: "SparkSession" = field(repr=False)
    options: SourceOptions
    """Of the source, without secrets when printed."""
    plan: EnginePlan = field(repr=False)
    """What computes them."""
    every_commit: bool
    """Whether each commit that changes a document gives one (``transactions``), or each batch."""
    load: Callable[[], "DataFrame"] = field(repr=False, compare=False)
    """Makes the stream of packed documents."""

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(view.name for view in self.plan.views)

    def packed(self) -> "DataFrame":
        """As sinks take them: batch header and packed documents."""
        return self.load()

    def rows(self) -> "DataFrame":
        """A stream of changed documents: the columns of ``DOCUMENT_ROWS``.

        All that a batch changes comes in one batch: the documents of several views always agree with each
        other. Within a view a key occurs once per batch (``latest``) or per commit (``transactions``).
        """
        documents = self.packed().where("stage < 0").select("stage", "payload")
        has_moves = any(_may_move(self.plan, number) for number in range(len(self.plan.views)))
        if has_moves:
            # A key may move between buckets; what both say is put together per view.
            documents = documents.repartition("stage")
        return documents.mapInArrow(
            _unpacking(self.views, settle=has_moves, every_commit=self.every_commit), DOCUMENT_ROWS
        )


def _may_move(plan: EnginePlan, view: int) -> bool:
    """Whether documents of one key may come from several buckets in one batch."""
    from slackwater_sql.stages import DocumentsOutput

    for stage in plan.stages:
        if stage.output == DocumentsOutput(view):
            return isinstance(stage.rows, RowsPart) and stage.rows.latest_statement is None
    return True


def _unpacking(
    views: Sequence[str], *, settle: bool, every_commit: bool
) -> Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]:
    def unpack(batches: Iterable["RecordBatch"]) -> Iterator["RecordBatch"]:
        from slackwater_spark.stage.results import settled

        if not settle:
            for batch in batches:
                for stage, payload in _payloads(batch):
                    yield from _arrow(views[-stage - 1], _documents(payload))
            return
        by_view: dict[int, list[Document]] = {}
        for batch in batches:
            for stage, payload in _payloads(batch):
                by_view.setdefault(-stage - 1, []).extend(_documents(payload))
        for view in sorted(by_view):
            yield from _arrow(views[view], settled(by_view[view], every_commit=every_commit))

    return unpack


def _payloads(batch: "RecordBatch") -> Iterator[tuple[int, bytes]]:
    yield from zip(batch.column("stage").to_pylist(), batch.column("payload").to_pylist(), strict=True)


def _documents(payload: bytes) -> list["Document"]:
    import msgspec
    import zstandard

    from slackwater_spark.stage.wire import Document

    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(payload), type=list[Document])


def _arrow(view: str, documents: Sequence["Document"]) -> Iterator["RecordBatch"]:
    import pyarrow

    for start in range(0, len(documents), _ROWS_PER_ARROW_BATCH):
        part = documents[start : start + _ROWS_PER_ARROW_BATCH]
        lsns, keys, contents = zip(*part, strict=True)
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([view] * len(part), pyarrow.string()),
                pyarrow.array(lsns, pyarrow.int64()),
                pyarrow.array(keys, pyarrow.string()),
                pyarrow.array(contents, pyarrow.string()),
            ],
            names=["view", "commit_lsn", "key", "document"],
        )
