"""Values of every type in a real node, and what a node refuses."""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputRefusedError, OutputTable
from slackwater.outputs.search.ledger import index_of
from slackwater.outputs.search.server import SearchError, SearchServer
from slackwater.outputs.search.sink import SearchSink, SearchSinkSettings
from slackwater.protocol import ConfigError, SearchSettings
from slackwater.sql.plan import OutputColumn

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
VALUES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "flag": ("BOOLEAN", True, {"term": {"flag": True}}),
    "tiny": ("TINYINT", -128, {"term": {"tiny": -128}}),
    "small": ("UTINYINT", 255, {"term": {"small": 255}}),
    "middle": ("USMALLINT", 65535, {"range": {"middle": {"gt": 65534}}}),
    "big": ("BIGINT", 2**63 - 1, {"term": {"big": 2**63 - 1}}),
    "sum": ("HUGEINT", -(2**63), {"term": {"sum": -(2**63)}}),
    "price": ("DECIMAL(12,2)", "3.50", {"range": {"price": {"gte": 3.5, "lte": 3.5}}}),
    "ratio": ("DOUBLE", 0.1, {"term": {"ratio": 0.1}}),
    "part": ("FLOAT", 0.5, {"term": {"part": 0.5}}),
    "text": ("VARCHAR", "A blue Pen", {"match": {"text": "pen"}}),
    "same": ("VARCHAR", "A blue Pen", {"term": {"same.keyword": "A blue Pen"}}),
    "day": ("DATE", "2026-11-20", {"range": {"day": {"gte": "2026-11-20", "lte": "2026-11-20"}}}),
    "local": ("TIMESTAMP", "2026-11-20T10:11:12.123456", {"range": {"local": {"gt": "2026-11-20T10:11:11"}}}),
    "moment": (
        "TIMESTAMP WITH TIME ZONE",
        "2026-11-20T10:11:12.123456Z",
        {"range": {"moment": {"lt": "2026-11-20T10:11:13Z"}}},
    ),
    "time": ("TIME", "10:11:12.5", {"term": {"time": "10:11:12.5"}}),
    "id": ("UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", {"prefix": {"id": "a0eebc99"}}),
    "bytes": ("BLOB", "AAEC", {"match_all": {}}),
    "anything": ("JSON", [1, "two", {"three": None}], {"match_all": {}}),
    "scalar": ("JSON", 7, {"match_all": {}}),
    "map": ("MAP(VARCHAR, INTEGER)", {"a": 1, "b.c": 2}, {"match_all": {}}),
    "struct": ("STRUCT(n INTEGER, t VARCHAR)", {"n": 1, "t": "x"}, {"term": {"struct.n": 1}}),
    "words": ("VARCHAR[]", ["one", None, "two"], {"match": {"words": "two"}}),
    "matrix": ("INTEGER[][]", [[1, 2], [3]], {"term": {"matrix": 3}}),
    "lines": (
        "STRUCT(n INTEGER, p DECIMAL(10,2))[]",
        [{"n": 1, "p": "2.50"}, {"n": 2, "p": None}],
        {"nested": {"path": "lines", "query": {"term": {"lines.p": 2.5}}}},
    ),
    "nothing": ("INTEGER", None, {"match_all": {}}),
}
"""By column: the type, a value as documents have it, and a query that finds it."""


class Fields:
    """A view with columns of given types in a node."""

    def __init__(self, address: str) -> None:
        self.name = f"f{uuid.uuid4().hex[:10]}"
        self.server = SearchServer(SearchSettings(url=address))
        self.settings = SearchSinkSettings(pipeline=self.name, outputs=(), search=SearchSettings(url=address))

    def publish(self, columns: dict[str, str], *batches: DocumentBatch) -> None:
        declared = tuple(OutputColumn(name, kind) for name, kind in columns.items())
        output = OutputTable(name=self.name, columns=declared, key=(), view="v", what="index")
        sink = SearchSink(replace(self.settings, outputs=(output,)))
        sink.open()
        for batch in batches:
            sink.write("q", batch)

    def found(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        hits = self.server.ask("POST", f"/{self.name}/_search", {"query": query})["hits"]["hits"]
        return [hit["_source"] for hit in hits]


@pytest.fixture
def fields(search_node: Any) -> Iterator[Fields]:
    found = Fields(search_node.address)
    yield found
    indexes = [index_of(found.name), index_of(f"slackwater.{found.name}")]
    found.server.ask("DELETE", f"/{','.join(indexes)}?ignore_unavailable=true")


def test_values_of_every_type_are_found_and_come_back_as_they_were(
    fields: Fields, make_batch: MakeBatch
) -> None:
    row = {name: value for name, (_, value, _) in VALUES.items()}
    batch = make_batch(0, [(1, b"{}", json.dumps(row).encode())])
    fields.publish({name: kind for name, (kind, _, _) in VALUES.items()}, batch)
    (found,) = fields.found({"match_all": {}})
    del found["slackwater"]
    assert found == row
    assert [name for name, (_, _, query) in VALUES.items() if len(fields.found(query)) != 1] == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("HUGEINT", 2**63),
        ("UBIGINT", 2**64 - 1),
        ("DOUBLE", "NaN"),
        ("FLOAT", "-Infinity"),
        ("DATE", "infinity"),
        ("TIMESTAMP", "-infinity"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_view_and_key(
    fields: Fields, make_batch: MakeBatch, kind: str, value: Any
) -> None:
    batch = make_batch(0, [(1, b'{"id": 7}', json.dumps({"column": value}).encode())])
    with pytest.raises(OutputRefusedError, match=r"view 'v' in index .*, key \{\"id\": 7\}.*column"):
        fields.publish({"column": kind}, batch)
    assert fields.found({"match_all": {}}) == []


def test_a_mapping_of_other_types_is_refused_and_a_new_field_is_added(
    fields: Fields, make_batch: MakeBatch
) -> None:
    fields.publish({"a": "INTEGER"})
    with pytest.raises(ConfigError, match="field a has type integer, and the view needs text"):
        fields.publish({"a": "VARCHAR"})
    fields.publish({"a": "INTEGER", "b": "DATE"}, make_batch(0, [(1, b"{}", b'{"a": 1, "b": "2026-11-20"}')]))
    assert len(fields.found({"term": {"b": "2026-11-20"}})) == 1


def test_a_pipeline_after_which_no_index_can_be_named_is_refused(fields: Fields) -> None:
    fields.settings = replace(fields.settings, pipeline="Shop")
    with pytest.raises(OutputRefusedError, match="must be lowercase"):
        fields.publish({"a": "INTEGER"})


def test_an_index_that_others_deleted_is_not_created_by_a_document(
    fields: Fields, make_batch: MakeBatch
) -> None:
    """With the settings of a node as they are, a request that writes creates an index."""
    fields.publish({"a": "INTEGER"}, make_batch(0, [(1, b"{}", b'{"a": 1}')]))
    fields.server.ask("DELETE", f"/{index_of(fields.name)}")
    with pytest.raises(SearchError):
        fields.found({"match_all": {}})
    with pytest.raises(Exception, match="is not the one that its batches were written to"):
        fields.publish({"a": "INTEGER"}, make_batch(1, [(11, b"{}", b'{"a": 2}')]))
