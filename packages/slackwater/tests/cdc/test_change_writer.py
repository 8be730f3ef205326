"""Numbers in written events, and what END counts, over several tables in any order."""

import json
from typing import Any

from slackwater.cdc.change_writer import ChangeWriter, EventSource, WrittenCommit


def test_tables_may_be_written_again_and_end_counts_all_events() -> None:
    """Readers compare the numbers of a transaction's events with what END counts."""
    changes = ChangeWriter(EventSource("inv", "shop"), WrittenCommit(107, 100, 50, 1_000), 2_000)
    found: list[Any] = []
    for table, count in (("orders", 2), ("lines", 3), ("orders", 1)):
        writer = changes.table("s", table)
        found += [json.loads(writer.event(None, b'{"id":1}')) for _ in range(count)]

    orders = [event["transaction"] for event in found if event["source"]["table"] == "orders"]
    assert [each["data_collection_order"] for each in orders] == [1, 2, 3]
    assert [event["transaction"]["total_order"] for event in found] == [1, 2, 3, 4, 5, 6]
    end = json.loads(changes.boundaries().end)
    assert end["event_count"] == 6
    assert {each["data_collection"]: each["event_count"] for each in end["data_collections"]} == {
        "s.orders": 3,
        "s.lines": 3,
    }
