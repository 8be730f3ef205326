"""Where the pipeline of a chaos run publishes: topics, tables of PostgreSQL, or a lake on a disk of its own.

The pipeline is that of the workload; for tables it is copied, with another output in its ``pipeline.toml``.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from slackwater.dev import PostgresServer, Server
from slackwater.outputs.contract import SinkKind
from slackwater.protocol import Clock
from slackwater_certify import Connections, OutputRecords, Specification, watch_output
from slackwater_certify.specification import OutputKind, OutputSpecification
from slackwater_lab.chaos.disk import Disk, make_disk
from slackwater_lab.watching import LedgerWatch, OutputWatch, Visibility
from slackwater_lab.workloads.workload import copy_pipeline

_SCHEMA: Final = "chaos"
_VIEW: Final = "orders_with_lines"
_TABLE: Final = f"{_SCHEMA}.{_VIEW}"
_PIPELINE: Final = "orders"
_MAINTAIN_EVERY: Final = 10
"""Batches of a lake from one compaction to the next: often enough that faults meet them."""
_READ_SECONDS: Final = 0.5
"""Between two readings of a table and its ledger that are judged."""
_CONNECT_SECONDS: Final = 2
_LEDGER: Final = "SELECT commit_lsn FROM slackwater.ledger WHERE pipeline = %s AND batch_id >= 0"


class ChaosOutput:
    """An output that faults can be done to, topics of the broker; what it needs runs within its block."""

    kind = SinkKind.KAFKA
    disk: Disk | None = None
    """The disk of its own that can be full; None: it has none."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self.servers: Mapping[str, Server] = {}
        """Servers of its own, by the name of their part."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def pipeline(self, folder: Path, place: Path) -> Path:
        """Returns the folder of the pipeline with this output.

        Args:
            folder: That of the workload's pipeline.
            place: For a copy; does not exist.
        """
        del place
        return folder

    @property
    def settings(self) -> str:
        """What the settings file of the run says of it."""
        return ""

    def watch(self, bootstrap: str, clock: Clock) -> OutputWatch:
        """Makes what follows how far it has come."""
        return Visibility(bootstrap, _VIEW, clock)

    def begin_judging(self, specification: Specification, connections: Connections) -> None:
        """Begins to read what can only be read while it is written; returns when it has been read once.

        Something is visible already.
        """
        del specification, connections

    def to_judge(
        self, specification: Specification, connections: Connections
    ) -> tuple[Specification, Connections, OutputRecords | None]:
        """Returns how it is judged now, after the end; None: it is read then."""
        return specification, connections, None


class _TableOutput(ChaosOutput, ABC):
    """A table with a ledger."""

    def pipeline(self, folder: Path, place: Path) -> Path:
        output = f'[output]\nkind = "{self.kind}"\ntable = "{_TABLE}"\n'
        return copy_pipeline(folder, place, lambda text: text.partition("[output]")[0] + output)

    def watch(self, bootstrap: str, clock: Clock) -> OutputWatch:
        del bootstrap
        return LedgerWatch(self._position, clock)

    @abstractmethod
    def _position(self) -> int | None:
        """Returns the newest commit of the ledger; None: there is none, or no answer."""


class PostgresOutput(_TableOutput):
    """Tables of a server of their own."""

    kind = SinkKind.POSTGRES

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._server = PostgresServer(folder / "output")
        self.servers = {"output": self._server}
        self._is_over = threading.Event()
        self._records: Future[OutputRecords] | None = None

    def __enter__(self) -> Self:
        self._running.callback(self._stop)
        self._server.start()
        self._threads = self._running.enter_context(ThreadPoolExecutor(1, thread_name_prefix="reader"))
        self._running.callback(self._is_over.set)
        return self

    @property
    def settings(self) -> str:
        return f"[postgres]\noutput_url = {json.dumps(self._server.dsn())}\n"

    def begin_judging(self, specification: Specification, connections: Connections) -> None:
        """See :meth:`ChaosOutput.begin_judging`: table and ledger, in one transaction each time."""
        wanted, addresses = self._specified(specification), self._addressed(connections)
        looks, has_read = count(), threading.Event()

        def is_over() -> bool:
            """Is asked before the first reading and after each; a pause, too, so that others can work."""
            if next(looks):
                has_read.set()
            return self._is_over.wait(_READ_SECONDS)

        self._records = self._threads.submit(watch_output, wanted, addresses, is_over)
        while not has_read.wait(_READ_SECONDS) and not self._records.done():
            pass

    def to_judge(
        self, specification: Specification, connections: Connections
    ) -> tuple[Specification, Connections, OutputRecords | None]:
        self._is_over.set()
        records = None if self._records is None else self._records.result()
        return self._specified(specification), self._addressed(connections), records

    def _specified(self, specification: Specification) -> Specification:
        return replace(
            specification, output=OutputSpecification(OutputKind.POSTGRES, _TABLE, ledger=_PIPELINE)
        )

    def _addressed(self, connections: Connections) -> Connections:
        return replace(connections, output_dsn=self._server.dsn())

    def _position(self) -> int | None:
        try:
            with psycopg.connect(self._server.dsn(), connect_timeout=_CONNECT_SECONDS) as database:
                row = database.execute(_LEDGER, [_PIPELINE]).fetchone()
        except psycopg.Error:
            return None
        return None if row is None else int(row[0])

    def _stop(self) -> None:
        if self._server.is_paused:
            self._server.resume()
        self._server.stop()


class LakeOutput(_TableOutput):
    """Tables of a lake on a disk that can be full.

    Where no disk can be made, the processes that write to it are limited.
    """

    def __init__(self, folder: Path, processes: Callable[[], Iterable[int]]) -> None:
        super().__init__()
        self._place = folder / "lake"
        self._processes = processes

    def __enter__(self) -> Self:
        self.disk = make_disk(self._place, self._processes)
        self._running.callback(self.disk.close)
        self._lake = self.disk.folder / "tables"
        self._lake.mkdir()
        return self

    def to_judge(
        self, specification: Specification, connections: Connections
    ) -> tuple[Specification, Connections, OutputRecords | None]:
        """See :meth:`ChaosOutput.to_judge`: every batch is read as the ledger names it."""
        table, ledger = self._locations()
        output = OutputSpecification(OutputKind(self.kind), table, ledger=ledger, table=_TABLE)
        return replace(specification, output=output), connections, None

    def _position(self) -> int | None:
        try:
            rows = self._ledger()
        except (DeltaError, TableNotFoundError, NoSuchTableError, SQLAlchemyError, OSError):
            return None
        found: int | None = max((row["commit_lsn"] for row in rows), default=None)
        return found

    @abstractmethod
    def _ledger(self) -> list[dict[str, Any]]:
        """Reads the rows of the ledger."""

    @abstractmethod
    def _locations(self) -> tuple[str, str]:
        """Returns where the certifier finds table and ledger."""


class DeltaOutput(LakeOutput):
    """Tables of Delta Lake."""

    kind = SinkKind.DELTA

    @property
    def settings(self) -> str:
        return f"[delta]\nlocation = {json.dumps(str(self._lake))}\nmaintain_every = {_MAINTAIN_EVERY}\n"

    def _ledger(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            DeltaTable(self._locations()[1]).to_pyarrow_table(columns=["commit_lsn"]).to_pylist()
        )
        return rows

    def _locations(self) -> tuple[str, str]:
        return str(self._lake / _SCHEMA / _VIEW), str(self._lake / "slackwater" / _PIPELINE)


class IcebergOutput(LakeOutput):
    """Tables of Iceberg; their catalogue is a database in a file of the same disk."""

    kind = SinkKind.ICEBERG

    def __enter__(self) -> Self:
        super().__enter__()
        self._catalog: Catalog = load_catalog(_SCHEMA, **self._options)
        self._running.callback(self._close)
        return self

    @property
    def settings(self) -> str:
        options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in self._options.items())
        return (
            f"[iceberg]\ncatalog = {json.dumps(_SCHEMA)}\nmaintain_every = {_MAINTAIN_EVERY}\n"
            f"[iceberg.options]\n{options}"
        )

    def _ledger(self) -> list[dict[str, Any]]:
        ledger = self._catalog.load_table(("slackwater", _PIPELINE))
        rows: list[dict[str, Any]] = ledger.scan(selected_fields=("commit_lsn",)).to_arrow().to_pylist()
        return rows

    def _locations(self) -> tuple[str, str]:
        table, ledger = (
            self._catalog.load_table(name).metadata_location
            for name in ((_SCHEMA, _VIEW), ("slackwater", _PIPELINE))
        )
        return table, ledger

    @property
    def _options(self) -> dict[str, str]:
        place = self._lake
        return {"type": "sql", "uri": f"sqlite:///{place / 'catalogue.db'}", "warehouse": f"file://{place}"}

    def _close(self) -> None:
        with suppress(SQLAlchemyError):
            self._catalog.close()


JUDGED_OUTPUTS = (SinkKind.KAFKA, SinkKind.POSTGRES, SinkKind.DELTA, SinkKind.ICEBERG)
"""The kinds that can be read as of a commit, which a judge has to do."""


def make_output(kind: SinkKind, folder: Path, processes: Callable[[], Iterable[int]]) -> ChaosOutput:
    """Makes the output of a run; nothing runs yet."""
    if kind is SinkKind.KAFKA:
        return ChaosOutput()
    if kind is SinkKind.POSTGRES:
        return PostgresOutput(folder)
    return (DeltaOutput if kind is SinkKind.DELTA else IcebergOutput)(folder, processes)
