"""Every row of a recorded commit lies below the end offsets of its cut and above those of the cut before."""

import random
from pathlib import Path

import pytest

from slackwater.protocol.keys import notification_topic, transaction_topic
from slackwater_lab.debezium.recording import RecordedRecord, Recording, Spot, follow
from slackwater_lab.debezium.records import RUN_HEADER, partition_of

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = [
    "commit_order_differs_from_lsn_order",
    "end_sent_twice",
    "initial_snapshot",
    "insert_update_delete_key_update",
    "parallel_snapshot",
    "restart_mid_transaction",
    "restart_renumbers_3_4_1",
    "slot_behind_offset",
    "snapshot_crash",
    "streaming_mix",
    "truncates_messages_zero_counts",
]


def load(name: str, partitions: int) -> Recording:
    """One recording, the runs around a crash one after the other, spread over partitions by key."""
    files = [f for f in (RECORDINGS / f"{name}{part}.tsv" for part in ("", ".run1", ".run2")) if f.exists()]
    lines = [line.split("\t") for file in files for line in file.read_text().splitlines()]
    source = lines[0][0].removeprefix("__debezium-heartbeat.").split(".")[0]
    topics: dict[Spot, list[RecordedRecord]] = {}
    for moment, (topic, _, key, value, headers, *_) in enumerate(lines, 1):
        if topic in (f"{source}.message", f"__debezium-heartbeat.{source}"):
            continue
        is_single = topic in (f"{source}.notif", transaction_topic(source))
        name = notification_topic(source) if topic == f"{source}.notif" else topic
        records = topics.setdefault((name, 0 if is_single else partition_of(key.encode(), partitions)), [])
        run = dict(part.partition("=")[::2] for part in headers.split(";")).get(RUN_HEADER, "")
        body, key_bytes = (None if text == "null" else text.encode() for text in (value, key))
        records.append(RecordedRecord(len(records), moment, run, key_bytes, body))
    return Recording(source, topics)


@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_cuts_hold_all_rows_of_their_commits_in_any_order_of_reading(name: str, partitions: int) -> None:
    recording = load(name, partitions)
    oracle = recording.oracle()
    assert oracle.commits
    for seed in range(20):
        cuts = follow(recording, random.Random(seed), transactions_first=seed % 3 == 0, longest=4)

        assert oracle.complaints(cuts) == [], f"seed {seed}"
        assert cuts[-1].lsn >= oracle.commits[-1][0], f"seed {seed}"


@pytest.mark.parametrize("name", NAMES)
def test_offsets_behind_the_last_record_hold_nothing_up(name: str) -> None:
    recording = load(name, 2)
    ends = {spot: recording.end(spot) + 3 for spot in recording.topics}
    cuts = follow(Recording(recording.source, recording.topics, ends), random.Random(1))
    assert cuts[-1].lsn >= recording.oracle().commits[-1][0]


@pytest.mark.parametrize("name", NAMES)
def test_a_frontier_that_goes_on_from_any_cut_holds_them_as_well(name: str) -> None:
    recording = load(name, 2)
    oracle = recording.oracle()
    for seed in range(10):
        rng = random.Random(seed)
        whole = follow(recording, rng, longest=4)
        for number in range(1, len(whole)):
            cuts = follow(recording, rng, longest=4, before=whole[:number])

            assert oracle.complaints([*whole[:number], *cuts]) == [], f"seed {seed}, from cut {number}"
