"""Random histories of database, connector, broker and sidecars, judged at every step."""

from slackwater_testing.simulator.faults import FAULTS
from slackwater_testing.simulator.generator import generate
from slackwater_testing.simulator.oracle import Oracle, ViolationError
from slackwater_testing.simulator.scenario import Feature, Reduction, Scenario
from slackwater_testing.simulator.simulation import Simulated, Simulator, simulate

__all__ = [
    "FAULTS",
    "Feature",
    "Oracle",
    "Reduction",
    "Scenario",
    "Simulated",
    "Simulator",
    "ViolationError",
    "generate",
    "simulate",
]
