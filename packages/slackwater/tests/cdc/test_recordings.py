"""The frontier on what a real connector wrote, spread over partitions and read in several orders."""

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from slackwater.cdc import Frontier
from slackwater.protocol import SNAPSHOT_XID, Cut, OpenTransaction
from slackwater.protocol.keys import notification_topic, transaction_topic
from slackwater_lab.debezium.records import partition_of

RECORDINGS = Path(__file__).parent / "recordings"
Spot = tuple[str, int]


@dataclass(frozen=True)
class Record:
    value: bytes | None
    run: str
    is_keyless: bool
    xid: int | None
    moment: int


@dataclass(frozen=True)
class Outcome:
    cuts: list[Cut]
    open: list[OpenTransaction]
    obstacles: list[str]

    @property
    def commits(self) -> list[tuple[int, int]]:
        return [(t.xid, t.commit_lsn) for cut in self.cuts for t in cut.transactions]


def load(name: str, partitions: int) -> tuple[str, dict[Spot, list[Record]]]:
    """The topics as a consumer finds them: a crashed run, then the next one."""
    files = [f for f in (RECORDINGS / f"{name}{part}.tsv" for part in ("", ".run1", ".run2")) if f.exists()]
    lines = [line.split("\t") for file in files for line in file.read_text().splitlines()]
    announcing = (".transaction", ".notif", ".notifications")
    source = next(line[0] for line in lines if line[0].endswith(announcing)).split(".")[0]
    topics: dict[Spot, list[Record]] = defaultdict(list)
    for moment, (topic, _, key, value, headers, *_) in enumerate(lines):
        if topic in (f"{source}.message", f"__debezium-heartbeat.{source}"):
            continue
        name = notification_topic(source) if topic == f"{source}.notif" else topic
        is_single = name in (notification_topic(source), transaction_topic(source))
        spot = name, 0 if is_single else partition_of(key.encode(), partitions)
        run = next(
            (h.split("=")[1] for h in headers.split(";") if h.startswith("__debezium.context.runId")), ""
        )
        body = None if value == "null" else value.encode()
        topics[spot].append(Record(body, run, key == "null", xid_of(body), moment))
    return source, topics


def xid_of(body: bytes | None) -> int | None:
    document = json.loads(body) if body else {}
    source = document.get("payload", document).get("source")
    xid: int | None = source["txId"] if source else None
    return xid


def follow(name: str, partitions: int, seed: int) -> Outcome:
    rng = random.Random(seed)
    source, topics = load(name, partitions)
    data = sorted({topic for topic, _ in topics} - {transaction_topic(source), notification_topic(source)})
    tables = frozenset(topic.removeprefix(f"{source}.") for topic in data)
    frontier = Frontier(source, complete_tables=tables)
    readers = {
        (topic, number): frontier.add_partition(topic, number, 0)
        for topic in data
        for number in range(partitions)
    }
    positions: dict[Spot, int] = defaultdict(int)
    cuts: list[Cut] = []
    while left := [spot for spot in topics if positions[spot] < len(topics[spot])]:
        spot = rng.choice(left)
        offset = positions[spot]
        record = topics[spot][offset]
        positions[spot] += 1
        if spot in readers:
            pair = [(offset, record.value)]
            readers[spot].read(pair, record.run, timestamp_ms=record.moment + 1, is_keyless=record.is_keyless)
        elif spot[0] == transaction_topic(source):
            frontier.read_transactions([(offset, record.value, record.moment + 1)])
        else:
            frontier.read_notifications([(offset, record.value)])
        frontier.advance()
        cuts += frontier.cuts()
    for _ in range(5):
        frontier.rest({spot: len(topics[spot]) for spot in topics})
        if frontier.end_offsets_wanted:
            frontier.end_offsets({spot: len(topics[spot]) for spot in topics})
        frontier.rest({spot: len(topics[spot]) for spot in topics})
        frontier.advance()
        cuts += frontier.cuts()
    return Outcome(cuts, frontier.open_transactions(), [str(o) for o in frontier.obstacles])


def ends_of(name: str) -> list[tuple[int, int]]:
    """The commits with change events, by the ENDs of a recording without repeats."""
    _, topics = load(name, 1)
    records = [json.loads(record.value or b"{}") for spot in topics for record in topics[spot]]
    ids = [r["id"].split(":") for r in records if r.get("status") == "END" and r["event_count"] > 0]
    return [(int(xid), int(lsn)) for xid, lsn in ids]


CASES: dict[str, list[tuple[int, int]]] = {
    "commit_order_differs_from_lsn_order": [(775, 22607312), (774, 22607488)],
    "end_sent_twice": [(813, 22719328)],
    "initial_snapshot": [(SNAPSHOT_XID, 22270008)],
    "insert_update_delete_key_update": [
        (736, 22270488),
        (737, 22270664),
        (738, 22270864),
        (739, 22270976),
        (741, 22271560),
        (743, 22275136),
        (746, 22275976),
        (750, 22300552),
        (752, 22301112),
        (751, 22301168),
        (753, 22301280),
        (754, 22301408),
        (755, 22301520),
        (756, 22301648),
        (757, 22302304),
        (758, 22302648),
    ],
    "parallel_snapshot": [(SNAPSHOT_XID, 22716016)],
    "restart_mid_transaction": [(770, 22581320), (771, 22581496)],
    "restart_renumbers_3_4_1": [(777, 22608392), (778, 22608568)],
    "slot_behind_offset": [(804, 22714776), (803, 22715080)],
    "snapshot_crash": [(SNAPSHOT_XID, 22715864)],
    "truncates_messages_zero_counts": [
        (786, 22706504),
        (787, 22706832),
        (790, 22707568),
        (791, 22707896),
        (792, 22708312),
        (793, 22708640),
        (794, 22709032),
        (795, 22709360),
        (796, 22709752),
        (797, 22710080),
        (798, 22710472),
    ],
}


@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_commit_of_a_recording_is_published_once(name: str, partitions: int) -> None:
    for seed in range(20):
        outcome = follow(name, partitions, seed)

        assert outcome.obstacles == []
        assert outcome.commits == CASES[name], f"seed {seed}: {outcome.open}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_mixed_stream_ends_at_its_last_commit(partitions: int) -> None:
    outcome = follow("streaming_mix", partitions, 1)

    assert outcome.cuts[-1].lsn == 22719096
    assert outcome.open == []


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_transaction_of_which_the_connector_lost_rows_is_waited_for_and_named(partitions: int) -> None:
    """Debezium before 3.7 loses rows of COPY in a crash; another row then has one of their numbers."""
    for seed in range(20):
        outcome = follow("restart_inside_copy", partitions, seed)

        assert outcome.commits == []
        assert [t.xid for t in outcome.open] == [773]
        assert "numbered again" in outcome.open[0].hint


SNAPSHOTS = {
    "blocking_snapshot": [26405056],
    "incremental_snapshot": [26405056],
    "incremental_snapshot_idle": [26403760],
    "parallel_snapshot_3_7": [26715584],
    "snapshot_empty_and_one_row_tables": [26465104],
    "snapshot_of_nothing": [],
}
"""LSNs of the snapshots whose rows are exactly of that LSN."""


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("name", sorted(SNAPSHOTS))
def test_snapshots_and_every_commit_around_them_are_published_once(name: str, partitions: int) -> None:
    expected = [(SNAPSHOT_XID, lsn) for lsn in SNAPSHOTS[name]] + ends_of(name)
    for seed in range(10):
        outcome = follow(name, partitions, seed)

        assert (outcome.obstacles, outcome.open) == ([], [])
        assert outcome.commits == expected, f"seed {seed}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_no_cut_ends_between_rows_of_a_blocking_snapshot_and_what_they_contain_already(
    partitions: int,
) -> None:
    """The rows are at LSN 26407992 and hold a change that was committed at 26408544."""
    for seed in range(20):
        cuts = follow("blocking_snapshot", partitions, seed).cuts
        showing = [cut for cut in cuts if cut.late_snapshots]

        assert {lsn for cut in showing for lsn in cut.late_snapshots} == {26407992}
        for cut in showing:
            assert cut.lsn >= 26408544, f"seed {seed}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_snapshot_that_was_repeated_after_a_crash_is_shown_with_a_commit_after_it(partitions: int) -> None:
    """Or when there is none for long: here the connector writes nothing more."""
    for seed in range(20):
        cuts = follow("snapshot_crash_3_7", partitions, seed).cuts

        assert [(cut.lsn, cut.late_snapshots) for cut in cuts] == [(26405184, (26404968,))], f"seed {seed}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_an_interrupted_blocking_snapshot_left_behind_hold_nothing_up(partitions: int) -> None:
    xids = [SNAPSHOT_XID, 733, 735, 736, 737, 738, 739]
    for seed in range(20):
        outcome = follow("blocking_snapshot_crash", partitions, seed)

        assert (outcome.obstacles, outcome.open) == ([], [])
        assert [xid for xid, _ in outcome.commits] == xids, f"seed {seed}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_of_two_snapshots_a_reader_sees_the_first_and_all_behind_it_or_begins_with_the_second(
    partitions: int,
) -> None:
    first, second = 26404032, 26408776
    for seed in range(40):
        cuts = follow("snapshot_on_existing_slot", partitions, seed).cuts

        if cuts[0].lsn < second:
            beginning = cuts[0].transactions[0]
            assert (beginning.xid, beginning.commit_lsn) == (SNAPSHOT_XID, first), f"seed {seed}"
            assert cuts[-1].lsn < second, f"seed {seed}: rows deleted in between are not known"
        else:
            assert second in cuts[0].late_snapshots, f"seed {seed}"


@pytest.mark.parametrize("partitions", [1, 3])
def test_cuts_tell_where_rows_of_an_incremental_snapshot_are(partitions: int) -> None:
    _, topics = load("incremental_snapshot", partitions)
    places = [
        (topic, number, offset)
        for (topic, number), records in topics.items()
        for offset, record in enumerate(records)
        if b'"snapshot":"incremental"' in (record.value or b"")
    ]
    for seed in range(20):
        before: Mapping[str, tuple[int, ...]] = {}
        for cut in follow("incremental_snapshot", partitions, seed).cuts:
            holds = any(
                before.get(topic, (0,) * partitions)[number] <= offset < cut.end_offsets[topic][number]
                for topic, number, offset in places
                if topic in cut.end_offsets
            )
            assert cut.has_incremental_rows or not holds, f"seed {seed}, cut {cut.lsn}"
            before = cut.end_offsets


def test_repeated_rows_are_named_by_the_cut() -> None:
    for name, lsn in (("restart_mid_transaction", 22581320), ("restart_renumbers_3_4_1", 22608392)):
        outcome = follow(name, 2, 3)

        assert lsn in frozenset().union(*(c.repeated for c in outcome.cuts))


def test_the_snapshot_comes_before_everything_that_is_streamed() -> None:
    outcome = follow("initial_snapshot", 3, 5)

    assert outcome.cuts[0].transactions[0].is_snapshot
    assert outcome.cuts[0].event_count == 4
