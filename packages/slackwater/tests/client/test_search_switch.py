"""Readers of search indexes are switched between revisions; needs no server."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import zstandard

from slackwater.client.errors import NotVisibleError
from slackwater.client.search_views import ledger_record, readers_alias, switch_indexes
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputTable
from slackwater.outputs.search.server import SearchServer
from slackwater.outputs.search.sink import SearchSink, SearchSinkSettings
from slackwater.protocol import BatchHeader, CommitPosition, ConfigError, SearchSettings, UnavailableError
from slackwater.sql.plan import OutputColumn
from slackwater_lab.fakes.search import SearchFake

CLUSTER = SearchSettings(url="http://fake")
VIEWS = {"one": "one", "two": "two"}
VIEWS_2 = {"one": "one_v2", "two": "two_v2"}


class Revisions:
    """Two revisions of a pipeline, with the batches that each has published."""

    def __init__(self) -> None:
        self.fake = SearchFake()
        self.server = SearchServer(CLUSTER, self.fake)
        self.sinks = {"shop": self._sink("shop", VIEWS), "shop.v2": self._sink("shop.v2", VIEWS_2)}
        self._published = dict.fromkeys(self.sinks, 0)

    def _sink(self, pipeline: str, views: dict[str, str]) -> SearchSink:
        columns = (OutputColumn("id", "BIGINT"), OutputColumn("text", "VARCHAR"))
        outputs = [
            OutputTable(name=alias, columns=columns, key=("id",), view=view) for view, alias in views.items()
        ]
        settings = SearchSinkSettings(pipeline=pipeline, outputs=tuple(outputs), search=CLUSTER)
        sink = SearchSink(settings, self.fake)
        sink.open()
        return sink

    def publish(self, pipeline: str) -> None:
        number = self._published[pipeline]
        self._published[pipeline] += 1
        row = json.dumps({"id": 1, "text": f"{pipeline} {number}"}).encode()
        document = [(number + 1, b'{"id": 1}', row)]
        payload = (zstandard.compress(msgspec.msgpack.encode(document)),)
        header = BatchHeader(
            source="inv",
            timeline=1,
            from_lsn=number,
            to_lsn=number + 1,
            commit_ts_ms=1,
            event_count=1,
            transactions=((1, number + 1, 1),),
        )
        self.sinks[pipeline].write("q", DocumentBatch(number, header, {0: payload, 1: payload}, f"{number}"))

    def switch(self, pipeline: str, **options: Any) -> Any:
        views = VIEWS if pipeline == "shop" else VIEWS_2
        options = {"views": views, "timeout": timedelta(), **options}
        return switch_indexes(self.server, pipeline, **options)

    def seen(self, names: tuple[str, ...] = ("shop.one", "shop.two")) -> list[str]:
        answer = self.server.ask(
            "POST", f"/{','.join(names)}/_search", {"size": 9, "query": {"match_all": {}}}
        )
        return [hit["_source"]["text"] for hit in answer["hits"]["hits"]]


@pytest.fixture
def revisions() -> Revisions:
    found = Revisions()
    found.publish("shop")
    return found


def test_readers_are_switched_and_switched_back_and_see_every_batch(revisions: Revisions) -> None:
    first = revisions.switch("shop")
    assert (first.before, first.left_at, first.position) == (None, None, CommitPosition(1, 1))
    assert revisions.seen() == ["shop 0", "shop 0"]
    revisions.publish("shop")
    assert revisions.seen() == ["shop 1", "shop 1"]
    for _ in range(2):
        revisions.publish("shop.v2")
    done = revisions.switch("shop.v2")
    assert (done.before, done.left_at, done.position) == ("shop", CommitPosition(1, 2), CommitPosition(1, 2))
    revisions.publish("shop")
    assert revisions.seen() == ["shop.v2 1", "shop.v2 1"], "what the other revision publishes is not shown"
    revisions.publish("shop.v2")
    assert revisions.seen() == ["shop.v2 2", "shop.v2 2"]
    record = ledger_record(revisions.server, readers_alias("shop"))
    assert record is not None
    assert (record["pipeline"], record["commit_lsn"]) == ("shop.v2", 3)
    revisions.switch("shop")
    assert revisions.seen() == ["shop 2", "shop 2"]
    assert revisions.switch("shop").before == "shop", "repeating it changes nothing"


def test_a_revision_that_is_behind_or_lacks_a_view_is_refused(revisions: Revisions) -> None:
    with pytest.raises(NotVisibleError, match="nothing is visible yet"):
        revisions.switch("shop.v2")
    revisions.publish("shop")
    revisions.switch("shop")
    revisions.publish("shop.v2")
    with pytest.raises(NotVisibleError, match="they were not switched"):
        revisions.switch("shop.v2")
    with pytest.raises(ConfigError, match="lacks view 'two'"):
        revisions.switch("shop.v2", views={"one": "one_v2"}, accept_earlier=True)
    assert revisions.seen() == ["shop 1", "shop 1"]
    revisions.switch("shop.v2", accept_earlier=True)
    assert revisions.seen() == ["shop.v2 0", "shop.v2 0"]


def test_a_batch_that_is_committed_during_the_switch_is_seen(revisions: Revisions) -> None:
    for _ in range(2):
        revisions.publish("shop.v2")
    left: list[Callable[[], None]] = [lambda: revisions.publish("shop.v2")]

    def commit_first(_: str, path: str) -> None:
        if path == "/_aliases" and left:
            left.pop()()

    revisions.fake.fails = commit_first
    revisions.switch("shop.v2")
    assert revisions.seen() == ["shop.v2 2", "shop.v2 2"]


def test_a_cluster_that_refuses_is_named(revisions: Revisions) -> None:
    revisions.fake.fails = lambda *_: (403, "security_exception", "no permissions")
    with pytest.raises(UnavailableError, match=r"search cluster at http://fake: .*no permissions"):
        revisions.switch("shop")
