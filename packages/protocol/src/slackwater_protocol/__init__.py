"""What Slackwater processes say to each other: cuts, markers, commit records, keys, codec.

Standard library only; imported by every other member, imports none.
"""

from slackwater_protocol.clock import Clock, SystemClock
from slackwater_protocol.codec import (
    PROTOCOL_VERSION,
    decode_batch_header,
    decode_commit_record,
    decode_cut,
    decode_marker,
    decode_open_transaction,
    decode_progress_record,
    encode_batch_header,
    encode_commit_record,
    encode_cut,
    encode_marker,
    encode_open_transaction,
    encode_progress_record,
)
from slackwater_protocol.commit_record import BatchHeader, CommitRecord, OffsetRange, ProgressRecord
from slackwater_protocol.cut import CommittedTransaction, Cut, PublishedCut
from slackwater_protocol.errors import MalformedRecordError, ProtocolError, UnsupportedVersionError
from slackwater_protocol.lsn import SNAPSHOT_XID, CommitPosition, format_lsn, parse_lsn, parse_transaction_id
from slackwater_protocol.marker import Marker, OpenTransaction

__all__ = [
    "PROTOCOL_VERSION",
    "SNAPSHOT_XID",
    "BatchHeader",
    "Clock",
    "CommitPosition",
    "CommitRecord",
    "CommittedTransaction",
    "Cut",
    "MalformedRecordError",
    "Marker",
    "OffsetRange",
    "OpenTransaction",
    "ProgressRecord",
    "ProtocolError",
    "PublishedCut",
    "SystemClock",
    "UnsupportedVersionError",
    "decode_batch_header",
    "decode_commit_record",
    "decode_cut",
    "decode_marker",
    "decode_open_transaction",
    "decode_progress_record",
    "encode_batch_header",
    "encode_commit_record",
    "encode_cut",
    "encode_marker",
    "encode_open_transaction",
    "encode_progress_record",
    "format_lsn",
    "parse_lsn",
    "parse_transaction_id",
]
