"""Finds whole transactions in Debezium's records: decoders of the records, and the pure frontier.

Nothing here uses Kafka, Redis, a clock or a thread: records come in as bytes, cuts go out.
"""

from slackwater.cdc.commits import Regression as Regression
from slackwater.cdc.envelope import Change as Change
from slackwater.cdc.envelope import decode_change as decode_change
from slackwater.cdc.errors import BadInputError as BadInputError
from slackwater.cdc.errors import UndecodableRecordError as UndecodableRecordError
from slackwater.cdc.frontier import MAX_TRANSACTIONS_PER_CUT as MAX_TRANSACTIONS_PER_CUT
from slackwater.cdc.frontier import Frontier as Frontier
from slackwater.cdc.partition import Partition as Partition
from slackwater.cdc.partition_queues import EndOffsets as EndOffsets
from slackwater.cdc.partition_queues import Obstacle as Obstacle
