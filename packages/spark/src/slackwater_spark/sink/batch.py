"""A batch of documents as the query hands it to a sink.

The last stage yields rows ``bucket INT, sequence BIGINT, payload BINARY``. The row of bucket -1 holds the
batch header, every other
payload is ``zstd(msgpack([(commit LSN, key, document or nil), ...]))``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec
import zstandard

from slackwater_protocol import BatchHeader, ProtocolError, decode_batch_header
from slackwater_spark.sink.errors import MalformedBatchError
from slackwater_spark.stage.wire import HEADER_BUCKET, Document

if TYPE_CHECKING:
    import pyarrow as pa

_DECODER = msgspec.msgpack.Decoder(list[Document])


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """All that one batch changes in a view."""

    batch_id: int
    """Spark's number of the batch; the same batch has the same number when it is repeated."""
    header: BatchHeader
    payloads: tuple[bytes, ...]
    """Packed documents, one payload per bucket or part of a bucket."""

    @property
    def size_bytes(self) -> int:
        """Of the documents, packed but not compressed.

        Raises:
            MalformedBatchError: a payload is not what a stage writes.
        """
        try:
            return sum(max(0, zstandard.frame_content_size(payload)) for payload in self.payloads)
        except zstandard.ZstdError as error:
            raise MalformedBatchError(self.batch_id, f"unreadable payload: {error}") from error

    def chunks(self) -> Iterator[list[Document]]:
        """The documents payload by payload, in no particular order.

        Raises:
            MalformedBatchError: a payload is not what a stage writes.
        """
        decompress = zstandard.ZstdDecompressor().decompress
        for payload in self.payloads:
            try:
                yield _DECODER.decode(decompress(payload))
            except (msgspec.MsgspecError, zstandard.ZstdError) as error:
                raise MalformedBatchError(self.batch_id, f"unreadable payload: {error}") from error

    def in_commit_order(self) -> list[Document]:
        """All documents, ascending by commit LSN."""
        documents = [document for chunk in self.chunks() for document in chunk]
        documents.sort(key=itemgetter(0))
        return documents


def document_batch(batch_id: int, rows: "pa.Table") -> DocumentBatch | None:
    """The batch in the collected rows of a query; None if there are no rows at all.

    Raises:
        MalformedBatchError: there is not exactly one header, or it cannot be read.
    """
    if rows.num_rows == 0:
        return None
    buckets: list[int] = rows.column("bucket").to_pylist()
    payloads: list[bytes] = rows.column("payload").to_pylist()
    headers = [payload for bucket, payload in zip(buckets, payloads, strict=True) if bucket == HEADER_BUCKET]
    if len(headers) != 1:
        raise MalformedBatchError(batch_id, f"expected exactly one batch header, found {len(headers)}")
    try:
        header = decode_batch_header(headers[0])
    except ProtocolError as error:
        raise MalformedBatchError(batch_id, str(error)) from error
    documents = (
        payload for bucket, payload in zip(buckets, payloads, strict=True) if bucket != HEADER_BUCKET
    )
    return DocumentBatch(batch_id, header, tuple(documents))
