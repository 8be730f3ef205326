"""Makes up a source with its records and right outputs of it, for tests of the certifier and its users.

The view is orders with their lines. Documents are built from dictionaries, without SQL, so they check the
evaluation, too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from slackwater_certify.output import Commit, OffsetRange, Output
from slackwater_certify.specification import load_specification
from slackwater_lab.debezium.records import change_value, end_value, snapshot_value
from slackwater_lab.topics import make_topics

SCHEMA = """
CREATE TABLE shop.orders (id bigint PRIMARY KEY, total numeric(12, 2) NOT NULL, placed_at timestamptz);
CREATE TABLE shop.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, price numeric(10, 2) NOT NULL);
ALTER TABLE shop.lines REPLICA IDENTITY FULL;
"""
VIEW = """
SELECT TRANSACTIONALLY o.id, o.total, o.placed_at,
    coalesce(list({'id': l.id, 'price': l.price} ORDER BY l.id) FILTER (WHERE l.id IS NOT NULL), []) AS lines
FROM shop.orders o LEFT JOIN shop.lines l ON l.order_id = o.id
GROUP BY o.id
"""
SPECIFICATION = """
[output]
kind = "topic"
name = "orders"
[source]
name = "shop"
schema = "schema.sql"
[view]
sql = "view.sql"
key = ["id"]
[view.rows]
"shop.orders" = ["id"]
"shop.lines" = ["order_id"]
[[invariant]]
name = "total"
holds = "total = coalesce(list_sum(list_transform(lines, lambda l: l.price)), 0)"
error = "abs(total - coalesce(list_sum(list_transform(lines, lambda l: l.price)), 0))"
"""
PARTITIONS = 3
"""Partitions of each topic with rows or documents."""
AT = "2026-01-02T03:04:05.5Z"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def write_specification(folder: Path, text: str = SPECIFICATION) -> Path:
    """Writes schema, view and ``certify.toml``; returns the latter."""
    (folder / "schema.sql").write_text(SCHEMA, encoding="utf-8")
    (folder / "view.sql").write_text(VIEW, encoding="utf-8")
    file = folder / "certify.toml"
    file.write_text(text, encoding="utf-8")
    return file


def order(order_id: int, total: str) -> Row:
    """Returns a row of ``shop.orders``."""
    return {"id": order_id, "total": total, "placed_at": AT}


def line(line_id: int, order_id: int, price: str) -> Row:
    """Returns a row of ``shop.lines``."""
    return {"id": line_id, "order_id": order_id, "price": price}


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Holds a record of one of the source's topics."""

    topic: str
    key: bytes
    value: bytes


@dataclass(slots=True)
class SourceLog:
    """Acts as a database with a connector: holds Debezium's records of what is committed in it."""

    prefix: str = "shop"
    records: list[SourceRecord] = field(default_factory=list)
    """In the order in which the connector emits them."""
    commits: list[tuple[int, int]] = field(default_factory=list)
    """LSN and time of every commit."""
    states: list[dict[int, Document]] = field(default_factory=lambda: [{}])
    """All documents: before the first commit, after it, after the second, ..."""
    skipped: dict[int, int] = field(default_factory=dict)
    """The transactions that an operator has skipped, by commit LSN."""
    _rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    _lsn: int = 1000
    _xid: int = 700

    def snapshot(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Adds rows that are there before the first transaction."""
        for table, row in rows:
            self._rows[table, row["id"]] = row
            value = snapshot_value(f"shop.{table}", self._lsn, row, snapshot="false")
            self.records.append(self._record(table, row["id"], value))
        self.states[0] = self._documents()

    def commit(self, *changes: tuple[str, int, Row | None]) -> int:
        """Commits changes ``(table, id, new row or None)``; returns the commit LSN."""
        self._xid += 1
        xid, time_ms = self._xid, 1_000_000 + 10 * self._xid
        counts: dict[str, int] = {}
        for table, row_id, after in changes:
            self._lsn += 8
            before = self._rows.pop((table, row_id), None)
            op = "d" if after is None else "u" if before else "c"
            counts[f"shop.{table}"] = counts.get(f"shop.{table}", 0) + 1
            orders = counts[f"shop.{table}"], sum(counts.values())
            position = xid, self._lsn
            value = change_value(
                f"shop.{table}", op, position=position, orders=orders, after=after, before=before
            )
            self.records.append(self._record(table, row_id, value))
            if after is not None:
                self._rows[table, row_id] = after
        self._lsn += 8
        end = end_value(xid, self._lsn, counts, time_ms)
        self.records.append(
            SourceRecord(f"{self.prefix}.transaction", _bytes({"id": f"{xid}:{self._lsn}"}), end)
        )
        self.commits.append((self._lsn, time_ms))
        self.states.append(self._documents())
        return self._lsn

    def skip(self, table: str, row_id: int) -> None:
        """Has an operator skip the newest commit, one of whose rows, a new one, comes only afterwards."""
        place, records = (f"{self.prefix}.shop.{table}", _bytes({"id": row_id})), self.records
        number = max(n for n, each in enumerate(records) if (each.topic, each.key) == place)
        late = records.pop(number)
        del self._rows[table, row_id]
        self.states[-1] = self._documents()
        self.skipped[self._lsn] = self._xid
        cut = {
            "v": 2,
            "source": self.prefix,
            "timeline": 1,
            "lsn": self._lsn,
            "previous": 0,
            "xids": [self._xid],
            "lsns": [self._lsn],
            "end": {f"{self.prefix}.shop.{name}": [len(records)] for name in ("orders", "lines")},
            "skipped": [self._xid],
        }
        records += [SourceRecord(f"{self.prefix}.slackwater.cuts", b"", _bytes(cut)), late]

    def _record(self, table: str, row_id: int, value: bytes) -> SourceRecord:
        return SourceRecord(f"{self.prefix}.shop.{table}", _bytes({"id": row_id}), value)

    def _documents(self) -> dict[int, Document]:
        rows = self._rows.items()
        lines = sorted((row for (table, _), row in rows if table == "lines"), key=lambda row: int(row["id"]))
        return {
            row_id: {**row, "lines": [_shown(each) for each in lines if each["order_id"] == row_id]}
            for (table, row_id), row in rows
            if table == "orders"
        }


@dataclass(slots=True)
class RightOutput:
    """Output of a right pipeline over a source, in batches of commits; tests break it."""

    outputs: list[Output] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    @classmethod
    def publish(cls, log: SourceLog, *, per_batch: int = 1, partitions: int = 1) -> "RightOutput":
        """Publishes in every batch what differs from the one before, and a commit record."""
        output, offsets, before = cls(), [0] * partitions, dict[int, Document]()
        numbers = list(range(per_batch, len(log.commits) + 1, per_batch))
        if log.commits and (not numbers or numbers[-1] != len(log.commits)):
            numbers.append(len(log.commits))
        previous = 0
        for number in numbers:
            lsn, time_ms = log.commits[number - 1]
            after = log.states[number]
            changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            ranges = output._publish_batch(changed, after, lsn, time_ms + 50, offsets)
            skipped = tuple(xid for at, xid in log.skipped.items() if previous < at <= lsn)
            output.commits.append(Commit(1, lsn, previous, time_ms, time_ms + 50, ranges, skipped))
            before, previous = after, lsn
        return output

    def position(self, order_id: int, lsn: int) -> int:
        """Returns where the output of an order at a commit is in :attr:`outputs`."""
        key = {"id": order_id}
        return next(i for i, each in enumerate(self.outputs) if each.key == key and each.lsn == lsn)

    def change(self, position: int, **changes: Any) -> None:
        self.outputs[position] = replace(self.outputs[position], **changes)

    def without_claims(self) -> "RightOutput":
        """Returns the same output from a system that knows no LSNs."""
        return RightOutput([replace(each, lsn=None) for each in self.outputs])

    def _publish_batch(
        self,
        changed: Sequence[int],
        after: Mapping[int, Document],
        lsn: int,
        visible_ms: int,
        offsets: list[int],
    ) -> tuple[OffsetRange, ...]:
        first = list(offsets)
        for key in changed:
            partition = key % len(offsets)
            place = (partition, offsets[partition])
            offsets[partition] += 1
            self.outputs.append(Output(place, visible_ms, {"id": key}, after.get(key), lsn))
        return tuple(
            OffsetRange(partition, end - start, start, end - 1)
            for partition, (start, end) in enumerate(zip(first, offsets, strict=True))
            if end > start
        )


class Topics:
    """Topics of a source and of an output of it, named after a test.

    Attributes:
        plain: judges the output without LSNs.
        claiming: judges it by header and commit records.
    """

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": 1,
                "enable.idempotence": True,
            }
        )
        self.output, self.prefix = f"{name}.out", name
        text = SPECIFICATION.replace('name = "orders"', f'name = "{self.output}"')
        text = text.replace('name = "shop"', f'name = "{name}"')
        self.plain = load_specification(write_specification(folder, text))
        claims = f'commits = "{self.output}.commits"\nlsn_header = "lsn"\n[source]'
        self.claiming = load_specification(write_specification(folder, text.replace("[source]", claims)))
        self._create()

    def write_source(self, records: Iterable[SourceRecord]) -> None:
        """Writes records as a connector does: the partition follows from the key."""
        producer = self.producer
        for record in records:
            producer.produce(record.topic, record.value, record.key)
        producer.flush(30)

    def _create(self) -> None:
        tables = [f"{self.prefix}.shop.{name}" for name in ("orders", "lines")]
        make_topics(self.bootstrap, [*tables, self.output], PARTITIONS)
        make_topics(self.bootstrap, [f"{self.prefix}.transaction", f"{self.output}.commits"], 1)


def _shown(row: Row) -> Document:
    return {"id": row["id"], "price": row["price"]}


def _bytes(value: object) -> bytes:
    return json.dumps(value).encode()
