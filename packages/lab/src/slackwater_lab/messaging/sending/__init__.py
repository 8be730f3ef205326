"""Services that write a database and send messages, killed at every step, and a judge of what is left."""

from slackwater_lab.messaging.sending.crash import CrashPoint, CrashReport, crash_and_recover
from slackwater_lab.messaging.sending.judge import SendVerdict, judge
from slackwater_lab.messaging.sending.service import Order, run_in_process
from slackwater_lab.messaging.sending.ways import WAYS, Way

__all__ = [
    "WAYS",
    "CrashPoint",
    "CrashReport",
    "Order",
    "SendVerdict",
    "Way",
    "crash_and_recover",
    "judge",
    "run_in_process",
]
