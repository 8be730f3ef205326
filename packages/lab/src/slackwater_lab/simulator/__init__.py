"""Random histories of database, connector, broker and sidecars, judged at every step."""

from slackwater_lab.simulator.faults import FAULTS
from slackwater_lab.simulator.oracle import Oracle, ViolationError
from slackwater_lab.simulator.scenario import Feature, Reduction, Scenario, generate
from slackwater_lab.simulator.simulation import Simulated, Simulator, simulate

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
