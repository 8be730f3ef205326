"""Packed documents as rows; runs on workers, so it loads nothing that they do not need."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import zstandard

from slackwater_engine.documents import settled
from slackwater_engine.payloads import Document

DOCUMENT_ROWS: Final = "`view` STRING, commit_lsn BIGINT, key STRING, document STRING"
"""``key`` and ``document`` are JSON; ``document`` is null when the key has left the view.

``commit_lsn`` is that of the commit (``transactions``), or of a commit of the batch, at or above the one that
made the document what it is (``latest``).
"""

_ROWS_PER_ARROW_BATCH: Final = 10_000


def document_unpacker(
    views: Sequence[str], *, settle: bool, every_commit: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Makes the function for ``mapInArrow`` that turns packed documents into rows of ``DOCUMENT_ROWS``.

    It takes columns ``stage`` and ``payload``.

    Args:
        views: The views' names, by number.
        settle: Documents of one key may come from several buckets; all of a view are then given at once.
        every_commit: The documents are those of each commit; else of the batch, whatever their LSNs.
    """

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def _payloads(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    yield from zip(batch.column("stage").to_pylist(), batch.column("payload").to_pylist(), strict=True)


def _documents(payload: bytes) -> list[Document]:
    return msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(payload), type=list[Document])


def _arrow(view: str, documents: Sequence[Document]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(documents), _ROWS_PER_ARROW_BATCH):
        part = documents[start : start + _ROWS_PER_ARROW_BATCH]
        lsns, keys, contents = zip(*part, strict=True)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([view] * len(part), pa.string()),
                pa.array(lsns, pa.int64()),
                pa.array(keys, pa.string()),
                pa.array(contents, pa.string()),
            ],
            names=["view", "commit_lsn", "key", "document"],
        )
