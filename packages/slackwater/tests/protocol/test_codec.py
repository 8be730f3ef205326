import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import (
    END_OF_TIME_MS,
    PROTOCOL_VERSION,
    AheadMarkers,
    CommitRecord,
    CommittedTransaction,
    Cut,
    Hold,
    InputError,
    Lease,
    LeaseRecord,
    MalformedRecordError,
    Marker,
    OffsetRange,
    OpenTransaction,
    PassDecision,
    PipelineRecord,
    PipelineRegistration,
    PipelineReport,
    ProgressRecord,
    ReaderSwitch,
    Refusal,
    RegisteredStage,
    RegisteredView,
    RunEnd,
    SkipDecision,
    StageWork,
    TimelineDecision,
    TopicState,
    commit_id,
    decode_commit_record,
    decode_cut,
    decode_lease_record,
    decode_log_record,
    decode_marker,
    decode_open_transaction,
    decode_pipeline_record,
    decode_progress_record,
    decode_reader_switch,
    encode_commit_record,
    encode_cut,
    encode_lease_record,
    encode_log_record,
    encode_marker,
    encode_open_transaction,
    encode_pipeline_record,
    encode_progress_record,
    encode_reader_switch,
    lease_record_key,
    pipeline_record_key,
)

VECTORS = Path(__file__).parent / "vectors"

CUT = Cut(
    source="inv",
    timeline=0,
    lsn=22270488,
    previous_lsn=22270008,
    commit_ts_ms=1795206861409,
    event_count=3,
    transactions=(
        CommittedTransaction(4294967295, 22270100, 1795206861400),
        CommittedTransaction(3, 22270488, 1795206861409),
    ),
    end_offsets={"inv.inventory.orders": (3, 0), "inv.inventory.order_lines": (7,)},
    transaction_offset=4,
    repeated=frozenset({22270100}),
    skipped=(3,),
    late_snapshots=(22270056,),
    has_incremental_rows=True,
)
CUT_WITH_BARRIER = replace(CUT, barrier_lsn=22270100)
CUT_WITH_END = replace(CUT_WITH_BARRIER, ended_ms=1795206861450)
COMMIT = CommitRecord(
    pipeline="orders",
    source="inv",
    timeline=0,
    commit_lsn=22270488,
    previous_lsn=22270008,
    xid=None,
    commit_ts_ms=1795206861409,
    offsets={"orders_with_lines": {0: OffsetRange(2, 5, 7)}},
    skipped=(3,),
)
DESCRIBED_COMMIT = replace(
    COMMIT,
    timeline=1,
    xid=751,
    commit_ts_ns=1795206861409123456,
    offsets={
        "orders": {0: OffsetRange(2, 5, 7), 3: OffsetRange(1, 9, 9)},
        "stock": {1: OffsetRange(4, 0, 3)},
    },
    schemas={"orders": ("orders:3",), "stock": ("stock:3",)},
)
PROGRESS = ProgressRecord(
    pipeline="orders", query_id="q", batch_id=7, source="inv", timeline=0, commit_lsn=22270488
)
PROGRESS_WITH_TOPICS = replace(
    PROGRESS, run="9f", topics={"orders_with_lines": TopicState("tpIc", (0, 3), (8, 3))}
)
PROGRESS_RAISED = replace(
    PROGRESS_WITH_TOPICS,
    topics={
        "orders_with_lines": TopicState("tpIc", (0, 3), (8, 3), lag_ms=600_000, raised_ms=1795206861409),
        "totals": TopicState("", (0,), (0,)),
    },
)
PROGRESS_OF_CHAIN = replace(PROGRESS, source="order_totals", root="inv", first_lsn=7)
PROGRESS_SHARED = replace(
    PROGRESS_WITH_TOPICS,
    topics={"shop": TopicState("tpIc", (0, 3), (8, 3), views=("customers", "orders"))},
)
LEASE = Lease(
    id="4f",
    source="inv",
    timeline=0,
    commit_lsn=22270488,
    pipelines=("orders", "stock.v2"),
    holder="reports on host-7",
    taken_ms=1795206861409,
    expires_ms=1795207461409,
)
HOLD = Hold(lease="4f", pipeline="stock.v2", until_ms=1795207461409, refusal="its tables have no history")
PROGRESS_WITH_STATE = replace(PROGRESS_WITH_TOPICS, state="00000000000000000007-1f")
OPEN = OpenTransaction(
    xid=751,
    commit_lsn=None,
    since_ms=1795206861409,
    expected={"inventory.orders": 2},
    received={},
    hint="ü",
    places={"inv.inventory.orders/0": (-1, 7)},
)
AHEAD = AheadMarkers(
    source="inv",
    timeline=1,
    lsn=22270488,
    previous_lsn=22270008,
    transactions=(CommittedTransaction(751, 22270488, 1795206861409),),
    markers={("inv.inventory.orders", 2): Marker(22270488, 9)},
    repeated=frozenset({22270488}),
)
SKIP = SkipDecision(
    source="inv", timeline=1, to_lsn=22270488, wall_ms=1795206861409, decided_by="ann@host", reason="filter"
)
TIMELINE = TimelineDecision(
    source="inv", timeline=2, transaction_offset=77, wall_ms=1795206861409, decided_by="ann@host", reason=""
)
PASS = PassDecision(source="inv", log_offset=17, wall_ms=1795206861409, decided_by="ann@host", reason="disk")
REFUSAL = Refusal(
    source="inv", timeline=1, since_lsn=22270100, newest_lsn=22270488, reason="time.precision.mode: connect"
)
REGISTRATION = PipelineRegistration(
    pipeline="orders.v2",
    base_name="orders",
    revision=2,
    owner="team shop",
    source="inv",
    timeline=1,
    emit="transactions",
    scope="strict",
    tables={"inventory.orders": "inv.inventory.orders", "inventory.order_lines": "elsewhere"},
    stages=(
        RegisteredStage(
            number=1,
            level=1,
            key=("id",),
            tables=("inventory.order_lines", "inventory.orders"),
            stages=(),
            why="joins",
        ),
        RegisteredStage(number=2, level=2, key=(), tables=(), stages=(1,), why="computes groups"),
    ),
    views=(
        RegisteredView(
            name="orders",
            output="shop.public.orders",
            kind="kafka",
            format="debezium",
            output_source="shop",
            tables=("inventory.order_lines", "inventory.orders"),
            stages=(1, 2),
        ),
    ),
    query_id="7f1c",
    checkpoint="/var/lib/slackwater/orders.v2",
    run="a0",
    host="host-7",
    pid=4711,
    version="0.1.0",
    started_ms=1795206861409,
)
REPORT = PipelineReport(
    pipeline="orders.v2",
    run="a0",
    batch_id=7,
    timeline=1,
    commit_lsn=22270488,
    commit_ts_ms=1795206861409,
    visible_ms=1795206861809,
    parts_us={"plan": 1200, "commit": 4100},
    events=3,
    documents=2,
    run_events=30,
    run_documents=20,
    end=RunEnd(ended_ms=1795206862409, failure="QueryFailedError: why"),
)
WORK = StageWork(stage=2, total_us=900, tasks=3, slowest_us=700, slowest_task=1)
SWITCH = ReaderSwitch(
    base_name="orders",
    pipeline="orders.v2",
    revision=2,
    source="inv",
    timeline=1,
    commit_lsn=22270488,
    views={"order_details": "order_details.v2"},
    switched_ms=1795206861809,
)
CODECS: dict[str, tuple[Any, Any, Any]] = {
    "cut": (CUT, encode_cut, decode_cut),
    "cut_with_barrier": (CUT_WITH_BARRIER, encode_cut, decode_cut),
    "cut_with_end": (CUT_WITH_END, encode_cut, decode_cut),
    "commit_record": (COMMIT, encode_commit_record, decode_commit_record),
    "commit_record_described": (DESCRIBED_COMMIT, encode_commit_record, decode_commit_record),
    "progress_record": (PROGRESS, encode_progress_record, decode_progress_record),
    "progress_record_with_topics": (PROGRESS_WITH_TOPICS, encode_progress_record, decode_progress_record),
    "progress_record_with_raised_topics": (PROGRESS_RAISED, encode_progress_record, decode_progress_record),
    "progress_record_of_chain": (PROGRESS_OF_CHAIN, encode_progress_record, decode_progress_record),
    "progress_record_with_views": (PROGRESS_SHARED, encode_progress_record, decode_progress_record),
    "lease": (LEASE, encode_lease_record, decode_lease_record),
    "hold": (HOLD, encode_lease_record, decode_lease_record),
    "progress_record_with_state": (PROGRESS_WITH_STATE, encode_progress_record, decode_progress_record),
    "marker": (Marker(22270488, 3), encode_marker, decode_marker),
    "open_transaction": (OPEN, encode_open_transaction, decode_open_transaction),
    "ahead_markers": (AHEAD, encode_log_record, decode_log_record),
    "skip_decision": (SKIP, encode_log_record, decode_log_record),
    "timeline_decision": (TIMELINE, encode_log_record, decode_log_record),
    "pass_decision": (PASS, encode_log_record, decode_log_record),
    "refusal": (REFUSAL, encode_log_record, decode_log_record),
    "pipeline_registration": (REGISTRATION, encode_pipeline_record, decode_pipeline_record),
    "pipeline_registration_identified": (
        replace(REGISTRATION, stages=tuple(replace(each, identity="9f00") for each in REGISTRATION.stages)),
        encode_pipeline_record,
        decode_pipeline_record,
    ),
    "pipeline_report_processed": (
        replace(REPORT, processed_lsn=22270500, state_bytes={"1": 4096}, stage_work=(WORK,)),
        encode_pipeline_record,
        decode_pipeline_record,
    ),
    "pipeline_report": (REPORT, encode_pipeline_record, decode_pipeline_record),
    "reader_switch": (SWITCH, encode_reader_switch, decode_reader_switch),
}
VERSION_1 = {
    "cut": replace(CUT, skipped=(), late_snapshots=(), has_incremental_rows=False),
    "commit_record": replace(COMMIT, skipped=()),
    "progress_record": PROGRESS,
    "marker": Marker(22270488, 3),
    "open_transaction": replace(OPEN, places={}),
}


@pytest.mark.parametrize("name", CODECS)
def test_the_golden_vector_of_version_2_is_what_we_write_and_read(name: str) -> None:
    value, encode, decode = CODECS[name]
    golden = (VECTORS / f"{name}.v2.json").read_bytes().strip()
    assert encode(value) == golden
    assert decode(golden) == value


def test_when_a_cut_ended_is_read_and_makes_it_no_other_cut() -> None:
    found = decode_cut(encode_cut(CUT_WITH_END))
    assert found.ended_ms == CUT_WITH_END.ended_ms
    assert found == CUT_WITH_BARRIER


@pytest.mark.parametrize("name", VERSION_1)
def test_the_golden_vector_of_version_1_is_still_read(name: str) -> None:
    assert CODECS[name][2]((VECTORS / f"{name}.v1.json").read_bytes()) == VERSION_1[name]


def test_a_cut_is_a_record_of_the_cut_log() -> None:
    assert decode_log_record((VECTORS / "cut.v1.json").read_bytes()) == VERSION_1["cut"]
    assert decode_log_record(encode_log_record(CUT)) == CUT


@pytest.mark.parametrize("name", CODECS)
def test_a_newer_version_is_refused_with_a_hint(name: str) -> None:
    value, encode, decode = CODECS[name]
    newer = encode(value).replace(b'"v":2', b'"v":3')
    with pytest.raises(InputError, match=f"up to {PROTOCOL_VERSION}; upgrade the readers"):
        decode(newer)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"v":1}',
        b'{"v":"1"}',
        b'{"v":true}',
        b"\xff",
        b"[" * 50_000,
        b'{"v":' * 50_000,
    ],
)
def test_bytes_that_are_no_record_are_named(name: str, data: bytes) -> None:
    with pytest.raises(MalformedRecordError, match="not a readable"):
        CODECS[name][2](data)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place in a JSON value that is no list or object, and every list and object."""
    yield path, tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from leaves(value, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copied


NOT_A: dict[type, tuple[Any, ...]] = {
    int: ("text", "7", 1.5, True, None, [1], {}, -(2**70), 2**64),
    str: (7, 1.5, True, None, [], {}, "\ud800"),
    bool: (7, "true", None, [], {}),
    type(None): ("text", "7", 1.5, True, [1], {}, -(2**70), 2**64),
    list: (7, "text", True, None, {"a": 1}, [None], ["text"], [1.5], [[[]]]),
    dict: (7, "text", True, None, [1], {"a": "text"}, {"\ud800": []}),
}
NULLABLE = ("xid", "commit_lsn", "commit_ts_ms", "visible_ms", "end")
TEXT_LISTS = ("schemas", "key", "tables", "pipelines")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name in CODECS
        for field in ("commit_ts", "since", "wall_ms", "started_ms", "commit_ts_ms", "visible_ms", "until_ms")
    ],
)
def test_a_moment_that_nobody_can_show_is_refused(name: str, field: str) -> None:
    fields = json.loads((VECTORS / f"{name}.v2.json").read_bytes())
    if "commit_ts_ns" in fields:
        fields["commit_ts_ns"] = (END_OF_TIME_MS - 1) * 10**6
    if field in fields:
        CODECS[name][2](json.dumps({**fields, field: END_OF_TIME_MS - 1}).encode())
        with pytest.raises(MalformedRecordError, match=f"{field} holds a number out of range"):
            CODECS[name][2](json.dumps({**fields, field: END_OF_TIME_MS}).encode())


@pytest.mark.parametrize("name", CODECS)
def test_a_value_of_another_type_or_size_is_never_taken_into_a_record(name: str) -> None:
    """It would break a reader that compares or adds it, far from where it was read."""
    _, _, decode = CODECS[name]
    fields = json.loads((VECTORS / f"{name}.v2.json").read_bytes())
    damaged = [
        (path, other)
        for path, was in leaves(fields)
        for other in NOT_A[type(was)]
        if not (other is None and path[-1:] and path[-1] in NULLABLE)
        and not (other in (["text"], {"a": "text"}) and any(each in TEXT_LISTS for each in path))
        and not (name == "progress_record_with_views" and path[:1] == ("views",) and other == ["text"])
        and not (name == "reader_switch" and path == ("views",) and other == {"a": "text"})
    ]
    taken = []
    for path, other in damaged:
        with suppress(MalformedRecordError):
            decode(json.dumps(replaced(fields, path, other)).encode())
            taken.append((path, other))
    assert taken == []


@pytest.mark.parametrize(
    "report", [replace(REPORT, end=None), replace(REPORT, commit_ts_ms=None, visible_ms=None)]
)
def test_a_report_may_lack_its_end_and_its_times(report: PipelineReport) -> None:
    assert decode_pipeline_record(encode_pipeline_record(report)) == report


def test_each_kind_of_record_of_each_run_has_its_key() -> None:
    others: list[PipelineRecord] = [REPORT, replace(REPORT, run="8"), replace(REPORT, pipeline="p")]
    others += [REGISTRATION, replace(REGISTRATION, run="8"), replace(REGISTRATION, pipeline="p")]
    assert len({pipeline_record_key(record) for record in others}) == len(others)
    assert pipeline_record_key(replace(REPORT, batch_id=8)) == pipeline_record_key(REPORT)


def test_a_lease_and_what_each_pipeline_says_to_it_have_keys_of_their_own() -> None:
    others: list[LeaseRecord] = [LEASE, replace(LEASE, id="5"), HOLD, replace(HOLD, pipeline="orders")]
    assert len({lease_record_key(record) for record in others}) == len(others)
    assert lease_record_key(replace(LEASE, expires_ms=0)) == lease_record_key(LEASE)
    assert lease_record_key(replace(HOLD, refusal="")) == lease_record_key(HOLD)


def test_nanoseconds_that_nobody_can_show_are_refused() -> None:
    data = encode_commit_record(
        replace(
            DESCRIBED_COMMIT,
            commit_ts_ms=END_OF_TIME_MS - 1,
            commit_ts_ns=END_OF_TIME_MS * 10**6 - 1,
        )
    )
    decode_commit_record(data)
    with pytest.raises(MalformedRecordError, match="commit_ts_ns does not match commit_ts"):
        decode_commit_record(
            data.replace(b"%d" % (END_OF_TIME_MS * 10**6 - 1), b"%d" % (END_OF_TIME_MS * 10**6))
        )


def test_a_record_of_a_kind_that_nobody_knows_is_not_taken_for_a_cut() -> None:
    fields = json.loads(encode_cut(CUT))
    with pytest.raises(MalformedRecordError, match="kind is 'later'"):
        decode_log_record(json.dumps({**fields, "kind": "later"}).encode())
    with pytest.raises(MalformedRecordError, match="kind is 'later'"):
        decode_pipeline_record(encode_pipeline_record(REPORT).replace(b'"report"', b'"later"'))


@pytest.mark.parametrize("column", ["xids", "lsns", "times"])
def test_a_transaction_table_with_a_column_that_is_shorter_is_no_record(column: str) -> None:
    fields = json.loads(encode_cut(CUT))
    with pytest.raises(MalformedRecordError):
        decode_cut(json.dumps({**fields, column: fields[column][:-1]}).encode())


def test_a_cut_names_topics_of_tables_without_a_snapshot() -> None:
    cut = replace(CUT, without_snapshot=("inv.inventory.orders",))
    assert decode_cut(encode_cut(cut)) == cut
    assert b"no_snapshot" not in encode_cut(CUT)


def test_a_snapshot_is_the_transaction_without_a_number() -> None:
    assert CommittedTransaction(0, 22270488, 0).is_snapshot
    assert not CommittedTransaction(751, 22270488, 0).is_snapshot


@pytest.mark.parametrize(
    "topics", ["7", '{"t":["a",[0],[1,2]]}', '{"t":[7,[0],[1]]}', '{"t":["a",[0]]}', '{"t":["a",[-1],[0]]}']
)
def test_a_progress_record_whose_topics_are_damaged_is_no_record(topics: str) -> None:
    text = (VECTORS / "progress_record.v2.json").read_text().strip().removesuffix("}")
    with pytest.raises(MalformedRecordError):
        decode_progress_record(f'{text},"topics":{topics}}}'.encode())


def test_errors_travel_between_processes() -> None:
    error = MalformedRecordError("cut", "no offsets")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


transactions = st.lists(
    st.builds(
        CommittedTransaction,
        st.integers(0, 2**32 - 1),
        st.integers(1, 2**63 - 1),
        st.integers(0, 2**45),
    ),
    max_size=20,
).map(tuple)


@given(transactions=transactions, lsn=st.integers(0, 2**63 - 1), previous=st.integers(0, 2**63 - 1))
def test_any_transaction_table_survives_the_codec(
    transactions: tuple[CommittedTransaction, ...], lsn: int, previous: int
) -> None:
    cut = Cut(
        source="ü {x}",
        timeline=3,
        lsn=lsn,
        previous_lsn=previous,
        commit_ts_ms=0,
        event_count=len(transactions),
        transactions=transactions,
        end_offsets={},
        transaction_offset=0,
    )
    assert decode_cut(encode_cut(cut)) == cut


def test_a_cut_of_ten_thousand_transactions_fits_in_a_default_kafka_record() -> None:
    table = tuple(CommittedTransaction(700 + i, 10**15 + 480 * i, 1795206861409 + i) for i in range(10_000))
    cut = Cut(
        source="inv",
        timeline=0,
        lsn=table[-1].commit_lsn,
        previous_lsn=0,
        commit_ts_ms=0,
        event_count=0,
        transactions=table,
        end_offsets={f"inv.inventory.t{i}": tuple([10**12] * 64) for i in range(100)},
        transaction_offset=0,
    )
    assert len(encode_cut(cut)) < 300_000


def test_vectors_are_json() -> None:
    for path in VECTORS.glob("*.json"):
        assert path.name.endswith(f".v{json.loads(path.read_bytes())['v']}.json")


def test_a_commit_record_counts_its_documents_in_all_topics_and_partitions() -> None:
    assert DESCRIBED_COMMIT.record_counts == {"orders": 3, "stock": 4}
    assert DESCRIBED_COMMIT.record_count == 7


def test_commit_ids_sort_as_text_in_commit_order() -> None:
    places = [(1, 9), (1, 10), (1, 2**40), (2, 1), (9, 1), (10, 0), (255, 2**64 - 1), (256, 0)]
    ids = [commit_id(timeline, lsn) for timeline, lsn in places]
    assert ids == sorted(ids)
    assert ids[0] == "00000001-0000000000000009"


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        (b'"id":"00000001-000000000153D218"', b'"id":"00000001-000000000153D219"'),
        (b'"commit_ts_ns":1795206861409', b'"commit_ts_ns":1795206861408'),
        (b'"record_count":7', b'"record_count":8'),
        (b'"record_counts":{"orders":3', b'"record_counts":{"orders":2'),
        (b'"commit_ts_ns":1795206861409123456', b'"commit_ts_ns":-1'),
        (b'["orders:3"]', b"[3]"),
    ],
)
def test_a_commit_record_that_contradicts_itself_is_refused(written: bytes, wrong: bytes) -> None:
    data = encode_commit_record(DESCRIBED_COMMIT)
    assert written in data
    with pytest.raises(MalformedRecordError):
        decode_commit_record(data.replace(written, wrong))
