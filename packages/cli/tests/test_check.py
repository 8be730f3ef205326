"""The checkers must be able to fail: each way of being wrong is built into an otherwise right output."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from slackwater.demo.check import (
    OutputRecord,
    check_commits,
    check_documents,
    check_final,
    check_states,
    final_documents,
    read_order_id,
)
from slackwater.demo.findings import Findings, Kind
from slackwater.demo.history import Change, SourceTransaction
from slackwater.demo.orders import ORDER_LINES, ORDERS, Document, OrderTables, with_microseconds
from slackwater_protocol import CommitRecord, OffsetRange

TOPIC = "orders"


def order(order_id: int, line_count: int, total: str) -> Change:
    row = {"id": order_id, "customer": "Ada", "status": "new", "line_count": line_count, "total": total}
    return Change(ORDERS, order_id, row | {"created_at": "2026-01-01T00:00:00Z"})


def line(line_id: int, order_id: int, quantity: int = 1, price: str = "1.50") -> Change:
    row = {"id": line_id, "order_id": order_id, "product": "rope", "quantity": quantity, "price": price}
    return Change(ORDER_LINES, line_id, row)


SNAPSHOT = (order(1, 1, "1.50"), line(11, 1))
TRANSACTIONS = (
    SourceTransaction(100, 1, (order(2, 2, "3.00"), line(21, 2), line(22, 2))),
    SourceTransaction(200, 2, (line(22, 1), order(1, 2, "3.00"), order(2, 1, "1.50"))),
    SourceTransaction(300, 3, (order(1, 3, "6.00"), line(12, 1, 2))),
    SourceTransaction(400, 4, (Change(ORDERS, 2, None), Change(ORDER_LINES, 21, None))),
)


@dataclass
class Output:
    """A pipeline's output, one batch per transaction (the snapshot goes with the first); breakable."""

    records: dict[tuple[int, int], OutputRecord]
    commits: list[CommitRecord]

    def findings(self) -> Findings:
        findings, records = Findings(), [self.records[place] for place in sorted(self.records)]
        check_documents(records, findings)
        check_commits(self.commits, self.records, TOPIC, findings)
        check_states(SNAPSHOT, TRANSACTIONS, self.commits, records, findings)
        check_final(final_documents(records), database(), findings)
        return findings

    def change(self, place: tuple[int, int], **changes: Any) -> None:
        self.records[place] = replace(self.records[place], **changes)

    def place_of(self, order_id: int, lsn: int) -> tuple[int, int]:
        return next(p for p, r in self.records.items() if (r.order_id, r.commit_lsn) == (order_id, lsn))


def database() -> dict[int, Document]:
    tables = OrderTables()
    for change in (*SNAPSHOT, *(change for transaction in TRANSACTIONS for change in transaction.changes)):
        tables.apply(change.table, change.key, change.after)
    return {k: document for k in (1, 2) if (document := tables.document(k)) is not None}


@pytest.fixture
def output() -> Output:
    tables, records, commits, offset, previous = OrderTables(), {}, [], 0, 0
    touched = {k for change in SNAPSHOT for k in tables.apply(change.table, change.key, change.after)}
    for transaction in TRANSACTIONS:
        lsn, first = transaction.commit_lsn, offset
        for change in transaction.changes:
            touched |= tables.apply(change.table, change.key, change.after)
        for order_id in sorted(touched):
            records[0, offset] = OutputRecord(0, offset, order_id, lsn, tables.document(order_id))
            offset += 1
        ranges = {TOPIC: {0: OffsetRange(offset - first, first, offset - 1)}}
        commits.append(commit(lsn, previous, ranges))
        offset, previous, touched = offset + 1, lsn, set()
    return Output(records, commits)


def commit(lsn: int, previous: int, offsets: dict[str, dict[int, OffsetRange]]) -> CommitRecord:
    return CommitRecord(
        pipeline="orders",
        source="inv",
        timeline=1,
        commit_lsn=lsn,
        previous_lsn=previous,
        xid=None,
        commit_ts_ms=lsn,
        offsets=offsets,
    )


def test_a_right_output_has_no_findings(output: Output) -> None:
    assert output.findings().counts == {}


def test_a_document_without_one_of_its_lines_is_torn_and_wrong(output: Output) -> None:
    place = output.place_of(2, 100)
    document = output.records[place].document
    assert document is not None
    output.change(place, document={**document, "lines": document["lines"][:1]})
    assert set(output.findings().counts) == {Kind.TORN, Kind.WRONG_STATE}


def test_a_total_that_is_a_cent_off_is_torn(output: Output) -> None:
    place = output.place_of(1, 300)
    document = output.records[place].document
    assert document is not None
    output.change(place, document={**document, "total": "6.01"})
    assert output.findings().count(Kind.TORN) == 1


def test_something_else_than_an_order_document_is_torn(output: Output) -> None:
    output.change(output.place_of(1, 300), document={"hello": 1})
    assert output.findings().count(Kind.TORN) == 1


def test_a_vanished_record_is_lost_twice_over_by_count_and_by_state(output: Output) -> None:
    del output.records[output.place_of(2, 200)]
    assert output.findings().counts == {Kind.LOST: 2}


def test_a_lost_batch_with_its_commit_record_is_found_by_state_alone(output: Output) -> None:
    del output.records[output.place_of(1, 300)]
    del output.commits[2]
    findings = output.findings()
    assert findings.count(Kind.LOST) == 1
    assert findings.count(Kind.HOLE) == 1
    assert findings.count(Kind.WRONG_FINAL) == 1


def test_a_missing_end_of_the_output_is_lost(output: Output) -> None:
    del output.records[output.place_of(2, 400)]
    del output.commits[3]
    findings = output.findings()
    assert "after the last commit record" in findings.examples[Kind.LOST][0]


def test_a_record_written_again_is_repeated_and_covered_by_no_commit(output: Output) -> None:
    last = max(output.records)
    again = (0, last[1] + 5)
    output.records[again] = replace(output.records[last], offset=again[1])
    assert set(output.findings().counts) == {Kind.REPEATED, Kind.UNCOVERED}


def test_a_batch_written_again_with_its_commit_record_is_found_by_its_lsn(output: Output) -> None:
    last = max(output.records)
    again = (0, last[1] + 5)
    output.records[again] = replace(output.records[last], offset=again[1])
    ranges = {TOPIC: {0: OffsetRange(1, again[1], again[1])}}
    output.commits.append(replace(output.commits[-1], offsets=ranges))
    assert {Kind.LSN_ORDER, Kind.REPEATED} <= set(output.findings().counts)


def test_an_unchanged_document_published_once_more_is_repeated(output: Output) -> None:
    output.records[0, 90] = OutputRecord(0, 90, 1, 400, output.records[output.place_of(1, 300)].document)
    output.commits[3] = commit(400, 300, {TOPIC: {0: OffsetRange(2, output.place_of(2, 400)[1], 90)}})
    assert output.findings().counts == {Kind.REPEATED: 1}


def test_a_whole_but_outdated_document_differs_from_its_lsns_state(output: Output) -> None:
    output.change(output.place_of(1, 300), document=output.records[output.place_of(1, 200)].document)
    assert output.findings().counts == {Kind.WRONG_STATE: 1, Kind.WRONG_FINAL: 1}


def test_a_wrong_final_state_is_compared_with_the_database_exactly(output: Output) -> None:
    final = final_documents(output.records.values())
    findings = Findings()
    check_final({1: {**final[1], "total": "6.0"}, 3: {}}, database(), findings)
    assert findings.counts == {Kind.WRONG_FINAL: 2}


def test_a_deleted_order_that_stays_in_the_view_is_a_wrong_final_state(output: Output) -> None:
    del output.records[output.place_of(2, 400)]
    assert output.findings().count(Kind.WRONG_FINAL) == 1


def test_commit_records_whose_lsn_goes_back_are_found(output: Output) -> None:
    output.commits[1], output.commits[2] = output.commits[2], output.commits[1]
    assert output.findings().count(Kind.LSN_ORDER) == 1


def test_records_of_a_partition_whose_lsn_goes_back_are_found(output: Output) -> None:
    output.change(output.place_of(1, 200), commit_lsn=350)
    findings = output.findings()
    assert findings.count(Kind.LSN_ORDER) == 1
    assert findings.count(Kind.UNCOVERED) == 1


def test_a_record_without_lsn_header_is_found(output: Output) -> None:
    output.change(output.place_of(1, 200), commit_lsn=None)
    assert output.findings().count(Kind.UNCOVERED) == 1


@pytest.mark.parametrize("key", [b'{"id": 7}', b"[7]", b"7"])
def test_record_keys_are_read_in_any_json_form(key: bytes) -> None:
    assert read_order_id(key) == 7


def test_of_many_findings_a_few_examples_are_kept() -> None:
    findings = Findings()
    for number in range(100):
        findings.add(Kind.TORN, str(number))
    assert findings.count(Kind.TORN) == 100
    assert findings.examples[Kind.TORN] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("written", "published"),
    [
        ("2026-01-01T10:11:12Z", "2026-01-01T10:11:12.000000Z"),
        ("2026-01-01T10:11:12.5Z", "2026-01-01T10:11:12.500000Z"),
        ("2026-01-01T10:11:12.123456Z", "2026-01-01T10:11:12.123456Z"),
    ],
)
def test_timestamps_are_compared_with_all_their_decimals(written: str, published: str) -> None:
    assert with_microseconds(written) == published
