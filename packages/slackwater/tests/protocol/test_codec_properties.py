"""Whatever is encoded is decoded as it was, byte for byte the same when encoded again."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.protocol import (
    AheadMarkers,
    CommitRecord,
    CommittedTransaction,
    Cut,
    Hold,
    InputError,
    Lease,
    MalformedRecordError,
    Marker,
    OffsetRange,
    OpenTransaction,
    PassDecision,
    PipelineRegistration,
    PipelineReport,
    ProgressRecord,
    Refusal,
    RegisteredStage,
    RegisteredView,
    RunEnd,
    SkipDecision,
    StageWork,
    TimelineDecision,
    TopicState,
    decode_commit_record,
    decode_cut,
    decode_lease_record,
    decode_log_record,
    decode_marker,
    decode_open_transaction,
    decode_pipeline_record,
    decode_progress_record,
    encode_commit_record,
    encode_cut,
    encode_lease_record,
    encode_log_record,
    encode_marker,
    encode_open_transaction,
    encode_pipeline_record,
    encode_progress_record,
)

names = st.text(min_size=1, max_size=20)
lsns = st.integers(0, 2**63 - 1)
offsets = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**45)
xids = st.integers(0, 2**32 - 1)
partitions = st.integers(0, 5000)
timelines = st.integers(1, 1000)
committed = st.builds(CommittedTransaction, xids, lsns, times)
tables = st.lists(committed, max_size=20).map(tuple)
markers = st.builds(Marker, lsns, offsets)
counts = st.dictionaries(names, st.integers(0, 2**40), max_size=5)
skipped = st.lists(xids, max_size=4).map(tuple)
lsn_sets = st.frozensets(lsns, max_size=5)

cuts = st.builds(
    Cut,
    source=names,
    timeline=timelines,
    lsn=lsns,
    previous_lsn=lsns,
    commit_ts_ms=times,
    event_count=st.integers(0, 2**60),
    transactions=tables,
    end_offsets=st.dictionaries(names, st.lists(offsets, max_size=8).map(tuple), max_size=4),
    transaction_offset=offsets,
    repeated=lsn_sets,
    late_snapshots=st.lists(lsns, max_size=3, unique=True).map(sorted).map(tuple),
    has_incremental_rows=st.booleans(),
    skipped=skipped,
    barrier_lsn=lsns,
)
ahead = st.builds(
    AheadMarkers,
    source=names,
    timeline=timelines,
    previous_lsn=lsns,
    lsn=lsns,
    transactions=tables,
    markers=st.dictionaries(st.tuples(names, partitions), markers, max_size=6),
    repeated=lsn_sets,
)
skips = st.builds(
    SkipDecision,
    source=names,
    timeline=timelines,
    to_lsn=lsns,
    wall_ms=times,
    decided_by=st.text(max_size=20),
    reason=st.text(max_size=20),
)
new_timelines = st.builds(
    TimelineDecision,
    source=names,
    timeline=timelines,
    transaction_offset=offsets,
    wall_ms=times,
    decided_by=st.text(max_size=20),
    reason=st.text(max_size=20),
)
passes = st.builds(
    PassDecision,
    source=names,
    log_offset=offsets,
    wall_ms=times,
    decided_by=st.text(max_size=20),
    reason=st.text(max_size=20),
)
refusals = st.builds(
    Refusal,
    source=names,
    timeline=timelines,
    since_lsn=lsns,
    newest_lsn=lsns,
    reason=st.text(max_size=20),
)
ranges = st.builds(OffsetRange, st.integers(0, 2**40), offsets, offsets)
plain_commits = st.builds(
    CommitRecord,
    pipeline=names,
    source=names,
    timeline=timelines,
    commit_lsn=lsns,
    previous_lsn=lsns,
    xid=st.none() | xids,
    commit_ts_ms=times,
    offsets=st.dictionaries(
        names,
        st.dictionaries(partitions, ranges, max_size=4),
        max_size=3,
    ),
    skipped=skipped,
)
described_commits = st.builds(
    lambda record, below_ms, schemas: replace(
        record, commit_ts_ns=record.commit_ts_ms * 10**6 + below_ms, schemas=schemas
    ),
    plain_commits,
    st.integers(0, 10**6 - 1),
    st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=3),
)
commits = plain_commits | described_commits
topic_states = st.builds(
    lambda topic_id, places, raised, views: TopicState(
        topic_id, tuple(a for a, _ in places), tuple(b for _, b in places), raised[0], raised[1], views
    ),
    st.text(max_size=30),
    st.lists(st.tuples(offsets, offsets), max_size=8),
    st.just((None, 0)) | st.tuples(times, times),
    st.lists(names, max_size=2).map(tuple),
)
progress = st.builds(
    ProgressRecord,
    pipeline=names,
    query_id=names,
    batch_id=st.integers(-1, 2**60),
    source=names,
    timeline=timelines,
    commit_lsn=lsns,
    run=names,
    topics=st.dictionaries(names, topic_states, max_size=4),
    state=names,
)
opened = st.builds(
    OpenTransaction,
    xid=xids,
    commit_lsn=st.none() | lsns,
    since_ms=times,
    expected=counts,
    received=counts,
    hint=st.text(max_size=30),
    places=st.dictionaries(names, st.tuples(st.integers(-1, 2**60), offsets), max_size=4),
)
texts = st.text(max_size=20)
name_lists = st.lists(names, max_size=3).map(tuple)
stage_numbers = st.lists(st.integers(1, 99), max_size=3).map(tuple)
registrations = st.builds(
    PipelineRegistration,
    pipeline=names,
    base_name=names,
    revision=st.integers(1, 99),
    owner=texts,
    source=names,
    timeline=timelines,
    emit=names,
    scope=names,
    tables=st.dictionaries(names, names, max_size=3),
    stages=st.lists(
        st.builds(
            RegisteredStage,
            number=st.integers(1, 99),
            level=st.integers(1, 99),
            key=name_lists,
            tables=name_lists,
            stages=stage_numbers,
            why=texts,
        ),
        max_size=3,
    ).map(tuple),
    views=st.lists(
        st.builds(
            RegisteredView,
            name=names,
            output=names,
            kind=names,
            format=texts,
            output_source=texts,
            tables=name_lists,
            stages=stage_numbers,
        ),
        max_size=3,
    ).map(tuple),
    query_id=names,
    checkpoint=names,
    run=names,
    host=names,
    pid=xids,
    version=names,
    started_ms=times,
)
reports = st.builds(
    PipelineReport,
    pipeline=names,
    run=names,
    batch_id=st.integers(-1, 2**60),
    timeline=timelines,
    commit_lsn=lsns,
    commit_ts_ms=st.none() | times,
    visible_ms=st.none() | times,
    parts_us=counts,
    events=offsets,
    documents=offsets,
    run_events=offsets,
    run_documents=offsets,
    processed_lsn=st.none() | lsns,
    state_bytes=counts,
    stage_work=st.lists(
        st.builds(
            StageWork,
            stage=st.integers(1, 99),
            total_us=offsets,
            tasks=offsets,
            slowest_us=offsets,
            slowest_task=offsets,
        ),
        max_size=2,
    ).map(tuple),
    end=st.none() | st.builds(RunEnd, ended_ms=times, failure=texts),
)

leases = st.builds(
    Lease,
    id=names,
    source=texts,
    timeline=offsets,
    commit_lsn=offsets,
    pipelines=st.lists(texts).map(tuple),
    holder=texts,
    taken_ms=times,
    expires_ms=times,
)
holds = st.builds(Hold, lease=texts, pipeline=texts, until_ms=times, refusal=texts)

Codec = tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]
CODECS: dict[str, Codec] = {
    "cut": (cuts, encode_cut, decode_cut),
    "record of the cut log": (
        st.one_of(cuts, ahead, skips, new_timelines, passes, refusals),
        encode_log_record,
        decode_log_record,
    ),
    "commit record": (commits, encode_commit_record, decode_commit_record),
    "progress record": (progress, encode_progress_record, decode_progress_record),
    "marker": (markers, encode_marker, decode_marker),
    "open transaction": (opened, encode_open_transaction, decode_open_transaction),
    "record of the topic of leases": (leases | holds, encode_lease_record, decode_lease_record),
    "record of the topic of pipelines": (
        registrations | reports,
        encode_pipeline_record,
        decode_pipeline_record,
    ),
}
MANY = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("kind", CODECS)
def test_any_record_survives_the_codec(kind: str) -> None:
    records, encode, decode = CODECS[kind]

    @MANY
    @given(record=records)
    def check(record: Any) -> None:
        data = encode(record)
        assert decode(data) == record
        assert encode(decode(data)) == data

    check()


@pytest.mark.parametrize("kind", CODECS)
def test_no_damage_to_a_record_raises_anything_but_the_two_errors(kind: str) -> None:
    records, encode, decode = CODECS[kind]

    @MANY
    @given(record=records, at=st.floats(0, 1), with_=st.binary(max_size=3), length=st.integers(0, 5))
    def check(record: Any, at: float, with_: bytes, length: int) -> None:
        data = encode(record)
        begin = int(at * len(data))
        with suppress(InputError):
            decode(data[:begin] + with_ + data[begin + length :])

    check()


@pytest.mark.parametrize("kind", CODECS)
def test_nothing_that_is_no_record_is_taken_for_one(kind: str) -> None:
    _, _, decode = CODECS[kind]

    @MANY
    @given(data=st.binary(max_size=60))
    def check(data: bytes) -> None:
        with pytest.raises(MalformedRecordError):
            decode(data)

    check()
