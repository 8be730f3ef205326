"""Random schemas, views and histories: the engine against DuckDB on the state at every commit."""

from slackwater_differential.case import Batch, Case, Feature
from slackwater_differential.check import Outcome, Verdict, check
from slackwater_differential.engine import ChangedDocument, Engine, MakeEngine, RefusedViewError
from slackwater_differential.faults import FAULTS
from slackwater_differential.generator import generate
from slackwater_differential.report import report
from slackwater_differential.runner import Plan, Tally, explain, first_failure, run
from slackwater_differential.shrink import shrink

__all__ = [
    "FAULTS",
    "Batch",
    "Case",
    "ChangedDocument",
    "Engine",
    "Feature",
    "MakeEngine",
    "Outcome",
    "Plan",
    "RefusedViewError",
    "Tally",
    "Verdict",
    "check",
    "explain",
    "first_failure",
    "generate",
    "report",
    "run",
    "shrink",
]
