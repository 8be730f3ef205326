"""Has the certifier judge the run: every document, every commit, the final state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import psycopg

from slackwater_certify import (
    Certificate,
    Connections,
    Mode,
    Specification,
    certify,
    load_specification,
    read_records,
)
from slackwater_protocol.keys import commit_topic
from slackwater_testing.errors import RunFailedError


def demo_specification(pipeline: Path, output: str) -> Specification:
    """Returns the pipeline's ``certify.toml``, for the topic it writes to.

    Raises:
        CertifyConfigError: there is none, or it cannot be used.
    """
    specification = load_specification(pipeline)
    topics = replace(specification.output, name=output, commits=commit_topic(output))
    return replace(specification, output=topics)


def judge(
    specification: Specification,
    *,
    bootstrap: str,
    dsn: str,
    arrivals: Mapping[int, int],
    since_ms: int,
    on_progress: Callable[[str], None],
) -> Certificate:
    """Compares output, source topics and database; nothing may be written meanwhile.

    Args:
        specification: What the pipeline promises.
        bootstrap: The stack's broker.
        dsn: The stack's database.
        arrivals: By commit LSN, when a reader had the commit record; milliseconds since the epoch.
        since_ms: Delays of transactions committed before are left out.
        on_progress: Is told what is being done.

    Raises:
        RunFailedError: the database itself breaks the invariant.
        CertifyError: a topic cannot be read.
    """
    with psycopg.connect(dsn) as connection:
        broken = broken_orders(connection)
        if broken:
            raise RunFailedError("the writers", f"broke the invariant in PostgreSQL itself: {broken}")
    connections = Connections(bootstrap=bootstrap, dsn=dsn)
    records = read_records(specification, connections)
    commits = [
        replace(commit, visible_ms=arrivals.get(commit.lsn, commit.visible_ms)) for commit in records.commits
    ]
    return certify(
        specification,
        connections,
        mode=Mode.BOTH,
        records=replace(records, commits=commits, clock="arrival at a reader"),
        delays_since_ms=since_ms,
        on_progress=on_progress,
    )


def broken_orders(connection: psycopg.Connection[tuple[object, ...]]) -> list[tuple[int, int, Decimal]]:
    """Returns orders whose header contradicts their lines: then the workload, not Slackwater, is wrong."""
    rows = connection.execute(
        "SELECT o.id, o.line_count, o.total FROM inventory.orders o LEFT JOIN ("
        "  SELECT order_id, count(*) AS n, sum(quantity * price) AS amount"
        "  FROM inventory.order_lines GROUP BY order_id) l ON l.order_id = o.id "
        "WHERE o.line_count <> coalesce(l.n, 0) OR o.total <> coalesce(l.amount, 0) LIMIT 10"
    ).fetchall()
    return [(row[0], row[1], row[2]) for row in rows]  # type: ignore[misc]


def count_orders(dsn: str) -> int:
    """Counts the orders in PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM inventory.orders").fetchone()
    return int(str(row[0])) if row else 0
