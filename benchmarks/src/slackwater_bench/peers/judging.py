"""The same checker for everybody: certificates against the committed states of the source."""

import json
from collections.abc import Callable
from pathlib import Path

from slackwater_bench.bed import SOURCE
from slackwater_bench.peers.registry import PROGRAMS, SLACKWATER, Peer
from slackwater_bench.peers.results import CertificateSummary
from slackwater_certify import (
    Connections,
    Mode,
    OutputRecords,
    Specification,
    certify,
    load_specification,
)
from slackwater_testing.workloads.orders import OrdersWorkload
from slackwater_testing.workloads.workload import Workload, repository_pipeline

SLACKWATER_PIPELINE = repository_pipeline("orders")
SLACKWATER_OUTPUT = "orders_with_lines"


def output_of(peer: Peer) -> str:
    """The topic that a peer's documents go to."""
    return SLACKWATER_OUTPUT if peer.name == SLACKWATER else f"documents.{peer.name}"


def specification_of(peer: Peer, folder: Path) -> Specification:
    """Makes the specification that a peer is judged by; ``folder`` takes its file.

    Slackwater by its pipeline's own specification, hence by the commit LSNs that its documents claim, too;
    the peers, which claim none, by whether each document is a committed state of its order.
    """
    if peer.name == SLACKWATER:
        return load_specification(SLACKWATER_PIPELINE / "certify.toml")
    text = (PROGRAMS / "certify.toml").read_text()
    for name, value in (
        ("output", output_of(peer)),
        ("source", SOURCE),
        ("schema", str(SLACKWATER_PIPELINE / "schema.sql")),
        ("view", str(PROGRAMS / "documents.sql")),
    ):
        text = text.replace(f'"${name}"', json.dumps(value))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "certify.toml"
    path.write_text(text)
    return load_specification(path)


def judge(
    specification: Specification,
    bootstrap: str,
    say: Callable[[str], None],
    *,
    records: OutputRecords | None = None,
    delays_since_ms: int | None = None,
) -> tuple[CertificateSummary, int]:
    """The verdict, and the number of change events that the source's topics hold."""
    certificate = certify(
        specification,
        Connections(bootstrap=bootstrap),
        mode=Mode.BOTH,
        records=records,
        delays_since_ms=delays_since_ms,
        on_progress=say,
    )
    return CertificateSummary.from_certificate(certificate), certificate.events


def peers_workload(seed: int, orders: int) -> Workload:
    """The orders workload with ``REPLICA IDENTITY FULL`` on both tables.

    Flink's ``debezium-json`` ends the job at an update without its old row, and Pathway's reader does not
    take the old row out. Slackwater does not need it for ``orders``.
    """
    return OrdersWorkload(seed, orders, pipeline=PROGRAMS)
