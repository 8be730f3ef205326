"""The views in a node of OpenSearch, searched at every commit; no Spark and no Kafka."""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from docs.examples.search_at_one_commit import search
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import SinkStep
from slackwater.outputs.search.server import SearchServer
from slackwater.outputs.sink import Sink
from slackwater.pipeline import PipelineDefinition, RunSettings, load_pipeline
from slackwater.pipeline.sinks import make_sink
from slackwater.protocol import BatchHeader, KafkaSettings, SearchSettings, Servers

pytestmark = pytest.mark.integration

PRODUCTS, ORDERS, LINES = "shop.products", "shop.orders", "shop.lines"
ALIASES = ["shop-orders", "shop-products"]
EVERYTHING: dict[str, Any] = {"match_all": {}}


def change(
    table: str, lsn: int, row: dict[str, Any] | None, old: dict[str, Any] | None = None
) -> ChangeEvent:
    op = "d" if row is None else "c" if old is None else "u"
    before, after = (None if each is None else json.dumps(each).encode() for each in (old, row))
    return table, op, lsn, before, after


def product(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "name": name, "category": "office"}


def order(number: int) -> dict[str, Any]:
    return {"id": number, "customer_id": 1, "status": "new", "placed_at": "2026-01-02T03:04:05.000006Z"}


def line(number: int, product_id: int) -> dict[str, Any]:
    return {"id": number, "order_id": 7, "product_id": product_id, "quantity": number, "price": "1.50"}


TRANSACTIONS = [
    [change(PRODUCTS, 10, product(1, "blue pen")), change(PRODUCTS, 10, product(2, "red pen"))],
    [change(ORDERS, 20, order(7)), change(LINES, 20, line(1, 1)), change(LINES, 20, line(2, 2))],
    [change(LINES, 30, line(3, 2)), change(PRODUCTS, 30, product(1, "black pen"), product(1, "blue pen"))],
    [
        change(LINES, 40, None, line(1, 1)),
        change(LINES, 40, None, line(2, 2)),
        change(LINES, 40, None, line(3, 2)),
    ],
]


@pytest.fixture
def definition() -> PipelineDefinition:
    return load_pipeline(Path(__file__).parents[1])


@pytest.fixture
def cluster(search_node: Any) -> Iterator[SearchServer]:
    found = SearchServer(SearchSettings(url=search_node.address))
    yield found
    found.ask("DELETE", "/slackwater.shop_search-versions,shop-orders-versions,shop-products-versions")


@pytest.fixture
def sink(definition: PipelineDefinition, search_node: Any, cluster: SearchServer) -> Iterator[Sink]:
    servers = Servers(KafkaSettings("b:1"), search=SearchSettings(url=search_node.address))
    found = make_sink(definition, RunSettings(servers=servers, checkpoint="c"))
    assert found.open() is None
    yield found
    found.close()


def batches(definition: PipelineDefinition) -> Iterable[DocumentBatch]:
    engine, pack = LocalEngine(definition.plan), zstandard.ZstdCompressor().compress
    for number, changes in enumerate(TRANSACTIONS):
        lsn = changes[0][2]
        header = BatchHeader(
            source="shop",
            timeline=1,
            from_lsn=lsn - 10,
            to_lsn=lsn,
            commit_ts_ms=lsn,
            event_count=len(changes),
            transactions=((lsn, lsn, lsn),),
        )
        found = engine.run(changes)
        payloads = {view: (pack(msgspec.msgpack.encode(each)),) for view, each in found.items() if each}
        yield DocumentBatch(number, header, payloads, f"state {number}")


def test_one_search_over_both_views_finds_one_commit_at_every_moment(
    definition: PipelineDefinition, sink: Sink, search_node: Any, cluster: SearchServer
) -> None:
    """The sum of the orders is the sum of the products, however the indexes are refreshed meanwhile."""
    seen: list[tuple[int, list[str], list[str]]] = []

    def look(step: SinkStep, _: int) -> None:
        if step in (SinkStep.PRODUCED, SinkStep.PROGRESS, SinkStep.COMMITTED):
            cluster.ask("POST", "/shop-*/_refresh")
            lsn, found = search(search_node.address, "shop_search", ALIASES, EVERYTHING)
            orders, products = (found[alias] for alias in ALIASES)
            names = sorted(each["name"] for each in products)
            sums = [
                sum(float(each[name]) for each in found)
                for name, found in (("total", orders), ("revenue", products))
            ]
            seen.append((lsn, names, [*map(str, sums)]))

    for batch in batches(definition):
        sink._probe = look if batch.batch_id else lambda step, _: None  # noqa: SLF001 - nothing is there before
        sink.write("query", batch)
    blue, black = ["blue pen", "red pen"], ["black pen", "red pen"]
    states = [
        (10, blue, ["0", "0.0"]),
        (20, blue, ["4.5", "4.5"]),
        (30, black, ["9.0", "9.0"]),
        (40, black, ["0.0", "0.0"]),
    ]
    assert [(lsn, names) for lsn, names, _ in seen] == [
        state[:2] for before, after in pairwise(states) for state in (before, before, after)
    ]
    assert all(float(orders) == float(products) for _, _, (orders, products) in seen)


def test_texts_and_lines_are_searched_as_the_page_says(
    definition: PipelineDefinition, sink: Sink, search_node: Any
) -> None:
    for batch in list(batches(definition))[:3]:
        sink.write("query", batch)

    def ids(alias: str, query: dict[str, Any]) -> list[int]:
        _, found = search(search_node.address, "shop_search", [alias], query)
        return sorted(each["id"] for each in found[alias])

    assert ids("shop-products", {"match": {"name": "black"}}) == [1]
    assert ids("shop-products", {"match": {"name": "blue"}}) == [], "it is an earlier version"
    assert ids("shop-products", {"term": {"name.keyword": "red pen"}}) == [2]
    assert ids("shop-orders", {"range": {"placed_at": {"gte": "2026-01-02", "lt": "2026-01-03"}}}) == [7]

    def of_one_line(product_id: int) -> dict[str, Any]:
        both = [{"term": {"lines.product_id": product_id}}, {"range": {"lines.quantity": {"gte": 3}}}]
        return {"nested": {"path": "lines", "ignore_unmapped": True, "query": {"bool": {"filter": both}}}}

    assert ids("shop-orders", of_one_line(2)) == [7]
    assert ids("shop-orders", of_one_line(1)) == [], "no line has this product in this quantity"
