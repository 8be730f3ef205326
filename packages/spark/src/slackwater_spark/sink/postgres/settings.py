"""The settings of a PostgreSQL sink."""

from dataclasses import dataclass
from datetime import timedelta

from slackwater_engine.settings import Scope
from slackwater_protocol import PostgresSettings
from slackwater_spark.sink.batch import Emit
from slackwater_spark.sink.contract import REQUEST_TIMEOUT
from slackwater_spark.sink.postgres.columns import TableColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of one view's documents."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    """The columns by which rows are told apart; none: the view has one row."""
    view: str
    """Its name, for people."""
    keys_move: bool = False
    """True if a document's key may move from one bucket to another, which sends its delete beside it."""
    history: bool = False
    """Keep every version in a table beside it."""

    @property
    def full_name(self) -> str:
        """``schema.name``."""
        return f"{self.schema}.{self.name}"

    @property
    def history_name(self) -> str:
        """The name of the table with the versions, in the same schema."""
        return f"{self.name}_history"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSinkSettings:
    """The pipeline, its tables, and how they are written."""

    pipeline: str
    """Name of the pipeline; its row in the ledger."""
    outputs: tuple[OutputTable, ...]
    """By number of the view; no two are the same table."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    postgres: PostgresSettings
    """The database of the outputs."""
    accept_changed_output: bool = False
    """Go on with tables that are not those the pipeline wrote: what is missing in them stays missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the database, and for the run before it to let go."""
    patience: timedelta = timedelta(minutes=2)
    """So long a batch is tried again while all that happens are errors that pass."""
