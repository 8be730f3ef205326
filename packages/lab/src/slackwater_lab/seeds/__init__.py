"""One seed harness for every subject: plans, tallies, shrinking and planted faults. It prints nothing."""

from slackwater_lab.seeds.run import Plan, Tally, explain, first_failure, run, shrink, smallest
from slackwater_lab.seeds.subject import (
    CRASHED,
    RIGHT,
    CheckResult,
    LeaveOut,
    PlantedFault,
    Simplify,
    Step,
    Subject,
    edited,
    planted,
    replaced,
)

__all__ = [
    "CRASHED",
    "RIGHT",
    "CheckResult",
    "LeaveOut",
    "Plan",
    "PlantedFault",
    "Simplify",
    "Step",
    "Subject",
    "Tally",
    "edited",
    "explain",
    "first_failure",
    "planted",
    "replaced",
    "run",
    "shrink",
    "smallest",
]
