"""Debezium records to whole transactions: envelope decoding and the pure frontier."""

from slackwater_cdc.change import Change, decode_change
from slackwater_cdc.errors import CdcError, MissingTransactionMetadataError, UndecodableRecordError

__all__ = [
    "CdcError",
    "Change",
    "MissingTransactionMetadataError",
    "UndecodableRecordError",
    "decode_change",
]
