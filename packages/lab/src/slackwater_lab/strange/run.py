"""Runs cases on one stack of real servers, each with a connector, a sidecar and a pipeline of its own."""

import contextlib
import http.client
import json
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import psycopg

from slackwater.cdc.connector import reading_properties, table_list, topic_properties
from slackwater.cuts import FrontierState
from slackwater.dev import ConnectMode, DevStack, DevStackSettings
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.payloads import PackedPayload, decode_documents, documents_by_view
from slackwater.engine.settings import FormProof
from slackwater.engine.state.log import LogUpdate, LogWrite
from slackwater.engine.state.manifest import StateKeeper
from slackwater.pipeline.batch_job import (
    KnownState,
    SourceTask,
    TaskProgram,
    TaskRow,
    read_part,
    run_level,
    run_whole,
)
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.definition import (
    PipelineDefinition,
    needed_columns,
    pipeline_definition,
    stage_settings,
    table_inputs,
    used_columns,
)
from slackwater.pipeline.runner import source_options
from slackwater.pipeline.settings import RunSettings
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source_check import CatalogueCheck, ConnectorCheck, refuse_unknown_connector
from slackwater.protocol import KafkaSettings, RedisSettings, Servers, SlackwaterError, SystemClock
from slackwater.sql.catalog import Table, TypeKind
from slackwater.sql.postgres import parse_catalog, pull_schema
from slackwater_lab.strange.schema import Knowledge, StrangeCase, StrangeTable, make_case
from slackwater_sidecar.run import run_sidecar
from slackwater_sidecar.settings import SidecarSettings
from slackwater_sidecar.status import SidecarStatus

Documents = dict[str, dict[str, Any]]
"""The documents of a view by their keys, both as JSON has them."""
_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_BEFORE, _BETWEEN = 4, 4
"""Transactions."""
_SHOWN = 3


class LocalPipeline:
    """Runs the batches of a pipeline when asked. Used by one thread.

    Args:
        definition: The pipeline, with one bucket.
        servers: Where its source is.
        folder: For the checkpoint and the indexes.
        database: The source's.
        properties: The connector's configuration; None if nobody knows it.

    Raises:
        ConfigError: Nobody does, and that matters for a view.
        InputError: Views would be wrong because of the configuration.
    """

    def __init__(
        self,
        definition: PipelineDefinition,
        servers: Servers,
        folder: Path,
        database: str,
        *,
        properties: Mapping[str, str] | None,
    ) -> None:
        used = used_columns(definition.plan)
        connector = ConnectorCheck(definition.source, None, None, used, properties or {})
        connector.look()
        connector.check()
        if not connector.is_known:
            refuse_unknown_connector(needed_columns(definition.plan))
        settings = RunSettings(
            servers=servers, checkpoint=str(folder / "checkpoint"), source_database=database
        )
        self.views: dict[str, Documents] = {view.name: {} for view in definition.plan.views}
        self._definition = definition
        checkpoint = Checkpoint(settings.checkpoint)
        self.catalogue = CatalogueCheck(definition, database, "", checkpoint)
        options = source_options(definition, settings, 1)
        proof = FormProof.CONFIGURATION if connector.is_known else FormProof.VALUES
        stages = replace(stage_settings(definition), proof=proof)
        self._planner = Planner(options)
        self._position = self._planner.start()
        self._keeper = StateKeeper(checkpoint.store, state_fingerprint(definition.plan, stages))
        self._keeper.open("")
        program = TaskProgram(
            plan=definition.plan,
            settings=stages,
            evaluators=definition.evaluators,
            options=options,
            checkpoint=checkpoint.location,
            query_id="strange",
            index_root=str(folder / "indexes"),
        )
        self._program = pickle.dumps(program)

    def run_batches(self, is_enough: Callable[[], bool]) -> None:
        """Runs what is there, batch after batch, until there is nothing new or it is enough.

        Raises:
            SlackwaterError: What a run would end with.
        """
        while not is_enough():
            self.catalogue.check()
            end = self._planner.next(self._position, None, None)
            planned = None if end is self._position else self._planner.plan(self._position, end)
            if planned is not None:
                self._finish(self._computed(planned.tasks), end.to_json())
            elif end is self._position:
                return
            self._position = end

    def table_of(self, view: str) -> str:
        """Returns the full name of the only table of a view."""
        (found,) = (each for each in self._definition.plan.views if each.name == view)
        (table,) = {each.table.full_name for each in table_inputs(self._definition.plan, found.stages)}
        return table

    def close(self) -> None:
        """Frees connections."""
        self.catalogue.close()
        self._planner.close()

    def _computed(self, tasks: Sequence[SourceTask]) -> list[TaskRow]:
        known, batch_id = KnownState(self._keeper.state.name), self._keeper.state.batch_id + 1
        if len(tasks) == 1:
            return run_whole(self._program, known, tasks[0])
        rows = [row for task in tasks for row in read_part(self._program, task)]
        for stages in self._definition.plan.levels:
            rows = list(run_level(self._program, known, stages, batch_id, rows))
        return rows

    def _finish(self, rows: list[TaskRow], position: dict[str, object]) -> None:
        batch_id = self._keeper.state.batch_id + 1
        writes = [row for row in rows if isinstance(row, LogWrite)]
        updates = [row for row in rows if type(row) is LogUpdate]
        documents: list[PackedPayload] = [row for row in rows if isinstance(row, tuple)]
        state = self._keeper.prepare(position, writes, updates)
        payloads = documents_by_view(batch_id, documents)
        for number, view in enumerate(self._definition.plan.views):
            for chunk in decode_documents(batch_id, payloads.get(number, ())):
                for _, key, document in sorted(chunk, key=lambda each: each[0]):
                    if document is None:
                        self.views[view.name].pop(key.decode(), None)
                    else:
                        self.views[view.name][key.decode()] = msgspec.json.decode(document)
        self._keeper.adopt(state)


class Verdict(StrEnum):
    """How a case may end."""

    EQUAL = "equal to PostgreSQL"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StrangeResult:
    """How a case has ended."""

    verdict: Verdict
    text: str
    """What was refused, and why; or what is wrong."""


class _RefusedError(Exception):
    """Something has been refused by name."""


class StrangeRun:
    """A stack that runs cases one after the other; a context manager.

    Args:
        folder: For servers, checkpoints and logs.
        is_blind: Whether the pipelines do not look at the catalogue: then some cases have to fail.
    """

    def __init__(self, folder: Path, *, is_blind: bool = False) -> None:
        self._folder = folder
        self._is_blind = is_blind
        self._stack = DevStack(
            DevStackSettings(
                folder=folder / "stack",
                prefix="strange",
                partitions=2,
                connect_mode=ConnectMode.DISTRIBUTED,
                connect_heap="384m",
            )
        )

    def __enter__(self) -> Self:
        self._stack.start()
        with psycopg.connect(self._stack.postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.first (id int PRIMARY KEY)")
            connection.execute("CREATE EXTENSION IF NOT EXISTS citext")
        self._stack.start_connector(("public.first",))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.stop()

    def run(self, seed: int) -> StrangeResult:
        """Runs the case of a seed until it equals PostgreSQL, is refused by name, or fails."""
        case = make_case(seed)
        history: list[str] = []
        try:
            with ExitStack() as ending:
                attempt = _Attempt(case, self._stack, self._folder / case.schema, history, ending)
                problems = attempt.run(is_blind=self._is_blind)
        except (_RefusedError, SlackwaterError) as error:
            return StrangeResult(Verdict.REFUSED, " ".join(str(error).split()))
        except Exception:  # noqa: BLE001 - anything else is the fault that is searched for
            problems = [traceback.format_exc()]
        if problems:
            properties = f"properties ({case.knowledge}): {case.properties}"
            shown = [*problems[:_SHOWN], properties, "statements:", *history]
            return StrangeResult(Verdict.FAILED, "\n".join(shown))
        return StrangeResult(Verdict.EQUAL, "")


class _Attempt:
    """One case on its way."""

    def __init__(
        self, case: StrangeCase, stack: DevStack, folder: Path, history: list[str], ending: ExitStack
    ) -> None:
        self._case, self._stack, self._folder = case, stack, folder
        self._history, self._ending = history, ending
        self._status: SidecarStatus | None = None
        self._clock, self._pause = SystemClock(), threading.Event()
        self._connection = ending.enter_context(psycopg.connect(stack.postgres.dsn(), autocommit=True))
        self._connection.execute("SET TimeZone = 'UTC'")
        self._marks = 0

    def run(self, *, is_blind: bool) -> list[str]:
        """Runs the case; returns what is wrong at its end."""
        self._make_tables()
        self._start_connector()
        self._start_sidecar()
        pipeline = LocalPipeline(
            self._definition(),
            self._servers,
            self._folder,
            self._stack.postgres.dsn(),
            properties=None if self._case.knowledge is Knowledge.HIDDEN else self._properties,
        )
        self._ending.callback(pipeline.close)
        if not is_blind:
            self._look(pipeline)
        self._wait_for_mark(pipeline)
        for statements in self._case.definitions():
            self._commit(statements)
            self._write(_BETWEEN)
        self._wait_for_mark(pipeline)
        if not is_blind:
            self._look(pipeline)
        return [problem for table in self._case.tables for problem in self._differences(table, pipeline)]

    def _make_tables(self) -> None:
        case = self._case
        schema, execute = case.schema, self._connection.execute
        execute(f"CREATE SCHEMA {schema}".encode())
        self._ending.callback(execute, f"DROP SCHEMA {schema} CASCADE".encode())
        execute(f"CREATE TYPE {schema}.mood AS ENUM ('sad', 'glad')".encode())
        execute(f"CREATE DOMAIN {schema}.price AS numeric(8,2)".encode())
        execute(f"CREATE TABLE {schema}.mark (id int PRIMARY KEY)".encode())
        for table in case.tables:
            for statement in table.statements():
                self._history.append(statement)
                execute(statement.encode())
        self._write(_BEFORE)
        self._history.append(case.publication)
        try:
            execute(case.publication.encode())
        except psycopg.Error as error:
            raise _RefusedError(f"PostgreSQL: {error}") from error
        self._ending.callback(execute, f"DROP PUBLICATION slackwater_{schema}".encode())

    def _write(self, count: int) -> None:
        for statements in self._case.transactions(count):
            self._commit(statements)

    def _commit(self, statements: list[str]) -> None:
        """Commits a transaction, or rolls it back if the database refuses one of its statements."""
        try:
            with self._connection.transaction():
                for statement in statements:
                    self._connection.execute(statement.encode())
        except psycopg.Error as error:
            self._connection.execute("RESET session_replication_role")
            self._history.append(f"-- rolled back ({str(error).splitlines()[0]}): {'; '.join(statements)}")
        else:
            self._history.append("; ".join(statements))

    @property
    def _properties(self) -> dict[str, str]:
        """The configuration of the connector."""
        source, postgres = self._case.schema, self._stack.postgres
        tables = [f"{source}.mark", *(table.full_name for table in self._case.tables)]
        return {
            **reading_properties(source, 1_000),
            "database.hostname": "127.0.0.1",
            "database.port": str(postgres.port),
            "database.user": "postgres",
            "database.password": "unused",
            "database.dbname": postgres.database,
            "table.include.list": table_list(tables),
            "poll.interval.ms": "20",
            "retriable.restart.connector.wait.ms": "1000",
            **topic_properties(source, 2, 1),
            **self._case.properties,
        }

    def _start_connector(self) -> None:
        source = self._case.schema
        self._ending.callback(self._drop_slot)
        self._ending.callback(self._request, "DELETE", f"/connectors/{source}")
        status, body = self._request("PUT", f"/connectors/{source}/config", self._properties)
        if status >= http.client.BAD_REQUEST:
            raise _RefusedError(f"Kafka Connect: {body[:500]!r}")

    def _drop_slot(self) -> None:
        name = self._case.schema
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        for _ in range(200):
            found = self._connection.execute(query, [name]).fetchone()
            if found is None:
                return
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            self._pause.wait(_PAUSE_SECONDS)

    def _request(self, method: str, path: str, body: dict[str, str] | None = None) -> tuple[int, bytes]:
        address = urlsplit(self._stack.connect.address)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=_SECONDS)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @property
    def _servers(self) -> Servers:
        return Servers(KafkaSettings(self._stack.kafka.bootstrap), RedisSettings(self._stack.redis.url))

    def _start_sidecar(self) -> None:
        stop = threading.Event()
        settings = SidecarSettings(
            source=self._case.schema,
            servers=self._servers,
            replication_factor=1,
            connect_url=self._stack.connect.address if self._case.knowledge is Knowledge.ASKED else None,
        )

        def show(status: SidecarStatus) -> None:
            self._status = status

        thread = threading.Thread(target=_followed, args=(settings, stop, show), daemon=True)
        thread.start()
        self._ending.callback(thread.join)
        self._ending.callback(stop.set)

    def _definition(self) -> PipelineDefinition:
        tables = [table.full_name for table in self._case.tables]
        catalog = parse_catalog(
            {"schema.sql": pull_schema(self._connection, [f"{self._case.schema}.mark", *tables])}
        )
        views = {f"v{number}": self._view(table) for number, table in enumerate(catalog.tables)}
        return pipeline_definition(
            name=self._case.schema, source=self._case.schema, catalog=catalog, views=views, buckets=1
        )

    def _view(self, table: Table) -> str:
        """Selects the columns; one that cannot be used is left out mostly, so that not all is refused."""
        is_strict = self._case.random.random() < 0.03
        columns = ", ".join(
            f'to_base64("{column.name}") AS "{column.name}"'
            if column.type.kind is TypeKind.BYTEA
            else f'"{column.name}"'
            for column in table.columns
            if is_strict or column.type.kind is not TypeKind.UNSUPPORTED
        )
        return f'SELECT TRANSACTIONALLY {columns} FROM {table.schema}."{table.name}"'  # noqa: S608 - our own

    def _look(self, pipeline: LocalPipeline) -> None:
        pipeline.catalogue.first_look()
        pipeline.catalogue.check()

    def _wait_for_mark(self, pipeline: LocalPipeline) -> None:
        """Waits until everything committed up to now is visible."""
        self._marks += 1
        key = self._marks
        self._connection.execute(f"INSERT INTO {self._case.schema}.mark VALUES (%s)".encode(), [key])  # noqa: S608 - our own
        (view,) = (n for n in pipeline.views if pipeline.table_of(n) == f"{self._case.schema}.mark")
        deadline = self._clock.monotonic() + _SECONDS

        def is_visible() -> bool:
            return any(
                isinstance(each, dict) and each.get("id") == key for each in pipeline.views[view].values()
            )

        while not is_visible():
            pipeline.run_batches(is_visible)
            self._check_sidecar()
            if self._clock.monotonic() > deadline:
                raise TimeoutError(f"commit {key} is not visible after {_SECONDS:g} s: {self._status}")
            self._pause.wait(_PAUSE_SECONDS)

    def _check_sidecar(self) -> None:
        status = self._status
        if status is not None and status.state in _REFUSING:
            raise _RefusedError(f"sidecar: {status.state}: {status.detail}")
        status_code, body = self._request("GET", f"/connectors/{self._case.schema}/status")
        if status_code == http.client.OK:
            found = json.loads(body)
            failed = [part for part in (found["connector"], *found["tasks"]) if part["state"] == "FAILED"]
            if failed:
                lines = str(failed[0].get("trace", "")).splitlines()
                cause = [line for line in lines if line.startswith("Caused by")]
                raise _RefusedError(f"the connector failed: {' / '.join([*lines[:1], *cause[-1:]])}")

    def _differences(self, table: StrangeTable, pipeline: LocalPipeline) -> Iterator[str]:
        columns = {column.name: column.type.read for column in table.columns}
        # PostgreSQL's JSON has no -0.
        floats = [column.quoted for column in table.columns if column.sql in {"real", "double precision"}]
        exact = ", ".join(f"'{name[1:-1]}', {name}::text" for name in floats)
        query = f"SELECT to_jsonb(t) || jsonb_build_object({exact}) FROM {table.quoted} t"  # noqa: S608 - our own
        (view,) = (name for name in pipeline.views if pipeline.table_of(name) == table.full_name)
        try:
            wanted = {row["id"]: row for (row,) in self._connection.execute(query.encode())}
        except psycopg.Error as error:
            yield f"{table.full_name}: {error}"
            return
        shown: dict[int, dict[str, Any]] = {}
        for each in pipeline.views[view].values():
            shown[each["id"]] = each
        for missing in wanted.keys() - shown.keys():
            yield f"{table.full_name}: row {missing} is missing"
        for extra in shown.keys() - wanted.keys():
            yield f"{table.full_name}: row {extra} is no longer in the database"
        for key in wanted.keys() & shown.keys():
            for name, value in shown[key].items():
                read = columns.get(name)
                if read is not None and read(value) != read(wanted[key][name]):
                    kind = next(column.sql for column in table.columns if column.name == name)
                    place = f"{table.full_name}: row {key}, {name} ({kind})"
                    yield f"{place}: {value!r}, not {wanted[key][name]!r}"


_REFUSING = (FrontierState.MISCONFIGURED, FrontierState.BAD_INPUT, FrontierState.FAILED)


def _followed(settings: SidecarSettings, stop: threading.Event, show: Any) -> None:
    with contextlib.suppress(SlackwaterError):  # the status says so
        run_sidecar(settings, stop, show)
