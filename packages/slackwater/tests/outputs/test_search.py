"""Search indexes: what is in them, what others do to them, what a cluster answers. Needs no server."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputRefusedError, OutputTable, SinkStep
from slackwater.outputs.search import mapping
from slackwater.outputs.search.ledger import tokens, with_token
from slackwater.outputs.search.server import SearchServer
from slackwater.outputs.search.sink import SearchSink, SearchSinkSettings
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    OvertakenError,
    SearchSettings,
    SlackwaterError,
    StateError,
    SystemClock,
    UnavailableError,
)
from slackwater.sql.plan import OutputColumn
from slackwater_lab.fakes.search import SearchFake
from slackwater_lab.probes import LookAt

MakeBatch = Callable[..., DocumentBatch]
QUERY = "0f5c2f6e-query"
COLUMNS = (OutputColumn("id", "BIGINT"), OutputColumn("name", "VARCHAR"))
INDEX = "orders-versions"
LEDGER = "slackwater.p-versions"


class MovedClock(SystemClock):
    """The system's clock, some seconds ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Cluster:
    """A pipeline of one view in a cluster, with what somebody else can do there."""

    def __init__(self) -> None:
        self.fake = SearchFake()
        self.settings = SearchSinkSettings(
            pipeline="p",
            outputs=(OutputTable(name="orders", columns=COLUMNS, key=("id",), view="orders", what="index"),),
            search=SearchSettings(url="http://fake"),
            patience=timedelta(milliseconds=1),
            request_timeout=timedelta(milliseconds=1),
        )
        self.server = SearchServer(self.settings.search, self.fake)

    def sink(self, settings: SearchSinkSettings | None = None, **options: Any) -> SearchSink:
        return SearchSink(settings or self.settings, self.fake, **options)

    def refuses(self, settings: SearchSinkSettings | None = None) -> None:
        """Raises what a run raises, after the dry run has raised the same and has written nothing."""
        before = deepcopy(self.fake.indexes)
        with pytest.raises(SlackwaterError) as checked:
            self.sink(settings).check(QUERY)
        assert before == self.fake.indexes
        with pytest.raises(SlackwaterError) as refused:
            self.sink(settings).open()
        assert str(refused.value) == str(checked.value).replace("its progress", "its outputs")
        raise refused.value

    def publish(self, *batches: DocumentBatch, **options: Any) -> None:
        sink = self.sink(**options)
        sink.open()
        for batch in batches:
            sink.write(QUERY, batch)

    def found(self, alias: str = "orders") -> dict[int, str]:
        answer = self.server.ask("POST", f"/{alias}/_search", {"size": 1000, "query": {"match_all": {}}})
        rows = [hit["_source"] for hit in answer["hits"]["hits"]]
        return {row["id"]: row["name"] for row in rows}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def batches(make_batch: MakeBatch) -> list[DocumentBatch]:
    return [make_batch(n, [document(n + 1, key, f"{key} of {n}") for key in (1, n + 2)]) for n in range(5)]


def document(lsn: int, key: int, name: str | None) -> tuple[int, bytes, bytes | None]:
    row = None if name is None else json.dumps({"id": key, "name": name}).encode()
    return lsn, b'{"id": %d}' % key, row


def test_the_alias_shows_the_newest_version_of_each_document_and_the_ledger_its_commit(
    cluster: Cluster, make_batch: MakeBatch, batches: list[DocumentBatch]
) -> None:
    gone = make_batch(2, [document(21, 2, None), document(22, 9, None)])
    cluster.publish(batches[0], batches[1], gone)
    assert cluster.found() == {1: "1 of 1", 3: "3 of 1"}
    answer = cluster.server.ask("POST", "/slackwater.p/_search", {"size": 9, "query": {"match_all": {}}})
    (record,) = [hit["_source"] for hit in answer["hits"]["hits"]]
    names = ("pipeline", "source", "batch_id", "timeline", "previous_lsn", "commit_lsn")
    assert [record[name] for name in names] == ["p", "inv", 2, 1, 20, 30]


def test_a_run_that_was_overtaken_shows_nothing(cluster: Cluster, batches: list[DocumentBatch]) -> None:
    cluster.publish(batches[0])
    newer = cluster.sink()
    older = cluster.sink(probe=LookAt(SinkStep.PROGRESS, newer.open))
    older.open()
    with pytest.raises(OvertakenError):
        older.write(QUERY, batches[1])
    assert cluster.found() == {1: "1 of 0", 2: "2 of 0"}
    everything = len(cluster.fake.indexes[INDEX].documents)
    newer.open()
    assert everything == len(cluster.fake.indexes[INDEX].documents) == 2, "what was lost is removed"


def test_a_version_that_changed_since_it_was_found_is_not_closed(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    cluster.publish(batches[0])
    index = cluster.fake.indexes[INDEX]
    changed: list[str] = []

    def change(_: str, path: str) -> None:
        if path.startswith(f"/{INDEX}.run") and not changed:
            changed.extend(index.documents)
            index.documents = {key: (99, each) for key, (_, each) in index.documents.items()}

    sink = cluster.sink(replace(cluster.settings, patience=timedelta(seconds=60)))
    sink.open()
    cluster.fake.fails = change
    sink.write(QUERY, batches[1])
    assert cluster.found() == {1: "1 of 1", 2: "2 of 0", 3: "3 of 1"}
    assert index.aliases.keys() & {f"{INDEX}.run-3-{sink._run}"}, "with tokens of another range"  # noqa: SLF001


def test_a_key_may_be_longer_than_the_id_of_a_document(cluster: Cluster, make_batch: MakeBatch) -> None:
    key = b'{"id": "%s"}' % (b"k" * 5000)
    for number in range(2):
        row = b'{"id": 1, "name": "%d"}' % number
        cluster.publish(make_batch(number, [(number * 10 + 1, key, row)]))
    assert cluster.found() == {1: "1"}
    assert max(map(len, cluster.fake.indexes[INDEX].documents)) < 512


def test_bytes_of_a_document_stay_as_they_are(cluster: Cluster, make_batch: MakeBatch) -> None:
    row = b' {"id": 1,  "name": "a \\u00e9 b"}'
    cluster.publish(make_batch(0, [(1, b'{"id": 1}', row), (2, b'{"id": 2}', b"{}")]))
    sources = [source for _, source in cluster.fake.indexes[INDEX].documents.values()]
    assert {each.get("name") for each in sources} == {"a é b", None}
    assert all({"key", "from"} == each["slackwater"].keys() for each in sources)


def test_one_refresh_per_batch(cluster: Cluster, batches: list[DocumentBatch]) -> None:
    cluster.publish(*batches[:2])
    cluster.fake.requests.clear()
    sink = cluster.sink()
    sink.open()
    cluster.fake.requests.clear()
    sink.write(QUERY, batches[2])
    assert [each for each in cluster.fake.requests if "_refresh" in each] == [
        f"POST /{LEDGER},{INDEX}/_refresh"
    ]
    assert cluster.fake.indexes[INDEX].settings["index.refresh_interval"] == "-1"


def test_versions_are_removed_when_they_were_replaced_long_enough_ago(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    clock = MovedClock()
    sink = cluster.sink(clock=clock)
    sink.open()
    sizes = []
    for batch in batches:
        sink.write(QUERY, batch)
        sizes.append(
            (len(cluster.fake.indexes[INDEX].documents), len(cluster.fake.indexes[LEDGER].documents))
        )
        clock.ahead += 200
    assert sizes == [(2, 1), (4, 2), (6, 3), (8, 4), (8, 3)], "200 s from batch to batch, and 300 s are kept"
    assert cluster.found() == {1: "1 of 4", **{n + 2: f"{n + 2} of {n}" for n in range(5)}}


def test_a_failure_to_remove_versions_is_only_logged(
    cluster: Cluster, batches: list[DocumentBatch], caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(cluster.settings, search=SearchSettings(url="http://fake", keep=timedelta()))
    sink = cluster.sink(settings)
    sink.open()
    sink.write(QUERY, batches[0])
    cluster.fake.fails = lambda _, path: (
        (429, "busy", "later") if path.startswith(f"/{LEDGER}/_search") else None
    )
    sink.write(QUERY, batches[1])
    assert "replaced versions could not be removed yet" in caplog.text
    assert cluster.found()[1] == "1 of 1"


FAILURES = [
    pytest.param((429, "es_rejected_execution_exception", "queue is full"), id="busy"),
    pytest.param((403, "cluster_block_exception", "disk usage exceeded flood-stage watermark"), id="disk"),
    pytest.param((503, "cluster_manager_not_discovered_exception", "none"), id="no manager"),
    pytest.param((409, "version_conflict_engine_exception", "changed"), id="conflict"),
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("place", ["_bulk", "_refresh", "_aliases", "_search"])
def test_what_may_pass_is_tried_again(
    cluster: Cluster, batches: list[DocumentBatch], failure: tuple[int, str, str], place: str
) -> None:
    sink = cluster.sink(replace(cluster.settings, patience=timedelta(seconds=60)))
    sink.open()
    sink.write(QUERY, batches[0])
    left = [failure, failure]
    cluster.fake.fails = lambda _, path: left.pop() if left and place in path else None
    report = sink.write(QUERY, batches[1])
    assert (report.documents, left) == (2, [])
    assert cluster.found() == {1: "1 of 1", 2: "2 of 0", 3: "3 of 1"}


def test_what_does_not_pass_ends_the_run_with_the_cause(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    sink = cluster.sink()
    sink.open()
    cluster.fake.fails = lambda _, path: (429, "busy", "queue is full") if "_bulk" in path else None
    with pytest.raises(
        UnavailableError, match=r"search cluster at http://fake did not complete batch 0.*queue"
    ):
        sink.write(QUERY, batches[0])


@pytest.mark.parametrize(
    "failure",
    [
        (401, "security_exception", "missing authentication"),
        (403, "security_exception", "no permissions for [indices:admin/aliases]"),
        (
            403,
            "cluster_block_exception",
            "index [orders-versions] blocked by: [FORBIDDEN/8/index write (api)]",
        ),
    ],
)
def test_rights_and_blocks_are_refused_by_name(
    cluster: Cluster, batches: list[DocumentBatch], failure: tuple[int, str, str]
) -> None:
    sink = cluster.sink(replace(cluster.settings, patience=timedelta(days=1)))
    sink.open()
    cluster.fake.fails = lambda *_: failure
    with pytest.raises(OutputRefusedError, match=re.escape(failure[2])) as refused:
        sink.write(QUERY, batches[0])
    assert "(cluster:monitor/main; on orders*, slackwater.p*: create, delete, read," in refused.value.hint


def test_a_document_that_does_not_fit_is_named(cluster: Cluster, make_batch: MakeBatch) -> None:
    row = b'{"id": 9223372036854775808, "name": "a"}'
    with pytest.raises(
        OutputRefusedError, match=r"view 'orders' in index orders, key \{\"id\": 7\}, commit LSN 0/A.*\[id\]"
    ):
        cluster.publish(make_batch(0, [(1, b'{"id": 7}', row)]))
    assert cluster.found() == {}


def test_an_index_that_was_created_again_is_noticed_while_a_run_lasts(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    def create_again() -> None:
        mappings = cluster.fake.indexes.pop(INDEX).mappings
        cluster.server.ask("PUT", f"/{INDEX}", {"mappings": mappings})

    cluster.publish(batches[0])
    sink = cluster.sink(probe=LookAt(SinkStep.PROGRESS, create_again))
    sink.open()
    with pytest.raises(StateError, match=r"index orders-versions of view 'orders' is not the one"):
        sink.write(QUERY, batches[1])


@pytest.mark.parametrize("is_there", [False, True])
def test_an_index_that_was_lost_is_refused_unless_it_is_accepted(
    cluster: Cluster, batches: list[DocumentBatch], is_there: bool
) -> None:
    cluster.publish(*batches[:2])
    mappings = cluster.fake.indexes.pop(INDEX).mappings
    if is_there:
        cluster.server.ask("PUT", f"/{INDEX}", {"mappings": mappings})
    with pytest.raises(StateError, match=r"is not the one that its batches were written to"):
        cluster.publish(batches[2])
    accepting = cluster.sink(replace(cluster.settings, accept_changed_output=True))
    accepting.open()
    accepting.write(QUERY, batches[2])
    cluster.publish(batches[3])
    assert cluster.found() == {1: "1 of 3", 4: "4 of 2", 5: "5 of 3"}


def test_an_alias_that_somebody_removed_comes_back_with_the_next_batch(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    cluster.publish(batches[0])
    del cluster.fake.indexes[INDEX].aliases["orders"]
    cluster.publish(batches[1])
    assert cluster.found() == {1: "1 of 1", 2: "2 of 0", 3: "3 of 1"}


def test_aliases_with_the_same_filter_are_moved_and_others_are_not(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    cluster.publish(batches[0])
    aliases = cluster.fake.indexes[INDEX].aliases
    aliases["similar"], aliases["other"] = aliases["orders"], {"filter": {"term": {"id": 1}}}
    cluster.publish(batches[1])
    assert cluster.found("similar") == cluster.found() == {1: "1 of 1", 2: "2 of 0", 3: "3 of 1"}
    assert cluster.fake.indexes[INDEX].aliases["other"] == {"filter": {"term": {"id": 1}}}


def test_readers_who_are_switched_during_a_commit_are_at_its_commit(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    cluster.publish(batches[0])
    aliases = cluster.fake.indexes[INDEX].aliases

    def switch() -> None:
        cluster.fake.indexes[INDEX].aliases["similar"] = aliases["orders"]

    cluster.publish(batches[1], probe=LookAt(SinkStep.PROGRESS, switch))
    assert cluster.found("similar") == cluster.found()


@pytest.mark.parametrize("name", [LEDGER, "slackwater.p"])
def test_a_ledger_that_was_damaged_is_refused(
    cluster: Cluster, batches: list[DocumentBatch], name: str
) -> None:
    cluster.publish(batches[0])
    if name == LEDGER:
        cluster.fake.indexes[name].documents.clear()
    else:
        del cluster.fake.indexes[LEDGER].aliases[name]
    with pytest.raises(StateError, match=r"its ledger, index slackwater.p-versions, was changed by others"):
        cluster.publish(batches[1])


def test_indexes_without_their_ledger_are_refused(cluster: Cluster, batches: list[DocumentBatch]) -> None:
    """Tokens would begin again, and old documents would be shown."""
    cluster.publish(batches[0])
    del cluster.fake.indexes[LEDGER]
    with pytest.raises(ConfigError, match="is not one that the pipeline or its ledger knows"):
        cluster.refuses()


def test_an_index_of_another_pipeline_is_refused(cluster: Cluster, batches: list[DocumentBatch]) -> None:
    cluster.publish(batches[0])
    with pytest.raises(ConfigError, match="index orders-versions is not one that the pipeline"):
        cluster.refuses(replace(cluster.settings, pipeline="other"))


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [
        ({"distribution": "opensearch", "number": "1.3.20"}, False),
        ({"distribution": "opensearch", "number": "2.0.0"}, True),
        ({"distribution": "opensearch", "number": "3.1.0-SNAPSHOT"}, True),
        ({"number": "7.11.2"}, False),
        ({"number": "7.12.0"}, True),
        ({"number": "8.19.3"}, True),
        ({"distribution": "other", "number": "9.0"}, False),
        ({}, False),
    ],
)
def test_a_cluster_that_is_too_old_is_refused_with_the_version_that_is_needed(
    cluster: Cluster, version: dict[str, str], is_enough: bool
) -> None:
    cluster.fake.version = version
    if is_enough:
        cluster.publish()
        return
    number, kind = version.get("number", "none"), version.get("distribution", "elasticsearch")
    with pytest.raises(ConfigError, match=f"version {number} of {kind}: OpenSearch 2.0 or later, or Elast"):
        cluster.refuses()
    assert cluster.fake.indexes == {}


def test_somebody_who_may_not_ask_for_the_version_is_refused(cluster: Cluster) -> None:
    cluster.fake.fails = lambda _, path: (
        (403, "security_exception", "no permissions") if path == "/" else None
    )
    with pytest.raises(OutputRefusedError, match="no permissions"):
        cluster.refuses()


@pytest.mark.parametrize(
    ("setting", "value"), [("index.translog.durability", "async"), ("index.replication.type", "SEGMENT")]
)
def test_settings_that_break_the_promises_are_refused(
    cluster: Cluster, batches: list[DocumentBatch], setting: str, value: str
) -> None:
    cluster.publish(batches[0])
    cluster.fake.indexes[INDEX].settings[setting] = value
    with pytest.raises(ConfigError, match=f"{setting} = {value}"):
        cluster.refuses()


def test_another_mapping_is_refused_with_the_difference(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    cluster.publish(batches[0])
    columns = (OutputColumn("id", "VARCHAR"), OutputColumn("lines", "STRUCT(n INTEGER)[]"))
    outputs = (replace(cluster.settings.outputs[0], columns=columns),)
    with pytest.raises(ConfigError, match="view 'orders': field id has type long, and the view needs text"):
        cluster.refuses(replace(cluster.settings, outputs=outputs))


def test_fields_within_fields_are_compared_too() -> None:
    was, now = (
        mapping.mapping_of("p", [OutputColumn("lines", f"STRUCT(n {kind}, t VARCHAR)[]")])
        for kind in ("INTEGER", "BIGINT")
    )
    assert [*mapping.changed_fields(now, was)] == ["lines.n has type integer, and the view needs long"]
    assert [*mapping.changed_fields(was, was)] == []


def test_a_field_that_an_index_lacks_is_added(cluster: Cluster, batches: list[DocumentBatch]) -> None:
    cluster.publish(batches[0])
    outputs = (replace(cluster.settings.outputs[0], columns=(*COLUMNS, OutputColumn("more", "DATE"))),)
    cluster.sink(replace(cluster.settings, outputs=outputs)).open()
    assert cluster.fake.indexes[INDEX].mappings["properties"]["more"]["type"] == "date"


def test_an_alias_that_shows_another_index_is_refused(cluster: Cluster) -> None:
    cluster.server.ask("PUT", "/other", {"aliases": {"orders": {}}})
    with pytest.raises(ConfigError, match="the alias of a view is also the name or an alias of index other"):
        cluster.refuses()


def test_an_index_with_the_name_of_the_alias_is_refused(cluster: Cluster) -> None:
    cluster.server.ask("PUT", "/orders", {})
    with pytest.raises(ConfigError, match="the alias of a view is also the name or an alias of index orders"):
        cluster.refuses()


def test_a_take_over_whose_answer_was_lost_is_repeated(
    cluster: Cluster, batches: list[DocumentBatch]
) -> None:
    sink = cluster.sink(replace(cluster.settings, request_timeout=timedelta(seconds=60)))
    lost_answers = [True]

    def fails(_: str, path: str) -> tuple[int, str, str] | None:
        if path == "/_aliases" and lost_answers:
            lost_answers.pop()
            found = sink._ledger.load()  # noqa: SLF001 - does what the request would have done
            sink._ledger.take(found)  # noqa: SLF001
            return 503, "timeout", "no answer"
        return None

    cluster.fake.fails = fails
    sink.open()
    sink.write(QUERY, batches[0])
    assert cluster.found() == {1: "1 of 0", 2: "2 of 0"}


def test_no_state_is_held_for_readers(cluster: Cluster) -> None:
    commit = CommitPosition(1, 10)
    assert cluster.sink().hold({commit: SystemClock().now()}) == {
        commit: "a search index keeps no former states"
    }
    assert cluster.sink().hold({}) == {}


def test_tokens_are_committed_in_a_limited_number_of_ranges() -> None:
    ranges: Any = ()
    for run in range(1, 301):
        for token in (1, 2):
            ranges = with_token(ranges, (run << 32) + token)
    assert len(ranges) == 100
    assert ranges[0] == ((1 << 32) + 1, (201 << 32) + 2)
    assert ranges[-1] == ((300 << 32) + 1, (300 << 32) + 2)


def test_the_filter_of_no_token_finds_nothing() -> None:
    assert tokens("slackwater.to", []) == {"match_none": {}}


@pytest.mark.parametrize("name", ["slackwater", "_id", "a.b", " "])
def test_columns_that_cannot_be_fields_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot have a field"):
        mapping.check_names("v", [OutputColumn(name, "BIGINT")])
