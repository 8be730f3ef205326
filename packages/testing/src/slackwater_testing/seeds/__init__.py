"""One seed harness: plans, tallies, shrinking, planted faults and the command, for every subject."""

from slackwater_testing.seeds.faults import PlantedFault, edited, planted, replaced
from slackwater_testing.seeds.run import Plan, Tally, explain, first_failure, run, smallest
from slackwater_testing.seeds.shrink import shrink
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
