"""Random schemas, views and histories: the engine against DuckDB on the state at every commit."""

from slackwater_lab.differential.case import Batch, Case, Feature
from slackwater_lab.differential.check import Checked, Verdict, check
from slackwater_lab.differential.engines import ChangedDocument, Engine, MakeEngine, RefusedViewError
from slackwater_lab.differential.faults import FAULTS
from slackwater_lab.differential.subject import Differential

__all__ = [
    "FAULTS",
    "Batch",
    "Case",
    "ChangedDocument",
    "Checked",
    "Differential",
    "Engine",
    "Feature",
    "MakeEngine",
    "RefusedViewError",
    "Verdict",
    "check",
]
