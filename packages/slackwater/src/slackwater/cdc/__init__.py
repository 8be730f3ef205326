"""Finds whole transactions in Debezium's records: decoders of the records, and the pure frontier.

Nothing here uses Kafka, Redis, a clock or a thread: records come in as bytes, cuts go out.
"""

from slackwater.cdc.envelope import Change, decode_change
from slackwater.cdc.errors import BadInputError, UndecodableRecordError
from slackwater.cdc.frontier import MAX_TRANSACTIONS_PER_CUT, Frontier
from slackwater.cdc.partition import Partition
from slackwater.cdc.partition_queues import EndOffsets, Obstacle
from slackwater.cdc.regression import Regression

__all__ = [
    "MAX_TRANSACTIONS_PER_CUT",
    "BadInputError",
    "Change",
    "EndOffsets",
    "Frontier",
    "Obstacle",
    "Partition",
    "Regression",
    "UndecodableRecordError",
    "decode_change",
]
