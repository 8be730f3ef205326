"""One seed harness: plans, tallies, shrinking, planted faults and the command, for every subject."""

from slackwater_testing.seeds.faults import Fault, edited, planted, replaced
from slackwater_testing.seeds.run import Plan, Tally, explain, first_failure, run, smallest
from slackwater_testing.seeds.shrink import shrink
from slackwater_testing.seeds.subject import CRASHED, RIGHT, LeaveOut, Result, Simplify, Step, Subject

__all__ = [
    "CRASHED",
    "RIGHT",
    "Fault",
    "LeaveOut",
    "Plan",
    "Result",
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
