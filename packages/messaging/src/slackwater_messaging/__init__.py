"""Sends and receives messages in one transaction with a database, over psycopg and confluent-kafka."""

from slackwater_messaging.audit import AuditReport, AuditWindow, audit_messages, id_finder
from slackwater_messaging.message import HEADER_MESSAGE, Message, MessageId
from slackwater_messaging.sending.captured import CapturedOutbox, CaptureRelay
from slackwater_messaging.sending.chained import ChainedSender, CommitOrder
from slackwater_messaging.sending.kafka import SenderSettings
from slackwater_messaging.sending.outbox import Outbox, SavedMessage
from slackwater_messaging.sending.polling import PollingRelay, RelaySettings
from slackwater_messaging.sending.pool import SenderPool
from slackwater_messaging.sending.prepared import (
    InDoubtError,
    Outcome,
    PreparedSender,
    PreparedTransaction,
    find_prepared,
    is_committed,
    resolve,
)
from slackwater_messaging.sending.saved import DeliveryListener, ProvenSender, Recovery, SavedSender
from slackwater_messaging.sending.transaction import (
    HalfCommittedError,
    SendingTransaction,
    SendProbe,
    SendStep,
)

__version__ = "0.1.0"

__all__ = [
    "HEADER_MESSAGE",
    "AuditReport",
    "AuditWindow",
    "CaptureRelay",
    "CapturedOutbox",
    "ChainedSender",
    "CommitOrder",
    "DeliveryListener",
    "HalfCommittedError",
    "InDoubtError",
    "Message",
    "MessageId",
    "Outbox",
    "Outcome",
    "PollingRelay",
    "PreparedSender",
    "PreparedTransaction",
    "ProvenSender",
    "Recovery",
    "RelaySettings",
    "SavedMessage",
    "SavedSender",
    "SendProbe",
    "SendStep",
    "SenderPool",
    "SenderSettings",
    "SendingTransaction",
    "audit_messages",
    "find_prepared",
    "id_finder",
    "is_committed",
    "resolve",
]
