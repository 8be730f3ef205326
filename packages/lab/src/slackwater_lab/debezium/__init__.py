"""For tests of this and other members: Debezium-shaped records, recordings of topics, and a judge of cuts."""

from slackwater_lab.debezium.oracle import Oracle, Place
from slackwater_lab.debezium.records import (
    RUN_HEADER,
    begin_value,
    blocking_value,
    change_value,
    end_value,
    incremental_value,
    notification_value,
    partition_of,
    snapshot_notifications,
    snapshot_value,
    transaction_values,
)

__all__ = [
    "RUN_HEADER",
    "Oracle",
    "Place",
    "begin_value",
    "blocking_value",
    "change_value",
    "end_value",
    "incremental_value",
    "notification_value",
    "partition_of",
    "snapshot_notifications",
    "snapshot_value",
    "transaction_values",
]
