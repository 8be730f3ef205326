"""What every sink promises: one suite over real servers of each kind, with twins whose mechanism is off."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql

from slackwater.dev import PostgresServer, Server
from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import Emit, OutputRefusedError, OutputTable, SinkStep
from slackwater.outputs.kafka.settings import KafkaSinkSettings
from slackwater.outputs.kafka.sink import KafkaSink
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.ledger import Ledger
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.outputs.lake.table import Lake
from slackwater.outputs.postgres.ledger import Database
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.outputs.postgres.tables import PostgresSinkSettings
from slackwater.outputs.search.ledger import FROM, index_of, tokens, visible
from slackwater.outputs.search.ledger import Ledger as SearchLedger
from slackwater.outputs.search.server import SearchError, SearchServer, SendRequest
from slackwater.outputs.search.sink import SearchSink, SearchSinkSettings
from slackwater.outputs.sink import Sink, Waiting
from slackwater.protocol import (
    LakeSettings,
    OvertakenError,
    PostgresSettings,
    ProgressRecord,
    SearchSettings,
    StateError,
    UnavailableError,
)
from slackwater.protocol.keys import lake_ledger
from slackwater.sql.plan import OutputColumn
from slackwater_lab.fakes.search import SearchFake
from slackwater_lab.probes import CrashAt, CrashError, LookAt

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
QUERY = "0f5c2f6e-query"
Version = tuple[str, int]
"""Key and commit LSN of a document."""
NOTHING: Mapping[str, Any] = {}
STEPS_BEFORE_COMMIT = [step for step in SinkStep if step is not SinkStep.COMMITTED]
STEPS_OF_BOTH = [step for step in STEPS_BEFORE_COMMIT if step is not SinkStep.COMMIT_RECORDS]
LATE_STEPS = [
    pytest.param(step, marks=() if step in STEPS_OF_BOTH[-2:] else pytest.mark.slow) for step in STEPS_OF_BOTH
]
"""The last two, when everything is written, are in CI; `make soak` has the others, too."""


ONE_TOPIC = "kafka, one topic"
"""Both views are in the same topic."""
OF_POSTGRES = pytest.mark.parametrize("output", ["postgres"], indirect=True)
LAKES = ["delta", "iceberg"]
OF_LAKES = pytest.mark.parametrize("output", LAKES, indirect=True)
INDEXES = ["opensearch", "search-fake"]
OF_INDEXES = pytest.mark.parametrize("output", INDEXES, indirect=True)
OF_TABLES = pytest.mark.parametrize("output", ["postgres", *LAKES, *INDEXES], indirect=True)


class Output(Protocol):
    """A kind of sink with its server, and a pipeline of two views that nobody else has."""

    def sink(self, **options: Any) -> Sink: ...

    def without_progress_check(self) -> Sink: ...

    def versions(self, view: int = 0) -> list[Version]:
        """All documents that a reader sees, in order of their commits."""
        ...


class KafkaNoCheck(KafkaSink):
    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return False


class KafkaOutput:
    def __init__(self, settings: KafkaSinkSettings, topics: Any, server: Server) -> None:
        self._settings = settings
        self._topics = topics
        self.server = server

    def sink(self, *, times: Mapping[str, Any] = NOTHING, **options: Any) -> Sink:
        return KafkaSink(replace(self._settings, **times), **options)

    def without_progress_check(self) -> Sink:
        return KafkaNoCheck(self._settings)

    def versions(self, view: int = 0) -> list[Version]:
        found = self._topics.documents(self._settings, view=view)
        outputs = self._settings.outputs
        if found:  # both forms of commit records become visible with the documents that they count
            commits = self._topics.avro_commits(self._settings, view)
            assert sum(each["record_count"] for each in commits) == sum(
                len(self._topics.records(topic)) for topic in {each.name for each in outputs}
            )
        name = outputs[view].view.encode()
        own = [record for record in found if record.headers.get("slackwater-view", name) == name]
        return sorted((r.key.decode(), int(r.headers["slackwater-commit-lsn"])) for r in own)


class PostgresInTwo(PostgresSink):
    """The documents are committed before the ledger's row is written."""

    def _check_tables(self, database: Database) -> None:
        super()._check_tables(database)
        database.execute("COMMIT")
        database.execute("BEGIN")


class PostgresNoCheck(PostgresSink):
    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return False


class PostgresNoFencing(PostgresSink):
    def _own_row(self, database: Database) -> ProgressRecord:
        from slackwater.outputs.postgres import ledger

        return ledger.lock_row(database, self._settings.pipeline)


class PostgresOutput:
    def __init__(self, settings: PostgresSinkSettings, server: Server) -> None:
        self.settings = settings
        self.server = server

    def sink(self, *, times: Mapping[str, Any] = NOTHING, **options: Any) -> Sink:
        return PostgresSink(replace(self.settings, **times), **options)

    def in_two_transactions(self, **options: Any) -> Sink:
        return PostgresInTwo(self.settings, **options)

    def without_progress_check(self) -> Sink:
        return PostgresNoCheck(self.settings)

    def without_fencing(self, **options: Any) -> Sink:
        return PostgresNoFencing(self.settings, **options)

    def versions(self, view: int = 0) -> list[Version]:
        table = self.settings.outputs[view]
        with psycopg.connect(self.settings.postgres.url) as database:
            name = f"{table.name}_history"
            if database.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
                return []
            history = sql.Identifier(*name.split("."))
            rows = database.execute(sql.SQL("SELECT id, valid_from_lsn FROM {}").format(history))
            return sorted((json.dumps({"id": key}), lsn) for key, lsn in rows)


class LakeNoCheck(LakeSink):
    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return False


class LakeNoRollBack(LakeSink):
    """What the ledger does not name stays in the tables."""

    def _roll_back(self, output: Any, table: Any, named: int) -> None: ...


class OpenLedger(Ledger):
    """Belongs to the writer."""

    def refresh(self) -> None:
        self._run = self._table.load().properties["slackwater.run"]  # type: ignore[union-attr]
        super().refresh()


class LakeNoFencing(LakeSink):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ledger = OpenLedger(self._lake, self._settings.pipeline, self._run)


class LakeOutput:
    def __init__(self, settings: LakeSinkSettings, lake: Lake) -> None:
        self.settings = settings
        self.lake = lake

    def sink(self, **options: Any) -> Sink:
        return LakeSink(self.settings, self.lake, **options)

    def without_progress_check(self) -> Sink:
        return LakeNoCheck(self.settings, self.lake)

    def without_roll_back(self) -> Sink:
        return LakeNoRollBack(self.settings, self.lake)

    def without_fencing(self, **options: Any) -> Sink:
        return LakeNoFencing(self.settings, self.lake, **options)

    def rows(self, name: str, snapshot: int | None = None) -> list[dict[str, Any]]:
        """The rows of a snapshot; None: of the newest one, as readers see them without a ledger."""
        table = self.lake.table(name)
        head = table.load()
        if head is None:
            return []
        found: list[dict[str, Any]] = table.read(head.id if snapshot is None else snapshot).to_pylist()
        return found

    def versions(self, view: int = 0) -> list[Version]:
        """What differs, from each row of the ledger to those of later batches; a row's value is its LSN."""
        name = self.settings.outputs[view].name
        rows = sorted(self.rows(lake_ledger(self.settings.pipeline)), key=lambda row: row["batch_id"])
        states: dict[int, set[Version]] = {-1: set()}
        found: list[Version] = []
        for row in rows:
            state = {
                (json.dumps({"id": each["id"]}), each["value"])
                for each in self.rows(name, dict(row["snapshots"])[name])
            }
            found += state - states[max(batch for batch in states if batch < row["batch_id"])]
            states[row["batch_id"]] = state
        return sorted(found)


class SearchNoCheck(SearchSink):
    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return False


class OpenRuns(SearchLedger):
    """Every run that writes has taken over."""

    def load(self) -> Any:
        found = super().load()
        self._run = found.run or self._run
        return found


class SearchNoFencing(SearchSink):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        aliases = [output.name for output in self._settings.outputs]
        self._ledger = OpenRuns(self._server, self._settings.pipeline, self._run, aliases)

    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        self._state = self._ledger.load()
        return self._state.progress


class SearchOutput:
    def __init__(self, settings: SearchSinkSettings, server: Any, send: SendRequest | None = None) -> None:
        self.settings = settings
        self.server = server
        self.send = send
        self.cluster = SearchServer(settings.search, *([send] if send else []))

    def sink(self, *, times: Mapping[str, Any] = NOTHING, **options: Any) -> Sink:
        return SearchSink(replace(self.settings, **times), self.send, **options)

    def without_progress_check(self) -> Sink:
        return SearchNoCheck(self.settings, self.send)

    def without_fencing(self, **options: Any) -> Sink:
        return SearchNoFencing(self.settings, self.send, **options)

    def rows(self, name: str, query: Any = None) -> list[dict[str, Any]]:
        """What a search finds; other people have refreshed everything before."""
        try:
            self.cluster.ask("POST", f"/{self.settings.pipeline}*/_refresh")
            body = {"size": 1000, "query": query or {"match_all": {}}}
            hits = self.cluster.ask("POST", f"/{name}/_search", body)["hits"]["hits"]
        except SearchError as error:
            if error.is_missing:
                return []
            raise
        return [hit["_source"] for hit in hits]

    def versions(self, view: int = 0) -> list[Version]:
        """Every version whose token is committed: none is removed as quickly as a test ends."""
        records = self.rows(f"slackwater.{self.settings.pipeline}")
        if not records:
            return []
        written = tokens(FROM, records[0]["state"]["committed"])
        rows = self.rows(index_of(self.settings.outputs[view].name), written)
        return sorted((json.dumps({"id": row["id"]}), row["value"]) for row in rows)


def search_output(pipeline: str, url: str, server: Any, send: SendRequest | None = None) -> SearchOutput:
    columns = (OutputColumn("id", "VARCHAR"), OutputColumn("value", "BIGINT"))
    outputs = tuple(
        OutputTable(name=f"{pipeline}.{name}", columns=columns, key=("id",), view=name, what="index")
        for name in ("one", "two")
    )
    search = SearchSettings(url=url)
    settings = SearchSinkSettings(pipeline=pipeline, outputs=outputs, emit=Emit.TRANSACTIONS, search=search)
    return SearchOutput(settings, server, send)


def lake_output(kind: str, place: Path, pipeline: str) -> LakeOutput:
    columns = (OutputColumn("id", "VARCHAR"), OutputColumn("value", "BIGINT"))
    outputs = tuple(
        OutputTable(name=f"s.{name}", columns=columns, key=("id",), view=name) for name in ("one", "two")
    )
    lake = lake_settings(kind, place)
    settings = LakeSinkSettings(pipeline=pipeline, outputs=outputs, emit=Emit.TRANSACTIONS, lake=lake)
    return LakeOutput(settings, DeltaLake(lake) if kind == "delta" else IcebergLake(lake))


def lake_settings(kind: str, place: Path) -> LakeSettings:
    if kind == "delta":
        return LakeSettings(place=str(place))
    catalogue, warehouse = f"sqlite:///{place / 'catalogue.db'}", f"file://{place}"
    return LakeSettings(place="test", options={"type": "sql", "uri": catalogue, "warehouse": warehouse})


def table(schema: str, name: str, **options: Any) -> OutputTable:
    columns = (OutputColumn("id", "VARCHAR"), OutputColumn("value", "BIGINT"))
    return OutputTable(name=f"{schema}.{name}", columns=columns, key=("id",), view=name, **options)


@pytest.fixture(params=["kafka", ONE_TOPIC, "postgres", *LAKES, *INDEXES])
def output(request: pytest.FixtureRequest) -> Iterator[Output]:
    if request.param in ("kafka", ONE_TOPIC):
        plain = request.getfixturevalue("make_settings")(Emit.TRANSACTIONS, views=2)
        settings = request.getfixturevalue("in_avro")(plain)
        if request.param == ONE_TOPIC:
            settings = request.getfixturevalue("in_one_topic")(settings)
        broker = request.getfixturevalue("kafka_broker")
        yield KafkaOutput(settings, request.getfixturevalue("topics"), broker)
        return
    name = f"p{uuid.uuid4().hex[:12]}"
    if request.param == "search-fake":
        yield search_output(name, "http://fake", None, SearchFake())
        return
    if request.param == "opensearch":
        node = request.getfixturevalue("search_node")
        yield search_output(name, node.address, node)
        return
    if request.param in LAKES:
        yield lake_output(request.param, request.getfixturevalue("tmp_path"), name)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    yield PostgresOutput(
        PostgresSinkSettings(
            pipeline=name,
            outputs=(table(name, "one", history=True), table(name, "two", history=True)),
            emit=Emit.TRANSACTIONS,
            postgres=PostgresSettings(server.dsn()),
        ),
        server,
    )


def documents(batch_id: int) -> list[tuple[int, bytes, bytes]]:
    """One for each of a batch's ten commits; each second one changes a key that the batch before had."""
    return [
        (lsn, b'{"id": "k%d"}' % (lsn % 15), b'{"id": "k%d", "value": %d}' % (lsn % 15, lsn))
        for lsn in range(10 * batch_id + 1, 10 * batch_id + 11)
    ]


@pytest.fixture
def batches(make_batch: MakeBatch) -> list[DocumentBatch]:
    return [
        make_batch(
            n, documents(n), others={1: [(10 * n + 1, b'{"id": "b"}', b'{"id": "b", "value": %d}' % n)]}
        )
        for n in range(3)
    ]


def expected(*batch_ids: int) -> list[Version]:
    return sorted((key.decode(), lsn) for n in batch_ids for lsn, key, _ in documents(n))


def run(sink: Sink, batches: list[DocumentBatch]) -> None:
    sink.open()
    try:
        for batch in batches:
            sink.write(QUERY, batch)
    finally:
        sink.close()


def test_every_document_becomes_visible_once_with_its_commit(
    output: Output, batches: list[DocumentBatch]
) -> None:
    run(output.sink(), batches)
    assert output.versions() == expected(0, 1, 2)


@pytest.mark.full
def test_a_new_run_is_told_the_newest_visible_batch(output: Output, batches: list[DocumentBatch]) -> None:
    first = output.sink()
    assert first.open() is None
    first.close()
    run(output.sink(), batches[:2])
    sink = output.sink()
    sink.check(QUERY)
    found = sink.open()
    sink.close()
    assert found is not None
    assert (found.batch_id, found.commit_lsn, found.query_id, found.state) == (1, 20, QUERY, "state 1")


def test_outputs_say_at_which_source_their_chain_begins(output: Output, batches: list[DocumentBatch]) -> None:
    asked: list[str] = []

    def find_root(known: str) -> str:
        asked.append(known)
        return "database"

    def root_after(*written: DocumentBatch) -> str:
        sink = output.sink()
        sink.find_root = find_root
        run(sink, [*written])
        with closing(output.sink()) as reader:
            found = reader.open()
        return "" if found is None else found.root

    assert (root_after(), asked) == ("", []), "nobody has registered before anything is visible"
    earlier_version = output.sink()
    earlier_version.find_root = lambda known: ""
    run(earlier_version, batches[:1])
    assert root_after() == "database", "a run that begins says it, though nothing changes"
    assert root_after(batches[1]) == "database"
    assert asked == ["inv", "database"], "once a run"
    run(output.sink(), batches[2:])
    assert root_after() == "database"


@pytest.mark.full
@pytest.mark.parametrize("step", LATE_STEPS)
def test_nothing_of_a_batch_is_visible_before_its_commit(
    output: Output, batches: list[DocumentBatch], step: SinkStep
) -> None:
    seen: list[int] = []
    probe = LookAt(step, lambda: seen.extend(len(output.versions(view)) for view in (0, 1)))
    run(output.sink(probe=probe), batches[:2])
    assert seen == [0, 0, 10, 1]
    assert [len(output.versions(view)) for view in (0, 1)] == [20, 2]


@pytest.mark.full
@pytest.mark.parametrize("step", list(SinkStep))
def test_a_crash_at_any_step_neither_loses_nor_repeats(
    output: Output, batches: list[DocumentBatch], step: SinkStep
) -> None:
    reached: list[SinkStep] = []
    crash = CrashAt(step, 1)

    def probe(at: SinkStep, batch_id: int) -> None:
        reached.append(at)
        crash(at, batch_id)

    try:
        run(output.sink(probe=probe), batches)
    except CrashError:
        run(output.sink(), batches[1:])
    assert output.versions() == expected(0, 1, 2)
    assert step in reached or step is SinkStep.COMMIT_RECORDS


def test_a_batch_that_is_visible_is_found_and_not_written_again(
    output: Output, batches: list[DocumentBatch]
) -> None:
    run(output.sink(), batches[:2])
    sink = output.sink()
    sink.open()
    report = sink.write(QUERY, batches[1])
    sink.close()
    assert (report.was_covered, report.documents) == (True, 0)
    assert output.versions() == expected(0, 1)


def test_without_the_progress_check_a_crash_after_the_commit_repeats_documents(
    output: Output, batches: list[DocumentBatch]
) -> None:
    with pytest.raises(CrashError):
        run(output.sink(probe=CrashAt(SinkStep.COMMITTED, 1)), batches[:2])
    assert repeats(output, output.without_progress_check(), batches[1]), "the crash tests cannot fail"


@OF_POSTGRES
def test_without_one_transaction_a_crash_repeats_documents(
    output: PostgresOutput, batches: list[DocumentBatch]
) -> None:
    """For Kafka test_exactly_once.py has it, with a producer of its own."""
    run(output.sink(), batches[:1])
    with pytest.raises(CrashError):
        run(output.in_two_transactions(probe=CrashAt(SinkStep.PROGRESS, 1)), batches[1:2])
    assert repeats(output, output.sink(), batches[1]), "the crash tests cannot fail"


def repeats(output: Output, sink: Sink, batch: DocumentBatch) -> bool:
    """Tells whether a batch that was written comes again, or would if the versions' key did not forbid it."""
    try:
        run(sink, [batch])
    except OutputRefusedError as error:
        return "already exists" in error.reason
    return len(output.versions()) == 30


@pytest.mark.full
@pytest.mark.parametrize("step", LATE_STEPS)
def test_a_run_that_was_overtaken_says_so_every_time_and_leaves_nothing(
    output: Output, batches: list[DocumentBatch], step: SinkStep
) -> None:
    newer = output.sink()
    older = output.sink(probe=LookAt(step, newer.open))
    older.open()
    for _ in range(2):
        with pytest.raises(OvertakenError, match="another run of pipeline"):
            older.write(QUERY, batches[0])
    assert output.versions() == []
    newer.write(QUERY, batches[0])
    assert output.versions() == expected(0)
    older.close()
    newer.close()


@OF_TABLES
def test_without_fencing_an_overtaken_run_writes(
    output: PostgresOutput | LakeOutput, batches: list[DocumentBatch]
) -> None:
    """Of Kafka the broker fences: nothing of ours could be switched off."""
    newer = output.sink()
    older = output.without_fencing(probe=LookAt(SinkStep.COLLECTED, newer.open))
    older.open()
    older.write(QUERY, batches[0])
    assert output.versions() == expected(0), "the tests of fencing cannot fail"
    older.close()
    newer.close()


def test_a_second_checkpoint_under_one_name_is_refused(output: Output, batches: list[DocumentBatch]) -> None:
    run(output.sink(), batches[:1])
    other = output.sink()
    with pytest.raises(StateError, match=r"is taken.*`slackwater pipeline reset .*slackwater revise rollout"):
        other.check("another-query")
    other.open()
    with pytest.raises(StateError, match="is taken"):
        other.write("another-query", batches[1])
    other.close()


@pytest.mark.full
def test_a_checkpoint_that_is_older_than_the_output_is_refused(
    output: Output, batches: list[DocumentBatch]
) -> None:
    run(output.sink(), batches)
    with pytest.raises(StateError, match="does not follow it"):
        run(output.sink(), batches[1:2])
    assert output.versions() == expected(0, 1, 2)


@pytest.mark.full
@OF_LAKES
@pytest.mark.parametrize("step", [SinkStep.PRODUCED, SinkStep.FLUSHED, SinkStep.PROGRESS])
def test_the_rows_of_a_batch_that_was_lost_are_in_no_later_one(
    output: LakeOutput, batches: list[DocumentBatch], make_batch: MakeBatch, step: SinkStep
) -> None:
    """The batch is planned again and ends elsewhere: what is in the tables of it cannot be kept."""
    run(output.sink(), batches[:1])
    with pytest.raises(CrashError):
        run(output.sink(probe=CrashAt(step, 1)), batches[1:2])
    assert len(output.rows("s.one")) == 15, "nothing was lost"
    shorter = make_batch(1, documents(1)[:2], to_lsn=12)
    run(output.sink(), [shorter])
    expected = {row["id"]: row["value"] for lsn, _, row in map(read, documents(0) + documents(1)[:2])}
    assert {row["id"]: row["value"] for row in output.rows("s.one")} == expected
    assert [(row["id"], row["value"]) for row in output.rows("s.two")] == [("b", 0)]


@pytest.mark.full
@OF_LAKES
def test_without_rolling_back_a_later_batch_shows_rows_of_a_lost_one(
    output: LakeOutput, batches: list[DocumentBatch], make_batch: MakeBatch
) -> None:
    run(output.sink(), batches[:1])
    with pytest.raises(CrashError):
        run(output.sink(probe=CrashAt(SinkStep.PROGRESS, 1)), batches[1:2])
    run(output.without_roll_back(), [make_batch(1, documents(1)[:2], to_lsn=12)])
    assert len(output.versions()) == 20, "the test of lost batches cannot fail"


@OF_LAKES
def test_without_the_ledger_a_batch_is_visible_in_parts(
    output: LakeOutput, batches: list[DocumentBatch]
) -> None:
    seen: list[tuple[int, int]] = []
    probe = LookAt(
        SinkStep.PRODUCED, lambda: seen.append((len(output.rows("s.one")), len(output.rows("s.two"))))
    )
    run(output.sink(probe=probe), batches[:1])
    assert seen == [(10, 0)], "the test of visibility cannot fail"


def shown(*, after: int) -> dict[str, int]:
    """What views one and two show after a batch."""
    found = {row["id"]: row["value"] for n in range(after + 1) for _, _, row in map(read, documents(n))}
    return {**found, "b": after}


def found_at(output: SearchOutput) -> dict[str, int]:
    """What one search over both views finds."""
    names = ",".join(each.name for each in output.settings.outputs)
    return {row["id"]: row["value"] for row in output.rows(names)}


@pytest.mark.full
@OF_INDEXES
def test_no_search_finds_a_part_of_a_batch_whatever_is_refreshed(
    output: SearchOutput, batches: list[DocumentBatch]
) -> None:
    seen: list[dict[str, int]] = []
    run(output.sink(), batches[:1])
    run(output.sink(probe=lambda step, _: seen.append(found_at(output))), batches[1:2])
    before, after = shown(after=0), shown(after=1)
    assert seen == [before, before, before, before, before, after]


@pytest.mark.full
@pytest.mark.parametrize("output", ["opensearch"], indirect=True)
def test_a_restart_of_the_node_shows_nothing_of_a_batch(
    output: SearchOutput, batches: list[DocumentBatch]
) -> None:
    """Everything that was acknowledged is searchable after it, whether it was refreshed or not."""

    def restart() -> None:
        output.server.kill()
        output.server.start()
        index = index_of(output.settings.outputs[0].name)
        assert len(output.rows(index)) == 20, "the versions are there"
        assert found_at(output) == shown(after=0)

    run(output.sink(), batches[:1])
    run(output.sink(probe=LookAt(SinkStep.PRODUCED, restart)), batches[1:2])
    assert found_at(output) == shown(after=1)


@OF_INDEXES
def test_without_the_alias_a_batch_is_found_in_parts(
    output: SearchOutput, batches: list[DocumentBatch]
) -> None:
    seen: list[tuple[int, ...]] = []
    indexes = [index_of(each.name) for each in output.settings.outputs]
    probe = LookAt(SinkStep.PRODUCED, lambda: seen.append(tuple(len(output.rows(each)) for each in indexes)))
    run(output.sink(probe=probe), batches[:1])
    assert seen == [(10, 0)], "the test of visibility cannot fail"


@pytest.mark.full
@OF_INDEXES
@pytest.mark.parametrize("step", [SinkStep.PRODUCED, SinkStep.FLUSHED, SinkStep.PROGRESS])
def test_the_documents_of_a_batch_that_was_lost_are_in_no_later_one(
    output: SearchOutput, batches: list[DocumentBatch], make_batch: MakeBatch, step: SinkStep
) -> None:
    """The batch is planned again and ends elsewhere."""
    run(output.sink(), batches[:1])
    with pytest.raises(CrashError):
        run(output.sink(probe=CrashAt(step, 1)), batches[1:2])
    assert found_at(output) == shown(after=0)
    run(output.sink(), [make_batch(1, documents(1)[:2], to_lsn=12)])
    expected = {row["id"]: row["value"] for _, _, row in map(read, documents(0) + documents(1)[:2])}
    assert found_at(output) == {**expected, "b": 0}
    assert len(output.rows(index_of(output.settings.outputs[0].name))) == 12, "what was lost is removed"


@pytest.mark.full
@OF_INDEXES
@pytest.mark.parametrize("is_delayed_within_the_cluster", [False, True])
def test_what_a_fenced_run_writes_late_is_never_shown(
    output: SearchOutput,
    batches: list[DocumentBatch],
    make_batch: MakeBatch,
    is_delayed_within_the_cluster: bool,
) -> None:
    """Also if the cluster had accepted its requests before the other run began, and does them now."""
    late: list[tuple[str, bytes]] = []

    class Recording(SearchServer):
        def ask(self, method: str, path: str, body: Any = None) -> Any:
            if "/_bulk" in path:
                late.append((path, body))
            return super().ask(method, path, body)

    run(output.sink(), batches[:1])
    older = SearchSink(output.settings, output.send, probe=CrashAt(SinkStep.FLUSHED, 1))
    older.open()
    older._server = Recording(output.settings.search, output.send)  # noqa: SLF001
    with pytest.raises(CrashError):
        older.write(QUERY, batches[1])
    newer = output.sink()
    newer.open()
    for path, body in late:
        accepted = f"{path.partition('.run-')[0]}/_bulk"
        output.cluster.ask("POST", accepted if is_delayed_within_the_cluster else path, body)
    assert found_at(output) == shown(after=0)
    newer.write(QUERY, make_batch(1, documents(1)[:2], to_lsn=12))
    newer.close()
    expected = {row["id"]: row["value"] for _, _, row in map(read, documents(0) + documents(1)[:2])}
    assert found_at(output) == {**expected, "b": 0}
    index, without_lost = index_of(output.settings.outputs[0].name), visible([(0, 1 << 62)])
    arrived = 10 if is_delayed_within_the_cluster else 0
    assert len(output.rows(index, without_lost)) == 12 + arrived, "the filter has nothing to hide"
    run(output.sink(), [])
    assert len(output.rows(index)) == 12, "the next run removes it"


def read(document: tuple[int, bytes, bytes]) -> tuple[int, bytes, dict[str, Any]]:
    return document[0], document[1], json.loads(document[2])


OF_SERVERS = pytest.mark.parametrize("output", ["kafka", ONE_TOPIC, "postgres", "opensearch"], indirect=True)


@pytest.mark.full
@OF_SERVERS
def test_a_server_that_hangs_is_not_waited_for_without_end(
    output: KafkaOutput | PostgresOutput | SearchOutput, batches: list[DocumentBatch]
) -> None:
    """Its machine continues acknowledging what it is sent, so TCP has nothing to complain about."""
    times = {"request_timeout": timedelta(seconds=2), "patience": timedelta(seconds=3)}
    sink = output.sink(times=times, probe=LookAt(SinkStep.FLUSHED, output.server.pause))
    sink.open()
    try:
        with pytest.raises(UnavailableError, match="start the pipeline again"):
            sink.write(QUERY, batches[0])
    finally:
        output.server.resume()
    sink.close()
    run(output.sink(), batches)
    assert output.versions() == expected(0, 1, 2)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("kafka", marks=pytest.mark.slow),
        "postgres",
        pytest.param("opensearch", marks=pytest.mark.full),
    ],
    indirect=True,
)
def test_a_run_that_is_to_stop_waits_no_longer_for_a_server_that_is_away(
    output: KafkaOutput | PostgresOutput | SearchOutput, batches: list[DocumentBatch]
) -> None:
    """Before, it says what it waits for."""
    stop, steps = threading.Event(), list[str]()

    def on_step(step: str) -> None:
        if not output.server.is_running:
            steps.append(step)
            stop.set()

    times = {"request_timeout": timedelta(seconds=2), "patience": timedelta(days=1)}
    probe = LookAt(SinkStep.FLUSHED, output.server.kill)
    sink = output.sink(times=times, probe=probe, waiting=Waiting(stop, on_step))
    sink.open()
    try:
        with pytest.raises(UnavailableError, match="asked to stop while it was waiting"):
            sink.write(QUERY, batches[0])
    finally:
        output.server.start()
    sink.close()
    assert [step.startswith("waiting ") and f" for {sink.place}" in step for step in steps] == [True]
    run(output.sink(), batches)
    assert output.versions() == expected(0, 1, 2)
