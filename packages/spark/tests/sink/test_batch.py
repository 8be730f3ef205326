from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

from slackwater_protocol import encode_batch_header
from slackwater_spark.sink import (
    DocumentBatch,
    KafkaSinkSettings,
    MalformedBatchError,
    OutputTopic,
    document_batch,
)

MakeBatch = Callable[..., DocumentBatch]


def rows(*cells: tuple[int, bytes]) -> pa.Table:
    return pa.table(
        {
            "stage": pa.array([stage for stage, _ in cells], pa.int32()),
            "bucket": pa.array([-1 if stage == 0 else 5 for stage, _ in cells], pa.int32()),
            "sequence": pa.array([0 for _ in cells], pa.int64()),
            "payload": pa.array([payload for _, payload in cells], pa.binary()),
        }
    )


def test_a_batch_is_read_from_the_rows_of_a_query(make_batch: MakeBatch) -> None:
    batch = make_batch(3)
    first, second = batch.payloads[0]
    table = rows((-1, first), (0, encode_batch_header(batch.header)), (-1, second))
    assert document_batch(3, table) == batch


def test_documents_are_told_apart_by_their_view(make_batch: MakeBatch) -> None:
    batch = make_batch(3, [(31, b"a", b"1")], others={2: [(31, b"b", b"2")]})
    table = rows(
        *((-3, payload) for payload in batch.payloads[2]),
        (0, encode_batch_header(batch.header)),
        *((-1, payload) for payload in batch.payloads[0]),
    )
    found = document_batch(3, table)
    assert found == batch
    assert found is not None
    assert [found.in_commit_order(view) for view in (0, 1, 2)] == [[(31, b"a", b"1")], [], [(31, b"b", b"2")]]


def test_events_that_no_stage_took_are_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(MalformedBatchError, match="events for stage 2"):
        document_batch(4, rows((0, encode_batch_header(make_batch(4).header)), (2, b"")))


def test_no_rows_are_no_batch() -> None:
    assert document_batch(0, rows()) is None


def test_documents_without_a_header_are_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(MalformedBatchError, match="found 0"):
        document_batch(4, rows((-1, make_batch(4).payloads[0][0])))


def test_two_headers_are_refused(make_batch: MakeBatch) -> None:
    header = encode_batch_header(make_batch(4).header)
    with pytest.raises(MalformedBatchError, match="found 2"):
        document_batch(4, rows((0, header), (0, header)))


def test_an_unreadable_header_is_refused() -> None:
    with pytest.raises(MalformedBatchError, match="not a readable batch header"):
        document_batch(4, rows((0, b"{}")))


@pytest.mark.parametrize("payload", [b"no zstd", b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"])
def test_an_unreadable_payload_is_refused(make_batch: MakeBatch, payload: bytes) -> None:
    batch = DocumentBatch(4, make_batch(4).header, {0: (payload,)})
    with pytest.raises(MalformedBatchError, match="unreadable payload"):
        list(batch.chunks(0))


def test_documents_are_put_into_commit_order_over_all_payloads(make_batch: MakeBatch) -> None:
    documents = [(3, b"b", b"1"), (1, b"a", b"2"), (2, b"b", None), (1, b"c", b"3")]
    ordered = make_batch(0, documents).in_commit_order(0)
    assert [lsn for lsn, _, _ in ordered] == [1, 1, 2, 3]
    assert sorted(ordered) == sorted(documents)


def test_the_size_of_a_batch_is_that_of_its_documents(make_batch: MakeBatch) -> None:
    small = make_batch(1, [(11, b"a", b"x")]).size_bytes
    large = make_batch(1, [(11, b"a", b"x" * 100_000)]).size_bytes
    assert large - small > 99_000


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 60), (100_000_000, 60), (500_000_000, 250), (100_000_000_000, 900)]
)
def test_the_transaction_of_a_huge_batch_may_stand_open_longer(size: int, seconds: int) -> None:
    settings = KafkaSinkSettings(pipeline="p", outputs=(OutputTopic("out"),), bootstrap="nowhere")
    assert settings.timeout_for(size) == timedelta(seconds=seconds)
