"""Random schemas, views and histories: the engine against DuckDB on the state at every commit."""

from slackwater_testing.differential.case import Batch, Case, Feature
from slackwater_testing.differential.check import Checked, Verdict, check
from slackwater_testing.differential.engines import ChangedDocument, Engine, MakeEngine, RefusedViewError
from slackwater_testing.differential.faults import FAULTS
from slackwater_testing.differential.subject import Differential

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
