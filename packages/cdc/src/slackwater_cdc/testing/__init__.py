"""What tests of this and other members need: Debezium-shaped records and a model of the connector."""

from slackwater_cdc.testing.connector import Emitted, Loss, Run, SimulatedConnector, SimulatedTransaction
from slackwater_cdc.testing.damage import damaged
from slackwater_cdc.testing.oracle import Oracle, Place
from slackwater_cdc.testing.records import (
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
    "Emitted",
    "Loss",
    "Oracle",
    "Place",
    "Run",
    "SimulatedConnector",
    "SimulatedTransaction",
    "begin_value",
    "blocking_value",
    "change_value",
    "damaged",
    "end_value",
    "incremental_value",
    "notification_value",
    "partition_of",
    "snapshot_notifications",
    "snapshot_value",
    "transaction_values",
]
