"""The settings of a PostgreSQL sink."""

from dataclasses import dataclass
from datetime import timedelta

from slackwater.engine.settings import Scope
from slackwater.outputs.batch import Emit
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.outputs.postgres.columns import TableColumn
from slackwater.protocol import PostgresSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of one view's documents."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    """The columns that identify rows; empty if the view has one row."""
    view: str
    """The name of the view, for messages."""
    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends a delete in addition."""
    history: bool = False
    """Whether to keep every version in a second table."""

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
    """The name of the pipeline, which identifies its row in the ledger."""
    outputs: tuple[OutputTable, ...]
    """The outputs by number of the view, each with a different table."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    postgres: PostgresSettings
    """The database of the outputs."""
    accept_changed_output: bool = False
    """Whether to continue with tables that the pipeline has not written. Rows that are missing in them stay
    missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the database, and for the previous run to release its row."""
    patience: timedelta = timedelta(minutes=2)
    """The time for which a batch is tried again while all errors are transient."""
