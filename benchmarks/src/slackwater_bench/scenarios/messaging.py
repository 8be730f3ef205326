"""The ways to make messages and a database one transaction: what each costs, and keeps."""

from dataclasses import asdict

from slackwater_bench.messaging.crashes import RECEIVED, Cell, broken_promises, crash
from slackwater_bench.messaging.receiving import measure_receiving
from slackwater_bench.messaging.sending import measure_sending
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_lab.errors import RunFailedError
from slackwater_lab.messaging.sending.ways import WAYS

RATE = 100


def run_messaging(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    measure = measure_receiving if parameters["way"] in RECEIVED else measure_sending
    found = measure(parameters, context)
    latency = found["latency_ms"]
    return Measured(latency["p99"], found)


def _points(seconds: int, flat_out: int, backlog: int) -> tuple[Parameters, ...]:
    sizes: dict[str, int | float | str] = {"rate": RATE, "seconds": seconds}
    return (
        *({"way": way, **sizes, "flat_out_seconds": flat_out} for way in WAYS),
        *({"way": way, **sizes, "backlog": backlog} for way in RECEIVED),
    )


MESSAGING = Scenario(
    name="messaging",
    version=1,
    unit="ms, p99",
    direction=Direction.LOWER,
    measures="For sending, the time from the commit in PostgreSQL, by its commit timestamp, until a "
    "read_committed consumer has the message; it is below 0 if the message was visible first. For "
    "receiving, the time from the append of the message, by the broker's clock, until its effect "
    "is committed, or visible within Kafka. One process sends one message of 200 bytes in each "
    "business transaction, in an open loop. The other columns contain the messages per second of "
    "the same process at full speed; per message, at the steady rate, the statements and round "
    "trips to PostgreSQL (those of the business included) and the requests to Kafka that write, "
    "all counted on the wire; and the load of the database when nothing is sent. Debezium's own "
    "load is not counted.",
    why="It shows what each way of docs/messaging.md and docs/receiving-messages.md costs.",
    points=_points(5, 2, 5_000),
    quick_points=_points(2, 1, 1_000),
    run=run_messaging,
    columns=(
        "latency_ms.p50",
        "latency_ms.max",
        "messages_per_second",
        "per_message.statements",
        "per_message.round_trips",
        "per_message.kafka_requests",
        "idle.statements_per_second",
        "idle.cpu_percent",
        "table_bytes_per_message",
        "waiting_rows",
        "wal_bytes_per_message",
    ),
    threshold=0.25,
)


def run_messaging_crashes(parameters: Parameters, context: RunContext) -> Measured:
    """One run; a way that breaks its promise has no result."""
    name = str(parameters["way"])
    cells = crash(parameters, context)
    if broken := broken_promises(name, cells):
        raise RunFailedError(f"{name} has broken its promise", "; ".join(broken))
    total = sum(cells.values(), Cell(messages=0, lost=0, repeated=0))
    return Measured(
        total.cost,
        {"total": asdict(total), "cells": {place: asdict(cell) for place, cell in cells.items()}},
    )


MESSAGING_CRASHES = Scenario(
    name="messaging-crashes",
    version=1,
    unit="messages",
    direction=Direction.LOWER,
    measures="The number of messages that were lost, repeated, or shown before or without their data, over "
    "all places. A service is killed after every step and at random; a server is killed, a "
    "producer is fenced, or a transaction times out, just before and just after the first commit. "
    "If a way promises none of these and has some, the run fails.",
    why="It shows how each way of docs/messaging.md and docs/receiving-messages.md keeps its promise.",
    points=tuple({"way": way, "kills": 5} for way in (*WAYS, *RECEIVED)),
    quick_points=tuple({"way": way, "kills": 1} for way in (*WAYS, *RECEIVED)),
    run=run_messaging_crashes,
    columns=("total.messages", "total.lost", "total.repeated", "total.ghosts", "total.early"),
)
