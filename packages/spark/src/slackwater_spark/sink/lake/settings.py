"""The settings of a lake sink."""

from dataclasses import dataclass
from datetime import timedelta

from slackwater_engine.settings import Scope
from slackwater_protocol import LakeSettings
from slackwater_spark.sink.batch import Emit
from slackwater_spark.sink.contract import REQUEST_TIMEOUT
from slackwater_spark.sink.lake.columns import LakeColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of one view's documents."""

    name: str
    """``schema.name``."""
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    """The columns by which rows are told apart; none: the view has one row."""
    view: str
    """Its name, for people."""
    keys_move: bool = False
    """True if a document's key may move from one bucket to another, which sends its delete beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSinkSettings:
    """The pipeline, its tables, and how they are written."""

    pipeline: str
    """Name of the pipeline, and of its ledger."""
    outputs: tuple[OutputTable, ...]
    """By number of the view; no two are the same table."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    lake: LakeSettings
    """Where the tables are, and what is kept of them."""
    accept_changed_output: bool = False
    """Go on with tables as they are: what is missing in them stays missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the lake."""
    patience: timedelta = timedelta(minutes=2)
    """So long a batch is tried again while all that happens are errors that pass."""
