from collections.abc import Callable
from datetime import timedelta
from itertools import chain

import pytest

from slackwater.engine.payloads import Document, DocumentBatch, decode_documents, documents_by_view
from slackwater.outputs.kafka.settings import KafkaSinkSettings, OutputTopic
from slackwater.protocol import KafkaSettings, StateError

MakeBatch = Callable[..., DocumentBatch]


def test_documents_are_told_apart_by_their_view(make_batch: MakeBatch) -> None:
    batch = make_batch(3, [(31, b"a", b"1")], others={2: [(31, b"b", b"2")]})
    rows = [
        *((-3, 5, number, payload) for number, payload in enumerate(batch.payloads[2])),
        *((-1, 5, number, payload) for number, payload in enumerate(batch.payloads[0])),
    ]
    found = documents_by_view(3, rows)
    assert found == batch.payloads
    assert [list(chain.from_iterable(decode_documents(3, found.get(view, ())))) for view in (0, 1, 2)] == [
        [(31, b"a", b"1")],
        [],
        [(31, b"b", b"2")],
    ]


def test_events_that_no_stage_took_are_refused() -> None:
    with pytest.raises(StateError, match="events for stage 2"):
        documents_by_view(4, [(2, 0, 0, b"")])


def test_a_batch_may_have_no_documents() -> None:
    assert documents_by_view(0, []) == {}


@pytest.mark.parametrize("payload", [b"no zstd", b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"])
def test_an_unreadable_payload_is_refused(make_batch: MakeBatch, payload: bytes) -> None:
    batch = DocumentBatch(4, make_batch(4).header, {0: (payload,)}, "state")
    with pytest.raises(StateError, match="unreadable payload"):
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
