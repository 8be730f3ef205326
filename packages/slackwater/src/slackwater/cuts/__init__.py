"""Cuts and markers in the cut log and the marker store; registrations and reports of pipelines."""

from slackwater.cuts.compacted_topic import LeaseLog as LeaseLog
from slackwater.cuts.compacted_topic import PipelineLog as PipelineLog
from slackwater.cuts.cut_log import CutLog as CutLog
from slackwater.cuts.cut_log import LoggedRecord as LoggedRecord
from slackwater.cuts.cut_log import cuts_of as cuts_of
from slackwater.cuts.errors import CutLogDamagedError as CutLogDamagedError
from slackwater.cuts.errors import CutLogReplacedError as CutLogReplacedError
from slackwater.cuts.errors import MarkerStoreUnavailableError as MarkerStoreUnavailableError
from slackwater.cuts.errors import RecordsGoneError as RecordsGoneError
from slackwater.cuts.errors import StoreFault as StoreFault
from slackwater.cuts.redis_store import RedisMarkerStore as RedisMarkerStore
from slackwater.cuts.redis_store import StoredPosition as StoredPosition
from slackwater.cuts.redis_store import markers_of as markers_of
from slackwater.cuts.redis_store import merged_markers as merged_markers
from slackwater.kafka.retry import KafkaRetry as KafkaRetry
from slackwater.kafka.topic import TopicUnavailableError as TopicUnavailableError
from slackwater.protocol import FrontierState as FrontierState
from slackwater.protocol import FrontierStatus as FrontierStatus
from slackwater.protocol import RegressionNotice as RegressionNotice
