"""The state of a source in words, and which transactions are named."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import pytest

from slackwater.cdc import Frontier, Obstacle
from slackwater.cdc.commits import Regression
from slackwater.cdc.completeness import WAITS_FOR_OTHERS
from slackwater.cuts import FrontierState
from slackwater.protocol import KafkaSettings, OpenTransaction, Servers
from slackwater_sidecar import SidecarSettings
from slackwater_sidecar.status import OpenTransactions, state_of

SETTINGS = SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1")))
TOPICS = ["inv.s.a"]


@dataclass
class FrontierStub:
    """Stands in for a frontier."""

    waiting: list[OpenTransaction] = field(default_factory=list)
    obstacles: list[Obstacle] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    regression: Regression | None = None
    stale_end_count: int = 0
    lsn: int = 0x20
    missing_snapshot: str = ""
    is_in_snapshot: bool = False
    without_snapshot: dict[str, str] = field(default_factory=dict)

    def open_transactions(self, limit: int) -> list[OpenTransaction]:
        return self.waiting[:limit]

    def missing_tables(self) -> list[str]:
        return self.missing


def transaction(xid: int, hint: str = "rows are missing") -> OpenTransaction:
    return OpenTransaction(xid=xid, commit_lsn=16, since_ms=0, expected={}, received={}, hint=hint)


def obstacle(offset: int, *, is_misconfiguration: bool = False) -> Obstacle:
    return Obstacle("inv.s.a", 0, offset, "cannot be read", is_misconfiguration=is_misconfiguration)


def named(watch: OpenTransactions, *waiting: OpenTransaction, at: float) -> list[tuple[int, int]]:
    """Ids, and since when, at this many seconds by both clocks."""
    frontier = cast(Frontier, FrontierStub(list(waiting)))
    return [(t.xid, t.since_ms) for t in watch.update(frontier, at, int(at * 1000))]


def state(frontier: FrontierStub, *open_: OpenTransaction) -> tuple[FrontierState, str]:
    return state_of(SETTINGS, cast(Frontier, frontier), TOPICS, open_)


@pytest.fixture
def watch() -> OpenTransactions:
    return OpenTransactions(timedelta(seconds=10))


def test_a_transaction_is_named_with_the_time_from_which_it_was_waited_for(watch: OpenTransactions) -> None:
    assert named(watch, transaction(7), at=5) == []
    assert named(watch, transaction(7), transaction(8), at=14.9) == []
    assert named(watch, transaction(7), transaction(8), at=15) == [(7, 5_000)]
    assert named(watch, transaction(7), transaction(8), at=30) == [(7, 5_000), (8, 14_900)]


def test_the_first_one_is_named_also_when_it_lacks_nothing_itself(watch: OpenTransactions) -> None:
    waiting = [transaction(7, WAITS_FOR_OTHERS), transaction(8, WAITS_FOR_OTHERS), transaction(9)]
    named(watch, *waiting, at=0)

    assert [xid for xid, _ in named(watch, *waiting, at=10)] == [7, 9]


def test_what_was_not_waited_for_meanwhile_begins_anew(watch: OpenTransactions) -> None:
    named(watch, transaction(7), at=0)
    named(watch, at=5)

    assert named(watch, transaction(7), at=20) == []
    assert named(watch, transaction(7), at=30) == [(7, 20_000)]


def test_the_first_obstacle_is_shown_and_how_many_there_are() -> None:
    first, other = obstacle(3), obstacle(9, is_misconfiguration=True)
    place = "inv.s.a/0 offset 3: cannot be read"

    assert state(FrontierStub(obstacles=[first])) == (
        FrontierState.BAD_INPUT,
        f"{place}; no cut goes past it",
    )
    assert state(FrontierStub(obstacles=[first, other, other])) == (
        FrontierState.BAD_INPUT,
        f"{place} (and 2 more); no cut goes past it",
    )
    assert state(FrontierStub(obstacles=[other]))[0] is FrontierState.MISCONFIGURED


def test_without_topics_the_tables_are_named_that_were_asked_for() -> None:
    names = [f"s.{letter}" for letter in "abcdefgh"]  # the order of a set of fewer is often this one
    settings = SidecarSettings(source="inv", servers=Servers(KafkaSettings("h:1")), tables=frozenset(names))

    assert state_of(settings, cast(Frontier, FrontierStub()), [], []) == (
        FrontierState.WAITING,
        f"no topic found for {', '.join(names)} at h:1",
    )


def test_a_table_without_a_topic_is_waited_for_by_name() -> None:
    found, detail = state(FrontierStub(missing=["s.b", "s.c"]), transaction(7))

    assert found is FrontierState.WAITING
    assert detail.startswith("no topic found for s.b, s.c (topics are created with the first change")


def test_a_snapshot_that_is_open_is_a_wait_and_a_transaction_a_stall() -> None:
    assert state(FrontierStub(), transaction(0), transaction(7))[0] is FrontierState.WAITING
    assert state(FrontierStub(), transaction(7)) == (
        FrontierState.STALLED,
        "transaction 7 (commit 0/10): rows are missing",
    )


@pytest.mark.parametrize(("xid", "what"), [(7, "transaction 7"), (0, "an initial snapshot")])
def test_lsns_that_went_back_are_told_before_anything_else(xid: int, what: str) -> None:
    back = Regression(transaction_offset=4, xid=xid, commit_lsn=16, newest_lsn=32)
    found, detail = state(FrontierStub(regression=back, obstacles=[obstacle(3)]))

    assert found is FrontierState.REGRESSED
    assert detail.startswith(f"LSNs went back: {what} at 0/10 after 0/20")


def test_commits_below_the_frontier_are_told_when_there_are_many() -> None:
    assert state(FrontierStub(stale_end_count=100_000)) == (FrontierState.RUNNING, "")
    assert state(FrontierStub(stale_end_count=100_001)) == (
        FrontierState.RUNNING,
        "the last 100001 commits were at or below 0/20: repeats, or LSNs that went back",
    )


@pytest.mark.parametrize(
    ("is_in_snapshot", "expected"), [(False, FrontierState.MISCONFIGURED), (True, FrontierState.WAITING)]
)
def test_a_source_without_a_snapshot_says_why_and_what_helps(
    *, is_in_snapshot: bool, expected: FrontierState
) -> None:
    frontier_stub = FrontierStub(missing_snapshot="it was skipped", is_in_snapshot=is_in_snapshot)
    found, detail = state(frontier_stub, transaction(7))

    assert found is expected
    assert detail.startswith("the source has had no snapshot: it was skipped; nothing of it is shown")
    assert "snapshot.mode=initial" in detail


def test_tables_without_a_snapshot_are_named_while_all_others_are_followed() -> None:
    found, detail = state(FrontierStub(without_snapshot={f"inv.s.{letter}": "none" for letter in "gfedcba"}))

    assert found is FrontierState.RUNNING
    assert detail.startswith("inv.s.a: none; inv.s.b: none; ")
    assert (
        " (and 2 more topics); pipelines that read this are refused: let the connector take an ad" in detail
    )
