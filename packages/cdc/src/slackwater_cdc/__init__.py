"""Debezium records to whole transactions: envelope decoding and the pure frontier."""

from slackwater_cdc.envelope import Change, decode_change
from slackwater_cdc.errors import (
    CdcError,
    MissingTransactionMetadataError,
    UndecodableRecordError,
    WireFormatError,
)
from slackwater_cdc.frontier import MAX_TRANSACTIONS_PER_CUT, Frontier
from slackwater_cdc.partition import Partition
from slackwater_cdc.pending import EndOffsets, Obstacle
from slackwater_cdc.regression import Regression

__all__ = [
    "MAX_TRANSACTIONS_PER_CUT",
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
