"""What a stage hands on is the difference of results at consecutive points."""

from typing import Any

import msgspec
import pytest
import zstandard

from slackwater.engine.evaluate.points import BEFORE, route_of
from slackwater.engine.payloads import (
    Document,
    Outcome,
    bucket_of,
    decode_events,
    documents_stage,
    moved_before,
    pack_change,
    settled,
    unpack_change,
)
from slackwater.sql.plan import DocumentsOutput, Edge, Output, PartialsOutput, RowsOutput
from slackwater.sql.stage_evaluation import ResultPoints

BUCKETS = 4
EDGE = Edge(stage=2, input=1, key=(1,), columns=(1, 0), keeps_null_keys=False)
ONE_KEY = ResultPoints([0, 0, 0], [BEFORE, 10, 20])


def pack(*values: Any) -> bytes:
    return msgspec.msgpack.encode(values)


def routed(output: Output, points: ResultPoints, rows: list[tuple[Any, ...]]) -> Outcome:
    outcome = Outcome(BUCKETS)
    route_of(output, 1)(points, rows, outcome)
    return outcome


def events(outcome: Outcome) -> list[tuple[Any, ...]]:
    found = []
    for stage, bucket, _, payload in outcome.payloads(1, 0):
        for event in decode_events(bucket, payload):
            assert bucket_of(event[2], BUCKETS) == bucket
            found.append((stage, *event))
    return sorted(found, key=lambda event: (event[1], event[5] is not None))


def test_a_row_that_changes_goes_to_its_edge_as_a_table_packs_it() -> None:
    rows = [(0, '[7,"a",1]'), (1, '[7,"a",2]'), (2, '[7,"a",2]')]
    edge = Edge(2, 0, (1,), (0, 2), keeps_null_keys=False)
    assert events(routed(RowsOutput(1, (edge,)), ONE_KEY, rows)) == [
        (2, 10, 0, pack("a"), pack(7), pack(7, 2), 0)
    ]


def test_a_row_whose_key_changes_leaves_the_old_one() -> None:
    rows = [(0, '[7,"a"]'), (1, '[7,"b"]'), (2, '[7,"b"]')]
    assert events(routed(RowsOutput(1, (EDGE,)), ONE_KEY, rows)) == [
        (2, 10, 1, pack("a"), pack(7), None, 0),
        (2, 10, 1, pack("b"), pack(7), pack("b", 7), 0),
    ]


def test_a_row_of_a_null_key_is_not_there_for_an_edge_that_does_not_want_it() -> None:
    rows = [(0, '[7,"a"]'), (1, "[7,null]"), (2, '[7,"b"]')]
    assert events(routed(RowsOutput(1, (EDGE,)), ONE_KEY, rows)) == [
        (2, 10, 1, pack("a"), pack(7), None, 0),
        (2, 20, 1, pack("b"), pack(7), pack("b", 7), 0),
    ]
    wanted = Edge(2, 1, (1,), (1, 0), keeps_null_keys=True)
    assert (2, 10, 1, pack(None), pack(7), pack(None, 7), 0) in events(
        routed(RowsOutput(1, (wanted,)), ONE_KEY, rows)
    )


def test_an_edge_that_does_not_show_a_change_gets_no_event() -> None:
    rows = [(0, '[7,"a",1]'), (1, '[7,"a",2]'), (2, '[7,"a",3]')]
    assert events(routed(RowsOutput(1, (EDGE,)), ONE_KEY, rows)) == []


def test_already_the_first_point_of_a_fresh_key_is_news() -> None:
    points = ResultPoints([0, 1, 1], [10, BEFORE, 10], {0})
    rows = [(0, '{"id":1}', b"a"), (1, '{"id":2}', b"b"), (2, '{"id":2}', b"b")]
    assert routed(DocumentsOutput(0), points, rows).documents == {0: [(10, b'{"id":1}', b"a")]}


def test_documents_come_change_and_vanish_at_their_points() -> None:
    rows = [(0, "1", b"a"), (0, "2", b"a"), (1, "1", b"b"), (1, "2", b"a"), (2, "1", b"b")]
    outcome = routed(DocumentsOutput(3), ONE_KEY, rows)
    assert outcome.documents == {3: [(10, b"1", b"b"), (20, b"2", None)]}
    ((stage, bucket, sequence, payload),) = outcome.payloads(1, 2)
    assert (stage, bucket, sequence) == (documents_stage(3), 2, 0)
    unpacked = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(payload))
    assert unpacked == [[10, b"1", b"b"], [20, b"2", None]]


def test_documents_may_come_with_those_before_them() -> None:
    rows = [(0, "1", b"a"), (0, "2", b"a"), (1, "1", b"b"), (1, "2", b"a"), (2, "1", b"b"), (2, "3", b"c")]
    found = routed(DocumentsOutput(0, with_before=True), ONE_KEY, rows).documents[0]
    assert [(lsn, key, unpack_change(change or b"")) for lsn, key, change in found] == [
        (10, b"1", (b"a", b"b")),
        (20, b"2", (b"a", None)),
        (20, b"3", (None, b"c")),
    ]


def test_a_key_that_moved_between_buckets_showed_what_the_one_it_left_says() -> None:
    documents: list[Document] = [
        (10, b"1", pack_change(b"x", None)),
        (20, b"1", pack_change(b"y", None)),
        (10, b"1", pack_change(None, b"y")),
        (20, b"2", pack_change(b"z", None)),
        (20, b"3", pack_change(None, b"z")),
    ]
    assert moved_before(lambda: [documents[1:], documents[:1]]) == {(10, b"1"): b"x"}


def test_each_point_adds_its_rows_and_takes_away_those_before() -> None:
    points = ResultPoints([0, 0, 0, 1], [BEFORE, 10, 20, 30], {1})
    assert points.steps() == ([1, 0, 2, 1, 3], [10, 10, 20, 20, 30], [1, -1, 1, -1, 1])


def test_points_of_a_key_in_two_calls_add_the_same() -> None:
    def added(*calls: ResultPoints) -> list[tuple[int, int]]:
        """By LSN and weight; the result at LSN `n` is a row `n`."""
        return sorted(
            (lsn, weight * points.lsns[point])
            for points in calls
            for point, lsn, weight in zip(*points.steps(), strict=True)
        )

    first, second = ResultPoints([0, 0], [BEFORE, 10]), ResultPoints([0, 0], [10, 20])
    # The second call starts with the last point of the first, which is not to be added again.
    assert added(ONE_KEY) == added(first, second)


@pytest.mark.parametrize("stage", [1, 2])
def test_partials_go_to_the_stage_that_adds_up(stage: int) -> None:
    rows = [(10, -1, '["a",1,2]'), (10, 0, '["a","ff","x",1]')]
    outcome = routed(PartialsOutput(1, stage), ONE_KEY, rows)
    own = [(10, -1, pack("a"), pack(1, 2)), (10, 0, pack("a"), pack("ff", "x", 1))]
    if stage == 1:
        assert (outcome.partials, events(outcome)) == (own, [])
    else:
        assert outcome.partials == []
        assert events(outcome) == [(2, lsn, number, key, b"", rest, 0) for lsn, number, key, rest in own]


def test_the_outcome_packs_alike_whatever_the_order_of_buckets() -> None:
    one, other = Outcome(BUCKETS), Outcome(BUCKETS)
    sent = [(2, 10, 0, pack(n), pack(n), pack(n)) for n in range(20)]
    for event in sent:
        one.event(*event)
    for event in sorted(sent, key=lambda e: -bucket_of(e[3], BUCKETS)):
        other.event(*event)
    assert list(one.payloads(1, 0)) == list(other.payloads(1, 0))


def test_a_delete_beside_a_document_of_the_same_commit_is_none() -> None:
    documents = [(20, b"1", b"x"), (10, b"1", None), (10, b"1", b"y"), (20, b"2", None)]
    kept = [(10, b"1", b"y"), (20, b"1", b"x"), (20, b"2", None)]
    assert settled(documents, every_commit=True) == kept


def test_of_a_batch_the_document_counts_whatever_the_lsns_of_buckets() -> None:
    documents = [(10, b"1", b"x"), (20, b"1", None)]
    assert settled(documents, every_commit=False) == [(10, b"1", b"x")]
    assert settled(documents, every_commit=True) == documents
