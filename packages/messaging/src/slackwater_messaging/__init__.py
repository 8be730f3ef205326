"""Sends and receives messages in one transaction with a database, over psycopg and confluent-kafka."""

from slackwater_messaging.audit import AuditReport, AuditWindow, audit_messages, id_finder
from slackwater_messaging.message import Message
from slackwater_messaging.sending import (
    CapturedOutbox,
    CaptureRelay,
    ChainedSender,
    CommitOrder,
    DeliveryListener,
    HalfCommittedError,
    InDoubtError,
    Outbox,
    PollingRelay,
    PreparedSender,
    ProvenSender,
    RelaySettings,
    SavedSender,
    SenderPool,
    SenderSettings,
    SendingTransaction,
)

__version__ = "0.1.0"

__all__ = [
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
    "Outbox",
    "PollingRelay",
    "PreparedSender",
    "ProvenSender",
    "RelaySettings",
    "SavedSender",
    "SenderPool",
    "SenderSettings",
    "SendingTransaction",
    "audit_messages",
    "id_finder",
]
