"""Random histories of database, connector, broker and sidecars, judged at every step."""

from slackwater_simulator.faults import FAULTS
from slackwater_simulator.generator import generate
from slackwater_simulator.oracle import Oracle, ViolationError
from slackwater_simulator.runner import Plan, Tally, explain, first_failure, run
from slackwater_simulator.scenario import Feature, Reduction, Scenario
from slackwater_simulator.shrink import shrink
from slackwater_simulator.simulation import Outcome, simulate

__all__ = [
    "FAULTS",
    "Feature",
    "Oracle",
    "Outcome",
    "Plan",
    "Reduction",
    "Scenario",
    "Tally",
    "ViolationError",
    "explain",
    "first_failure",
    "generate",
    "run",
    "shrink",
    "simulate",
]
