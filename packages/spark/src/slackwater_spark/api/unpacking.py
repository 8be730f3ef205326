"""Packed documents as Arrow rows, on workers: loads nothing that they do not need."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from slackwater_engine.payloads import Document

_ROWS_PER_ARROW_BATCH: Final = 10_000


def unpacking(
    views: Sequence[str], *, settle: bool, every_commit: bool
) -> Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]:
    """What makes rows of packed documents (columns ``stage``, ``payload``).

    Args:
        views: Their names, by number.
        settle: Documents of one key may come from several buckets; all of a view are then given at once.
        every_commit: What :func:`slackwater_engine.documents.without_moved` wants to know.
    """

    def unpack(batches: Iterable["RecordBatch"]) -> Iterator["RecordBatch"]:
        from slackwater_engine.documents import settled

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

    from slackwater_engine.payloads import Document

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
