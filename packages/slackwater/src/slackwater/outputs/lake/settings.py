"""The settings of a lake sink."""

from dataclasses import dataclass
from datetime import timedelta

from slackwater.engine.settings import Scope
from slackwater.outputs.batch import Emit
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.outputs.lake.columns import LakeColumn
from slackwater.protocol import LakeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """The table of one view's documents."""

    name: str
    """``schema.name``."""
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    """The columns that identify rows; empty if the view has one row."""
    view: str
    """The name of the view, for messages."""
    keys_move: bool = False
    """Whether a document's key may move from one bucket to another, which sends a delete in addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSinkSettings:
    """The pipeline, its tables, and how they are written."""

    pipeline: str
    """The name of the pipeline, and of its ledger."""
    outputs: tuple[OutputTable, ...]
    """The outputs by number of the view, each with a different table."""
    emit: Emit = Emit.LATEST
    scope: Scope = Scope.STRICT
    lake: LakeSettings
    """The place of the tables, and how long states are kept."""
    accept_changed_output: bool = False
    """Whether to continue with tables that were changed by others. Rows that are missing in them stay
    missing."""
    request_timeout: timedelta = REQUEST_TIMEOUT
    """How long a run that begins waits for the lake."""
    patience: timedelta = timedelta(minutes=2)
    """The time for which a batch is tried again while all errors are transient."""
