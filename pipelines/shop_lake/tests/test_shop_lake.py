"""The views in a lake at every commit of a history, judged by the certifier; no Spark and no Kafka.

In Delta tables as in ``pipeline.toml``, and in Iceberg tables as its comment says.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from pyiceberg.catalog import load_catalog

from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import SinkProbe, SinkStep
from slackwater.pipeline import PipelineDefinition, RunSettings, load_pipeline
from slackwater.pipeline.sinks import make_sink
from slackwater.protocol import BatchHeader, KafkaSettings, LakeSettings, Servers
from slackwater_certify import Certificate, Connections, load_specification
from slackwater_certify.certifier import judge, read_output, wall_clock_ms
from slackwater_certify.committed_states import evaluate_committed_states
from slackwater_certify.history import History
from slackwater_certify.specification import OutputKind
from slackwater_certify.view import load_view

FOLDER = Path(__file__).parents[1]
PRODUCTS, ORDERS, LINES = "shop.products", "shop.orders", "shop.lines"
TABLE = "shop_views.order_details"

Row = dict[str, Any]
Commit = tuple[int, list[ChangeEvent]]
"""Commit LSN and changes."""


class Shop:
    """Random business; what Debezium writes of it, for the certifier."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._random = random.Random(5)
        self._rows: dict[str, dict[int, Row]] = {PRODUCTS: {}, ORDERS: {}, LINES: {}}
        self._lsn = 0

    def commits(self, count: int) -> list[Commit]:
        return [self._commit() for _ in range(count)]

    def _commit(self) -> Commit:
        changes, xid = [], self._lsn + 1
        self._lsn += 10
        counts = dict.fromkeys(self._rows, 0)
        for number in range(self._random.randint(1, 4)):
            table = self._random.choice((PRODUCTS, ORDERS, LINES, LINES))
            counts[table] += 1
            changes.append(self._change(table, xid, number + 1, counts[table]))
        end = {
            "status": "END",
            "id": f"{xid}:{self._lsn}",
            "ts_ms": self._lsn,
            "data_collections": [
                {"data_collection": name, "event_count": count} for name, count in counts.items() if count
            ],
        }
        self._history.add_transaction_record(json.dumps(end).encode())
        return self._lsn, changes

    def _change(self, table: str, xid: int, order: int, order_in_table: int) -> ChangeEvent:
        rows, row_id = self._rows[table], self._random.randint(1, 4)
        before = rows.pop(row_id, None)
        after = None if before is not None and self._random.random() < 0.3 else self._row(table, row_id)
        if after is not None:
            rows[row_id] = after
        op = "d" if after is None else "c" if before is None else "u"
        schema, _, name = table.partition(".")
        block = {"id": f"{xid}:{self._lsn}", "total_order": order, "data_collection_order": order_in_table}
        source = {
            "schema": schema,
            "table": name,
            "lsn": self._lsn - 9 + order,
            "txId": xid,
            "snapshot": "false",
        }
        record = {"before": before, "after": after, "source": source, "transaction": block, "op": op}
        self._history.add_row(json.dumps(record).encode())
        return (table, op, self._lsn, packed(before), packed(after))

    def _row(self, table: str, row_id: int) -> Row:
        if table == PRODUCTS:
            return {"id": row_id, "name": self._word(), "category": self._word()}
        if table == ORDERS:
            placed_at = f"2026-01-02T03:04:{self._random.randint(10, 59)}.5Z"
            return {"id": row_id, "customer_id": 1, "status": self._word(), "placed_at": placed_at}
        price = f"{self._random.randint(1, 9)}.25"
        row = {"id": row_id, "order_id": self._random.randint(1, 4), "product_id": self._random.randint(1, 4)}
        return {**row, "quantity": self._random.randint(1, 3), "price": price}

    def _word(self) -> str:
        return self._random.choice(("ada", "bob", "cyd"))


def packed(row: Row | None) -> bytes | None:
    return None if row is None else json.dumps(row).encode()


def batches(definition: PipelineDefinition, commits: list[Commit], size: int) -> Iterator[DocumentBatch]:
    """What the stages hand to the sink, some commits at a time."""
    engine, pack = LocalEngine(definition.plan), zstandard.ZstdCompressor().compress
    before = 0
    for number, start in enumerate(range(0, len(commits), size)):
        part = commits[start : start + size]
        found = engine.run([change for _, changes in part for change in changes])
        header = BatchHeader(
            source="shop",
            timeline=1,
            from_lsn=before,
            to_lsn=part[-1][0],
            commit_ts_ms=part[-1][0],
            event_count=len(part),
            transactions=tuple((lsn - 9, lsn, lsn) for lsn, _ in part),
        )
        before = header.to_lsn
        payloads = {view: (pack(msgspec.msgpack.encode(each)),) for view, each in found.items() if each}
        yield DocumentBatch(number, header, payloads, f"state {number}")


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def definition(kind: str, tmp_path: Path) -> PipelineDefinition:
    """The pipeline as it is, or with the other kind in its settings."""
    folder = shutil.copytree(FOLDER, tmp_path / "pipeline")
    settings = (folder / "pipeline.toml").read_text()
    assert settings.count('kind = "delta"') == 2
    (folder / "pipeline.toml").write_text(settings.replace('kind = "delta"', f'kind = "{kind}"'))
    return load_pipeline(folder)


@pytest.fixture
def settings(kind: str, tmp_path: Path) -> RunSettings:
    lake = lake_settings(kind, tmp_path)
    servers = Servers(
        KafkaSettings("b:1"),
        delta=lake if kind == "delta" else None,
        iceberg=lake if kind == "iceberg" else None,
    )
    return RunSettings(servers=servers, checkpoint="c")


def lake_settings(kind: str, folder: Path) -> LakeSettings:
    lake = folder / "lake"
    lake.mkdir(exist_ok=True)
    if kind == "delta":
        return LakeSettings(place=str(lake), maintain_every=3)
    options = {"type": "sql", "uri": f"sqlite:///{lake / 'catalogue.db'}", "warehouse": f"file://{lake}"}
    return LakeSettings(place="lake", options=options, maintain_every=3)


@pytest.fixture
def publish(definition: PipelineDefinition, settings: RunSettings) -> Callable[..., None]:
    """Writes batches, from the one that the output lacks on, as a run does."""

    def run(found: list[DocumentBatch], probe: SinkProbe | None = None) -> None:
        sink = make_sink(definition, settings, probe=probe)
        newest = sink.open()
        for batch in found[0 if newest is None else newest.batch_id + 1 :]:
            sink.write("query", batch)
        sink.close()

    return run


def made_up(count: int = 40) -> tuple[History, list[Commit]]:
    """The same each time."""
    history = History(load_view(load_specification(FOLDER)).tables)
    return history, Shop(history).commits(count)


def places(kind: str, folder: Path) -> tuple[str, str]:
    """Where the certifier finds the table and the ledger."""
    if kind == "delta":
        lake = folder / "lake"
        return str(lake / TABLE.replace(".", "/")), str(lake / "slackwater" / "shop_lake")
    catalogue = load_catalog("lake", **lake_settings(kind, folder).options)
    table, ledger = (catalogue.load_table(name).metadata_location for name in (TABLE, "slackwater.shop_lake"))
    catalogue.close()
    return table, ledger


def certificate_of(kind: str, folder: Path, *, has_ledger: bool = True) -> Certificate:
    specification, history = load_specification(FOLDER), made_up()[0]
    table, ledger = places(kind, folder)
    output = replace(
        specification.output,
        kind=OutputKind(kind),
        name=table,
        ledger=ledger if has_ledger else None,
        table=TABLE if has_ledger else None,
    )
    specification = replace(specification, output=output)
    view = load_view(specification)
    records = read_output(output, view.reader, Connections(), wall_clock_ms)
    with evaluate_committed_states(history, specification, view, lambda _: None) as committed:
        return judge(specification, view, records, committed)


class KilledError(Exception):
    pass


@pytest.mark.full
def test_the_table_is_the_view_at_every_commit_of_the_ledger(
    kind: str, definition: PipelineDefinition, publish: Callable[..., None], tmp_path: Path
) -> None:
    publish(list(batches(definition, made_up()[1], 4)))
    certificate = certificate_of(kind, tmp_path)
    assert certificate.examples == {}
    assert (certificate.snapshots, certificate.commits) == (10, 10)
    assert certificate.is_clean


@pytest.mark.full
def test_a_batch_that_was_lost_between_tables_and_ledger_is_seen_by_nobody(
    kind: str, definition: PipelineDefinition, publish: Callable[..., None], tmp_path: Path
) -> None:
    """The batch comes again with other commits; who reads the newest versions has seen it, and goes back."""
    commits = made_up()[1]

    def kill(step: SinkStep, batch_id: int) -> None:
        if (step, batch_id) == (SinkStep.PROGRESS, 3):
            raise KilledError

    with pytest.raises(KilledError):
        publish(list(batches(definition, commits, 8)), kill)
    publish(list(batches(definition, commits, 8))[:3] + renumbered(definition, commits))
    assert certificate_of(kind, tmp_path).examples == {}
    assert certificate_of(kind, tmp_path, has_ledger=False).order_violations > 0


def renumbered(definition: PipelineDefinition, commits: list[Commit]) -> list[DocumentBatch]:
    """The commits behind the third batch of eight in batches of four."""
    return [
        replace(batch, batch_id=batch.batch_id - 3, state=f"other {batch.batch_id}")
        for batch in batches(definition, commits, 4)
    ][6:]
