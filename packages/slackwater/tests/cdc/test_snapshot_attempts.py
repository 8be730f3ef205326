"""Initial snapshots that are interrupted at random and read in random order: one attempt is shown whole."""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.cdc.initial_snapshot import Announcements, InitialSnapshot
from slackwater.protocol import SNAPSHOT_XID, Cut
from slackwater_lab.debezium.fed_source import FedSource, snapshot_row
from slackwater_lab.debezium.records import notification_value, partition_of

TABLES = "ab"
NOTIFICATIONS = "notifications"
SPOTS = [f"{table}/{number}" for table in TABLES for number in (0, 1)]


@dataclass
class Attempt:
    """One attempt, as far as it came into Kafka."""

    lsn: int
    places: list[tuple[str, int]] = field(default_factory=list)
    """Of its rows in Kafka."""
    is_whole: bool = False
    """Whether all of it is in Kafka."""


class Past:
    """What the topics contain after some attempts; the last one is whole."""

    def __init__(self, rng: random.Random) -> None:
        self.logs: dict[str, list[tuple[bytes, str]]] = defaultdict(list)
        self.attempts: list[Attempt] = []
        has_headers, now_ms, lsn = rng.random() < 0.5, 1_000_000, 8_000
        last = rng.randint(0, 3)
        for number in range(last + 1):
            lsn += rng.choice((0, 0, 0, 8, -8)) if number else 0
            self._take(rng, lsn, now_ms, f"r{number}" if has_headers else "", is_last=number == last)
            now_ms += rng.choice((300, 20_000))

    def _take(self, rng: random.Random, lsn: int, now_ms: int, run: str, *, is_last: bool) -> None:
        threads = [rng.randint(1, 20) for _ in range(rng.choice((1, 1, 3)))]
        keys = {table: rng.sample(range(12), rng.randint(0, 8)) for table in TABLES}
        keys[TABLES[0]] = keys[TABLES[0]] or [1]
        database_ms, early_ms = now_ms - rng.choice((0, 1, 150)), rng.choice((0, 0, 1))
        records: list[tuple[str, bytes]] = [(NOTIFICATIONS, notification_value("STARTED", ts_ms=now_ms))]
        for table, found in keys.items():
            for number, key in enumerate(found):
                began_ms = database_ms + rng.choice(threads)
                fields = json.loads(snapshot_row(lsn, key, ts_ms=began_ms, table=table))
                read_ms = now_ms - early_ms if number == 0 else now_ms + rng.randint(0, 100)
                value = json.dumps(fields | {"ts_ms": read_ms}).encode()
                records.append((f"{table}/{partition_of(b'%d' % key, 2)}", value))
            scanned = {"scanned_collection": f"inv.{table}", "total_rows_scanned": str(len(found))}
            records.append(
                (NOTIFICATIONS, notification_value("TABLE_SCAN_COMPLETED", ts_ms=now_ms + 99, **scanned))
            )
        records.append((NOTIFICATIONS, notification_value("COMPLETED", ts_ms=now_ms + 100)))
        self._write(rng, records, Attempt(lsn), run, is_last=is_last)

    def _write(
        self,
        rng: random.Random,
        records: Sequence[tuple[str, bytes]],
        attempt: Attempt,
        run: str,
        *,
        is_last: bool,
    ) -> None:
        """Of an interrupted one each partition loses an end of its own."""
        written = records if is_last else records[: rng.randint(1, len(records))]
        lost = {spot: 0 if is_last else rng.choice((0, 0, 1, 3)) for spot in (*SPOTS, NOTIFICATIONS)}
        kept = []
        for spot, value in reversed(written):
            if lost[spot]:
                lost[spot] -= 1
            else:
                kept.append((spot, value))
        for spot, value in reversed(kept):
            if spot != NOTIFICATIONS:
                attempt.places.append((spot, len(self.logs[spot])))
            self.logs[spot].append((value, run))
        attempt.is_whole = len(kept) == len(records)
        self.attempts.append(attempt)

    def read(self, rng: random.Random) -> tuple[FedSource, list[Cut]]:
        """A source that has read everything, in a random order, and its cuts."""
        source, cuts = FedSource(), list[Cut]()
        positions = dict.fromkeys(self.logs, 0)
        while left := [spot for spot, at in positions.items() if at < len(self.logs[spot])]:
            spot = rng.choice(left)
            first = positions[spot]
            positions[spot] = min(len(self.logs[spot]), first + rng.choice((1, 2, 50)))
            for value, run in self.logs[spot][first : positions[spot]]:
                if spot == NOTIFICATIONS:
                    source.notify(value)
                else:
                    source.row(spot, value, run=run)
            cuts += self._look(source, rng)
        return source, cuts + source.at_rest()

    def _look(self, source: FedSource, rng: random.Random) -> list[Cut]:
        ends = {_topic(spot): len(log) for spot, log in self.logs.items()}
        source.frontier.advance()
        if source.frontier.end_offsets_wanted:
            source.frontier.end_offsets(ends)
        if rng.random() < 0.3:
            source.frontier.rest(ends)
        source.frontier.advance()
        return source.frontier.cuts()

    def complaints(self, cuts: Sequence[Cut]) -> list[str]:
        """What is wrong with the first cut: it must hold all rows of an attempt that is whole."""
        if not cuts:
            return ["nothing is ever shown"]
        cut = cuts[0]
        shown = [t.commit_lsn for t in cut.transactions if t.xid == SNAPSHOT_XID] or list(cut.late_snapshots)
        fitting = [a for a in self.attempts if a.is_whole and [a.lsn] == shown and _is_in(a, cut)]
        if not fitting:
            return [f"cut {cut} holds no whole attempt"]
        if cut.event_count not in {len(a.places) for a in fitting}:
            return [f"cut {cut} counts other rows than those of the attempt"]
        return []


def _is_in(attempt: Attempt, cut: Cut) -> bool:
    places = ((*_topic(spot), offset) for spot, offset in attempt.places)
    return all(offset < cut.end_offsets[topic][number] for topic, number, offset in places)


def _topic(spot: str) -> tuple[str, int]:
    table, _, number = spot.partition("/")
    return (f"s.inv.{table}", int(number)) if number else (f"s.{table}", 0)


def judged(seed: int) -> list[str]:
    rng = random.Random(seed)
    past = Past(rng)
    source, cuts = past.read(rng)
    if any(attempt.is_whole for attempt in past.attempts[:-1]) and source.frontier.regression:
        return past.complaints(cuts)  # begun again after it was shown: an operator has to decide
    left = [] if not source.frontier.open_transactions() else ["something is still waited for"]
    return past.complaints(cuts) + left


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_newest_attempt_is_shown_whole_whatever_was_interrupted_before(seed: int) -> None:
    assert judged(seed) == []


@pytest.mark.parametrize("broken", ["the newest announcement for all", "all portions count", "lsn decides"])
def test_the_judge_complains_when_a_rule_is_taken_out(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breakages: dict[str, tuple[type, str, Callable[..., object]]] = {
        "the newest announcement for all": (Announcements, "announcement_at", lambda self, _: self.newest()),
        "all portions count": (InitialSnapshot, "_counts", _counts_of_all_portions),
        "lsn decides": (InitialSnapshot, "attempt", lambda s: [p for p in s.portions if p.lsn == s.lsn]),
    }
    monkeypatch.setattr(*breakages[broken])

    assert any(judged(seed) for seed in range(300))


def _counts_of_all_portions(self: InitialSnapshot) -> dict[str, tuple[int, int]]:
    newest = self._announced.newest()
    scanned = {} if newest is None else newest.scanned
    return {t: (count, sum(p.received.get(t, 0) for p in self.portions)) for t, count in scanned.items()}
