"""The orders view in Quix Streams: both topics grouped by order, concatenated, a stateful function."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from quixstreams import Application, State
from quixstreams.models import TopicConfig

PARTITIONS = 4
NOTHING = b""
"""For lines whose order has not been read."""
Change = dict[str, Any]


def order_changes(event: dict[str, Any]) -> Iterator[Change]:
    """An order's change, for its own order."""
    row = event["after"] or event["before"]
    yield {"order": row["id"], "row": event["after"], "kind": "order"}


def line_changes(event: dict[str, Any]) -> Iterator[Change]:
    """A line's change, for the order it leaves and the one it comes to."""
    before, after = event["before"], event["after"]
    if before is not None and (after is None or after["order_id"] != before["order_id"]):
        yield {"order": before["order_id"], "line": before["id"], "row": None, "kind": "line"}
    if after is not None:
        yield {"order": after["order_id"], "line": after["id"], "row": after, "kind": "line"}


def document(change: Change, state: State) -> bytes | None:
    """Takes the change into the order's state; what the order is now, None for a deleted one."""
    held: dict[str, Any] = state.get("order") or {"row": None, "lines": {}}
    if change["kind"] == "order":
        held["row"] = change["row"]
    elif change["row"] is None:
        held["lines"].pop(str(change["line"]), None)
    else:
        held["lines"][str(change["line"])] = change["row"]
    state.set("order", held)
    order = held["row"]
    if order is None:
        return None if change["kind"] == "order" else NOTHING
    lines = (held["lines"][name] for name in sorted(held["lines"], key=int))
    return orjson.dumps(
        {
            **{name: order[name] for name in ("id", "customer", "status", "line_count", "total")},
            "lines": [
                {name: line[name] for name in ("id", "product", "quantity", "price")} for line in lines
            ],
        }
    )


def main() -> None:
    """Runs until it is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--input-prefix", "--output", "--folder"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    application = Application(
        broker_address=arguments.bootstrap,
        consumer_group=f"quix-{arguments.output}",
        auto_offset_reset="earliest",
        commit_interval=5.0,
        use_changelog_topics=True,
        state_dir=Path(arguments.folder) / "state",
        producer_extra_config={"linger.ms": 5, "compression.type": "lz4"},
        consumer_extra_config={"fetch.wait.max.ms": 20},
        consumer_poll_timeout=0.1,
        loglevel="WARNING",
    )
    _build(application, arguments.input_prefix, arguments.output)
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    application.run()


def _build(application: Application, prefix: str, output: str) -> None:
    grouped = []
    for table, expand in (("orders", order_changes), ("order_lines", line_changes)):
        topic = application.topic(f"{prefix}.inventory.{table}", key_deserializer="bytes")
        frame = application.dataframe(topic).filter(lambda event: event is not None)
        frame = frame.apply(expand, expand=True)
        grouped.append(
            frame.group_by(
                lambda change: str(change["order"]),
                name="order",
                key_serializer="str",
                key_deserializer="str",
            )
        )
    documents = grouped[0].concat(grouped[1]).apply(document, stateful=True)
    documents = documents.filter(lambda value: value is None or value != NOTHING)
    config = TopicConfig(num_partitions=PARTITIONS, replication_factor=1)
    documents.to_topic(
        application.topic(output, key_serializer="str", value_serializer="bytes", config=config)
    )


if __name__ == "__main__":
    main()
