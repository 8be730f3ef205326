"""Reads everything back after the run and has it checked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import Message

from slackwater.demo.check import (
    OutputRecord,
    check_commits,
    check_documents,
    check_final,
    check_states,
    final_documents,
    read_order_id,
)
from slackwater.demo.database import broken_orders, read_documents
from slackwater.demo.errors import WorkloadError
from slackwater.demo.findings import Findings
from slackwater.demo.history import SourceHistory
from slackwater.topics import header_items, read_to_end
from slackwater_protocol import CommitRecord, decode_commit_record
from slackwater_protocol.keys import HEADER_COMMIT_LSN, commit_topic, data_topic, transaction_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is compared."""

    history: SourceHistory
    commits: Sequence[CommitRecord]
    records: dict[tuple[int, int], OutputRecord]
    """By partition and offset, ascending."""
    orders: int
    """Number of orders in PostgreSQL."""
    findings: Findings


def judge(*, bootstrap: str, dsn: str, source: str, tables: Sequence[str], output: str) -> Evidence:
    """Compares output, source topics and database; nothing may be written meanwhile.

    Raises:
        WorkloadError: the database itself breaks the invariant.
        TopicUnavailableError: a topic cannot be read.
    """
    history = read_history(bootstrap, source, tables)
    values = (message.value() or b"" for message in read_to_end(bootstrap, [commit_topic(output)]))
    commits = [decode_commit_record(value) for value in values]
    found = [output_record(message) for message in read_to_end(bootstrap, [output])]
    records = {(record.partition, record.offset): record for record in sorted(found, key=_place)}
    with psycopg.connect(dsn) as connection:
        broken = broken_orders(connection)
        if broken:
            raise WorkloadError(tuple(order_id for order_id, *_ in broken))
        database = read_documents(connection)
    findings = Findings()
    check_documents(records.values(), findings)
    check_commits(commits, records, output, findings)
    check_states(history.snapshot(), history.transactions(), commits, records.values(), findings)
    check_final(final_documents(records.values()), database, findings)
    return Evidence(
        history=history, commits=commits, records=records, orders=len(database), findings=findings
    )


def read_history(bootstrap: str, source: str, tables: Sequence[str]) -> SourceHistory:
    """The source's transactions, from its topics."""
    history = SourceHistory()
    for message in read_to_end(bootstrap, [data_topic(source, table) for table in tables]):
        value = message.value()
        if value is not None:  # a tombstone repeats what the delete before it said
            history.add_row(value)
    for message in read_to_end(bootstrap, [transaction_topic(source)]):
        history.add_transaction_record(message.value() or b"")
    return history


def output_record(message: Message) -> OutputRecord:
    """A record of the output topic as the checkers want it; an unreadable value counts as torn."""
    headers = dict(header_items(message))
    lsn = headers.get(HEADER_COMMIT_LSN)
    value = message.value()
    return OutputRecord(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        order_id=read_order_id(message.key() or b"0"),
        commit_lsn=int(lsn) if lsn is not None else None,
        document=None if value is None else _document(value),
    )


def _document(value: bytes) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except ValueError:
        return {"unreadable": value[:100].decode(errors="replace")}
    return document if isinstance(document, dict) else {"unreadable": document}


def _place(record: OutputRecord) -> tuple[int, int]:
    return record.partition, record.offset
