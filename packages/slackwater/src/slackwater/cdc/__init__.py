"""Finds whole transactions in Debezium's records: decoders of the records, and the pure frontier.

Nothing here knows Kafka, Redis, a clock or a thread: records come in as bytes, cuts go out.
"""

from slackwater_cdc.envelope import Change, decode_change
from slackwater_cdc.errors import (
    BadInputError,
    CdcError,
    MissingTransactionMetadataError,
    UndecodableRecordError,
    WireFormatError,
)
from slackwater_cdc.frontier import MAX_TRANSACTIONS_PER_CUT, Frontier
from slackwater_cdc.partition import Partition
from slackwater_cdc.partition_queues import EndOffsets, Obstacle
from slackwater_cdc.regression import Regression

__version__ = "0.1.0"

__all__ = [
    "MAX_TRANSACTIONS_PER_CUT",
    "BadInputError",
    "CdcError",
    "Change",
    "EndOffsets",
    "Frontier",
    "MissingTransactionMetadataError",
    "Obstacle",
    "Partition",
    "Regression",
    "UndecodableRecordError",
    "WireFormatError",
    "decode_change",
]
