"""The states of leases, from the records of their topic."""

from dataclasses import replace

import pytest

from slackwater.control import LeaseState, is_over, lease_standings
from slackwater.protocol import CommitPosition, Hold, Lease, LeaseRecord

LEASE = Lease(
    id="4f",
    source="inv",
    timeline=2,
    commit_lsn=7,
    pipelines=("orders", "stock"),
    holder="somebody",
    taken_ms=1_000,
    expires_ms=2_000,
)
ORDERS = Hold(lease="4f", pipeline="orders", until_ms=2_000)
STOCK = Hold(lease="4f", pipeline="stock", until_ms=2_000)


@pytest.mark.parametrize(
    ("records", "now_ms", "state", "waits_for"),
    [
        ([LEASE], 1_500, LeaseState.TAKEN, ("orders", "stock")),
        ([ORDERS, LEASE], 1_500, LeaseState.TAKEN, ("stock",)),
        ([LEASE, ORDERS, STOCK], 1_999, LeaseState.HELD, ()),
        ([LEASE, ORDERS, STOCK], 2_000, LeaseState.OVER, ()),
        ([LEASE, ORDERS, replace(STOCK, refusal="no history")], 1_500, LeaseState.REFUSED, ()),
        ([LEASE, replace(ORDERS, until_ms=1_999), STOCK], 1_500, LeaseState.TAKEN, ("orders",)),
        ([LEASE, replace(ORDERS, lease="5"), STOCK], 1_500, LeaseState.TAKEN, ("orders",)),
    ],
)
def test_a_lease_is_held_when_each_of_its_pipelines_says_so_to_its_end(
    records: list[LeaseRecord], now_ms: int, state: LeaseState, waits_for: tuple[str, ...]
) -> None:
    (found,) = lease_standings(records, now_ms)
    assert (found.state, found.waits_for) == (state, waits_for)


def test_refusals_name_their_pipelines() -> None:
    (found,) = lease_standings([LEASE, ORDERS, replace(STOCK, refusal="no history")], 1_500)
    assert found.refusals == {"stock": "no history"}


def test_leases_stand_in_the_order_in_which_they_end_and_holds_without_one_are_nothing() -> None:
    later = replace(LEASE, id="3", expires_ms=3_000)
    assert [each.lease.id for each in lease_standings([later, LEASE], 0)] == ["4f", "3"]
    assert lease_standings([ORDERS, STOCK], 0) == []


def test_a_lease_is_over_at_its_end_and_knows_its_commit() -> None:
    assert not is_over(LEASE, 1_999)
    assert is_over(LEASE, 2_000)
    assert LEASE.position == CommitPosition(2, 7)
