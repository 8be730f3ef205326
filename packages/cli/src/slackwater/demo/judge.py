"""Has the certifier judge the run: every document, every commit, the final state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from slackwater.demo.database import broken_orders, count_orders
from slackwater.demo.errors import WorkloadError
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is to say in the end."""

    certificate: Certificate
    orders: int
    """Number of orders in PostgreSQL."""


def demo_specification(pipeline: Path, output: str) -> Specification:
    """The pipeline's ``certify.toml``, for the topic it writes to.

    Raises:
        SpecificationError: there is none, or it cannot be used.
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
) -> Evidence:
    """Compares output, source topics and database; nothing may be written meanwhile.

    Args:
        specification: of the pipeline.
        bootstrap: the stack's broker.
        dsn: the stack's database.
        arrivals: by commit LSN, when a reader had the commit record; milliseconds since the epoch.
        since_ms: delays of transactions committed before are left out.
        on_progress: is told what is being done.

    Raises:
        WorkloadError: the database itself breaks the invariant.
        CertifyError: a topic cannot be read.
    """
    with psycopg.connect(dsn) as connection:
        broken = broken_orders(connection)
        if broken:
            raise WorkloadError(tuple(order_id for order_id, *_ in broken))
        orders = count_orders(connection)
    connections = Connections(bootstrap=bootstrap, dsn=dsn)
    records = read_records(specification, connections)
    commits = [
        replace(commit, visible_ms=arrivals.get(commit.lsn, commit.visible_ms)) for commit in records.commits
    ]
    certificate = certify(
        specification,
        connections,
        mode=Mode.BOTH,
        records=replace(records, commits=commits, clock="arrival at a reader"),
        delays_since_ms=since_ms,
        on_progress=on_progress,
    )
    return Evidence(certificate, orders)
