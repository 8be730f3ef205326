"""What ``slackwater status`` says."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from slackwater.commands.status import status_lines
from slackwater_markers import FrontierState, FrontierStatus, InMemoryMarkerStore
from slackwater_protocol import Cut, OpenTransaction, PublishedCut, epoch_ms

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = epoch_ms(NOW)


def published(lsn: int) -> PublishedCut:
    cut = Cut(
        source="inv",
        timeline=1,
        lsn=lsn,
        previous_lsn=0,
        commit_ts_ms=NOW_MS - 400,
        event_count=12345,
        transactions=(),
        end_offsets={"inv.a": (1, 2)},
        transaction_offset=3,
    )
    return PublishedCut(cut, 0)


def running(seconds_ago: int = 1, detail: str = "") -> FrontierStatus:
    wall_ms = NOW_MS - 1000 * seconds_ago
    return FrontierStatus(state=FrontierState.RUNNING, detail=detail, wall_ms=wall_ms, sidecar="host/7")


@pytest.fixture
def store() -> InMemoryMarkerStore:
    store = InMemoryMarkerStore()
    store.put_cut(published(0x1_0000_00FF), running())
    return store


def text(store: InMemoryMarkerStore) -> str:
    return "\n".join(status_lines(store, "inv", 1, NOW))


def test_an_unknown_source_gets_advice() -> None:
    assert "no sidecar has reported" in text(InMemoryMarkerStore())


def test_the_frontier_is_shown_as_postgresql_prints_it_with_its_age(store: InMemoryMarkerStore) -> None:
    assert "1/FF (4294967551)" in text(store)
    assert "0.4 s ago" in text(store)
    assert "12,345 in 1 topics, 2 partitions" in text(store)


def test_a_sidecar_without_a_cut_shows_its_state() -> None:
    store = InMemoryMarkerStore()
    store.set_status("inv", running(detail="the topic inv.transaction does not exist"))
    assert "running: the topic inv.transaction does not exist" in text(store)
    assert "no cut yet" in text(store)


def test_a_silent_sidecar_is_pointed_out(store: InMemoryMarkerStore) -> None:
    assert "silent" not in text(store)
    store.set_status("inv", running(seconds_ago=60))
    assert "silent" in text(store)


def test_open_transactions_say_what_is_missing(store: InMemoryMarkerStore) -> None:
    assert "open transactions: none" in text(store)
    waiting = OpenTransaction(
        xid=77,
        commit_lsn=1,
        since_ms=NOW_MS - 5000,
        expected={"inventory.orders": 3},
        received={"inventory.orders": 1, "inventory.order_lines": 2},
    )
    store.set_open("inv", [waiting])
    assert "xid 77" in text(store)
    assert "inventory.order_lines 2 / ?, inventory.orders 1 / 3" in text(store)


def test_the_timeline_that_the_sidecar_follows_is_shown(store: InMemoryMarkerStore) -> None:
    second = replace(published(0xAA).cut, timeline=2)
    store.put_cut(PublishedCut(second, 1), replace(running(), timeline=2))
    assert "inv, timeline 2" in text(store)
    assert "0/AA" in text(store)


def test_a_sidecar_that_gave_up_is_not_called_silent(store: InMemoryMarkerStore) -> None:
    store.set_status("inv", replace(running(60, "offsets are gone"), state=FrontierState.FAILED))
    assert "failed: offsets are gone" in text(store)
    assert "silent" not in text(store)
