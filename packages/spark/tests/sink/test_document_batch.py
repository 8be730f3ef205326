from collections.abc import Callable
from datetime import timedelta
from itertools import chain

import pyarrow as pa
import pytest

from slackwater_engine.documents import DocumentBatch, document_batch
from slackwater_engine.errors import EngineStateError
from slackwater_engine.payloads import Document
from slackwater_protocol import KafkaSettings, encode_batch_header
from slackwater_spark.sink.kafka import KafkaSinkSettings, OutputTopic

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
    assert [list(chain.from_iterable(found.chunks(view))) for view in (0, 1, 2)] == [
        [(31, b"a", b"1")],
        [],
        [(31, b"b", b"2")],
    ]


def test_events_that_no_stage_took_are_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(EngineStateError, match="events for stage 2"):
        document_batch(4, rows((0, encode_batch_header(make_batch(4).header)), (2, b"")))


def test_no_rows_are_no_batch() -> None:
    assert document_batch(0, rows()) is None


def test_documents_without_a_header_are_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(EngineStateError, match="found 0"):
        document_batch(4, rows((-1, make_batch(4).payloads[0][0])))


def test_two_headers_are_refused(make_batch: MakeBatch) -> None:
    header = encode_batch_header(make_batch(4).header)
    with pytest.raises(EngineStateError, match="found 2"):
        document_batch(4, rows((0, header), (0, header)))


def test_an_unreadable_header_is_refused() -> None:
    with pytest.raises(EngineStateError, match="not a readable batch header"):
        document_batch(4, rows((0, b"{}")))


@pytest.mark.parametrize("payload", [b"no zstd", b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"])
def test_an_unreadable_payload_is_refused(make_batch: MakeBatch, payload: bytes) -> None:
    batch = DocumentBatch(4, make_batch(4).header, {0: (payload,)})
    with pytest.raises(EngineStateError, match="unreadable payload"):
        list(batch.chunks(0))


@pytest.mark.parametrize(
    ("every_commit", "kept"),
    [
        (True, [(1, b"a", None), (1, b"b", b"2"), (2, b"a", b"1"), (3, b"c", None)]),
        (False, [(1, b"b", b"2"), (2, b"a", b"1"), (3, b"c", None)]),
    ],
)
def test_a_key_that_moved_between_buckets_has_its_document_only(
    make_batch: MakeBatch, every_commit: bool, kept: list[Document]
) -> None:
    """A bucket sends the delete, another one the document, in any order."""
    documents = [(1, b"b", None), (1, b"b", b"2"), (2, b"a", b"1"), (1, b"a", None), (3, b"c", None)]
    batch = make_batch(0, documents)
    assert sorted(chain.from_iterable(batch.settled(0, every_commit=every_commit)), key=str) == kept
    assert len(list(chain.from_iterable(batch.chunks(0)))) == 5


def test_documents_of_which_no_key_moved_stay_as_they_are(make_batch: MakeBatch) -> None:
    batch = make_batch(0, [(1, b"a", None), (2, b"b", b"1"), (2, b"a", b"2")])
    assert list(batch.settled(0, every_commit=True)) == list(batch.chunks(0))


def test_the_size_of_a_batch_is_that_of_its_documents(make_batch: MakeBatch) -> None:
    small = make_batch(1, [(11, b"a", b"x")]).size_bytes
    large = make_batch(1, [(11, b"a", b"x" * 100_000)]).size_bytes
    assert large - small > 99_000


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 60), (100_000_000, 60), (500_000_000, 250), (100_000_000_000, 900)]
)
def test_the_transaction_of_a_huge_batch_may_stand_open_longer(size: int, seconds: int) -> None:
    settings = KafkaSinkSettings(pipeline="p", outputs=(OutputTopic("out"),), kafka=KafkaSettings("nowhere"))
    assert settings.timeout_for(size) == timedelta(seconds=seconds)
