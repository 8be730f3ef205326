"""One seed harness for every subject: plans, tallies, shrinking and planted faults. It prints nothing."""

from slackwater_testing.seeds.faults import PlantedFault, edited, planted, replaced
from slackwater_testing.seeds.run import Plan, Tally, explain, first_failure, run, shrink, smallest
from slackwater_testing.seeds.subject import CRASHED, RIGHT, CheckResult, LeaveOut, Simplify, Step, Subject

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
