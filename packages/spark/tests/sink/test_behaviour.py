"""What every sink promises: one suite over real servers of each kind, with twins whose mechanism is off."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql

from slackwater_devstack import PostgresServer
from slackwater_engine.documents import DocumentBatch
from slackwater_protocol import PostgresSettings, ProgressRecord
from slackwater_spark.errors import OutputRefusedError, PipelineStateError, RunOvertakenError
from slackwater_spark.sink import Emit, Sink, SinkStep
from slackwater_spark.sink.kafka import KafkaSink, KafkaSinkSettings
from slackwater_spark.sink.postgres import OutputTable, PostgresSink, PostgresSinkSettings, TableColumn
from slackwater_spark.sink.postgres.ledger import Database

pytestmark = pytest.mark.integration

MakeBatch = Callable[..., DocumentBatch]
QUERY = "0f5c2f6e-query"
Version = tuple[str, int]
"""Key and commit LSN of a document."""
STEPS_BEFORE_COMMIT = [step for step in SinkStep if step is not SinkStep.COMMITTED]
STEPS_OF_BOTH = [step for step in STEPS_BEFORE_COMMIT if step is not SinkStep.COMMIT_RECORDS]


class CrashError(Exception):
    pass


class CrashAt:
    """Raises once at a step of a batch."""

    def __init__(self, step: SinkStep, batch_id: int) -> None:
        self._place: tuple[SinkStep, int] | None = (step, batch_id)

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        if self._place == (step, batch_id):
            self._place = None
            raise CrashError(step)


class LookAt:
    """Calls a function at a step."""

    def __init__(self, step: SinkStep, look: Callable[[], object]) -> None:
        self._step = step
        self._look = look

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        if step is self._step:
            self._look()


OF_POSTGRES = pytest.mark.parametrize("output", ["postgres"], indirect=True)


class Output(Protocol):
    """A kind of sink with its server, and a pipeline of two views that nobody else has."""

    def sink(self, **options: Any) -> Sink: ...

    def without_progress_check(self) -> Sink: ...

    def versions(self, view: int = 0) -> list[Version]:
        """All documents that a reader sees, in order of their commits."""
        ...


class KafkaNoCheck(KafkaSink):
    def _is_covered(self, batch: DocumentBatch) -> bool:
        return False


class KafkaOutput:
    def __init__(self, settings: KafkaSinkSettings, topics: Any) -> None:
        self._settings = settings
        self._topics = topics

    def sink(self, **options: Any) -> Sink:
        return KafkaSink(self._settings, **options)

    def without_progress_check(self) -> Sink:
        return KafkaNoCheck(self._settings)

    def versions(self, view: int = 0) -> list[Version]:
        found = self._topics.documents(self._settings, view=view)
        return sorted((r.key.decode(), int(r.headers["slackwater-commit-lsn"])) for r in found)


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
        from slackwater_spark.sink.postgres import ledger

        return ledger.lock_row(database, self._settings.pipeline)


class PostgresOutput:
    def __init__(self, settings: PostgresSinkSettings) -> None:
        self.settings = settings

    def sink(self, **options: Any) -> Sink:
        return PostgresSink(self.settings, **options)

    def in_two_transactions(self, **options: Any) -> Sink:
        return PostgresInTwo(self.settings, **options)

    def without_progress_check(self) -> Sink:
        return PostgresNoCheck(self.settings)

    def without_fencing(self, **options: Any) -> Sink:
        return PostgresNoFencing(self.settings, **options)

    def versions(self, view: int = 0) -> list[Version]:
        table = self.settings.outputs[view]
        with psycopg.connect(self.settings.postgres.url) as database:
            name = f"{table.full_name}_history"
            if database.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
                return []
            history = sql.Identifier(table.schema, table.history_name)
            rows = database.execute(sql.SQL("SELECT id, valid_from_lsn FROM {}").format(history))
            return sorted((json.dumps({"id": key}), lsn) for key, lsn in rows)


def table(schema: str, name: str, **options: Any) -> OutputTable:
    columns = (TableColumn("id", "text"), TableColumn("value", "bigint"))
    return OutputTable(schema=schema, name=name, columns=columns, key=("id",), view=name, **options)


@pytest.fixture(params=["kafka", "postgres"])
def output(request: pytest.FixtureRequest) -> Iterator[Output]:
    if request.param == "kafka":
        settings = request.getfixturevalue("make_settings")(Emit.TRANSACTIONS, views=2)
        yield KafkaOutput(settings, request.getfixturevalue("topics"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"p{uuid.uuid4().hex[:12]}"
    yield PostgresOutput(
        PostgresSinkSettings(
            pipeline=name,
            outputs=(table(name, "one", history=True), table(name, "two", history=True)),
            emit=Emit.TRANSACTIONS,
            postgres=PostgresSettings(server.dsn()),
        )
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


@pytest.mark.parametrize("step", STEPS_OF_BOTH)
def test_nothing_of_a_batch_is_visible_before_its_commit(
    output: Output, batches: list[DocumentBatch], step: SinkStep
) -> None:
    seen: list[int] = []
    probe = LookAt(step, lambda: seen.extend(len(output.versions(view)) for view in (0, 1)))
    run(output.sink(probe=probe), batches[:2])
    assert seen == [0, 0, 10, 1]
    assert [len(output.versions(view)) for view in (0, 1)] == [20, 2]


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


@pytest.mark.parametrize("step", STEPS_OF_BOTH)
def test_a_run_that_was_overtaken_says_so_every_time_and_leaves_nothing(
    output: Output, batches: list[DocumentBatch], step: SinkStep
) -> None:
    newer = output.sink()
    older = output.sink(probe=LookAt(step, newer.open))
    older.open()
    for _ in range(2):
        with pytest.raises(RunOvertakenError, match="another run of pipeline"):
            older.write(QUERY, batches[0])
    assert output.versions() == []
    newer.write(QUERY, batches[0])
    assert output.versions() == expected(0)
    older.close()
    newer.close()


@OF_POSTGRES
def test_without_fencing_an_overtaken_run_writes(
    output: PostgresOutput, batches: list[DocumentBatch]
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
    with pytest.raises(PipelineStateError, match="is taken"):
        other.check("another-query")
    other.open()
    with pytest.raises(PipelineStateError, match="is taken"):
        other.write("another-query", batches[1])
    other.close()


def test_a_checkpoint_that_is_older_than_the_output_is_refused(
    output: Output, batches: list[DocumentBatch]
) -> None:
    run(output.sink(), batches)
    with pytest.raises(PipelineStateError, match="does not continue it"):
        run(output.sink(), batches[1:2])
    assert output.versions() == expected(0, 1, 2)
