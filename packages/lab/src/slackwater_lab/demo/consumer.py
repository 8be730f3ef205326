"""A service in a process of its own: reads whole transactions while the demo runs, and checks each of them.

    python -m slackwater_lab.demo.consumer BOOTSTRAP SOURCE OUTPUT REPORT

It does what :mod:`slackwater_lab.demo.naive` does with polls: from Debezium's topics it puts orders
together, but transaction by transaction; and it reads the pipeline's documents, commit by commit. What it
has seen so far is in a file, REPORT, about once a second and whenever there is nothing to read.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from slackwater.client import ChangeTopics, OutputTopics, Transaction, TransactionalConsumer
from slackwater.protocol import SNAPSHOT_XID, CommitPosition, KafkaSettings, SystemClock
from slackwater_lab.demo.naive import ORDER_LINES, ORDERS, NaiveJoin, torn

_NICENESS = 10
"""The demo measures the pipeline: this process takes what is left."""
_AT_ONCE = 100
"""Transactions of one input before the other one has its turn."""
_WAIT = timedelta(milliseconds=50)
_REPORT_SECONDS = 1.0


@dataclass(slots=True)
class Consumed:
    """What was read of one input."""

    transactions: int = 0
    """Without the initial snapshot; of an output with ``emit = "latest"`` its commits, one for each batch."""
    records: int = 0
    broken: int = 0
    """Transactions after which an order contradicted its lines."""
    disordered: int = 0
    """Transactions whose commit was not above the one before."""
    timeline: int = 0
    lsn: int = 0
    """Of the newest commit."""

    def add(self, transaction: Transaction, records: int, *, is_broken: bool) -> None:
        position = transaction.commit.position
        self.disordered += position <= CommitPosition(self.timeline, self.lsn)
        self.timeline, self.lsn = position.timeline, position.lsn
        self.transactions += transaction.commit.xid != SNAPSHOT_XID
        self.records += records
        self.broken += is_broken


@dataclass(slots=True)
class ConsumerReport:
    """What the process has seen."""

    changes: Consumed
    """Of Debezium's topics."""
    output: Consumed
    """Of the pipeline's output."""

    @property
    def wrong(self) -> int:
        """Transactions that were not as they have to be."""
        return sum(each.broken + each.disordered for each in (self.changes, self.output))

    def write(self, file: Path) -> None:
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(file)

    @classmethod
    def read(cls, file: Path) -> "ConsumerReport":
        """Returns what is in the file; nothing was seen if there is none."""
        if not file.exists():
            return cls(Consumed(), Consumed())
        found = json.loads(file.read_text())
        return cls(Consumed(**found["changes"]), Consumed(**found["output"]))


class Service:
    """Checks transactions of both inputs."""

    def __init__(self) -> None:
        self.seen = ConsumerReport(Consumed(), Consumed())
        self._join = NaiveJoin()

    def take_changes(self, transaction: Transaction) -> None:
        """Applies a transaction to its own tables; each order that it touched has to fit its lines."""
        values = [value for record in transaction if (value := record.value()) is not None]
        before = self._join.torn
        self._join.poll(values)
        self.seen.changes.add(transaction, len(values), is_broken=self._join.torn > before)

    def take_documents(self, transaction: Transaction) -> None:
        values = [record.value() for record in transaction]
        is_broken = any(value is not None and torn(json.loads(value)) for value in values)
        self.seen.output.add(transaction, len(values), is_broken=is_broken)


def main(bootstrap: str, source: str, output: str, report: str) -> None:
    """Continues until it is stopped."""
    os.nice(_NICENESS)
    kafka, file, clock, service = KafkaSettings(bootstrap), Path(report), SystemClock(), Service()
    tables = ChangeTopics(source=source, tables=(ORDERS, ORDER_LINES))
    with (
        TransactionalConsumer(kafka, tables, group="demo-changes") as changes,
        TransactionalConsumer(kafka, OutputTopics(output), group="demo-output") as documents,
    ):
        written_at = float("-inf")
        while True:
            is_idle = True
            for consumer, take in ((changes, service.take_changes), (documents, service.take_documents)):
                for _ in range(_AT_ONCE):
                    transaction = consumer.poll(_WAIT)
                    if transaction is None:
                        break
                    is_idle = False
                    take(transaction)
            if is_idle or clock.monotonic() > written_at + _REPORT_SECONDS:
                service.seen.write(file)
                written_at = clock.monotonic()


if __name__ == "__main__":
    main(*sys.argv[1:])
