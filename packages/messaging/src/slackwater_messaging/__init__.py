"""Sends and receives messages in one transaction with a database, over psycopg and confluent-kafka.

What it raises beside the kinds of :mod:`slackwater.protocol`:

::

    StateError
    ├── OvertakenError      of the protocol: another process uses the name, and Kafka has rolled back
    ├── TakenOverError      another process has received messages of this batch
    └── HalfCommittedError  one side has committed, and the other one has not
    UnavailableError
    └── InDoubtError        it is not known yet whether a prepared transaction was committed
"""

from slackwater_messaging.audit import AuditReport, AuditWindow, audit_messages, id_finder
from slackwater_messaging.captured import CapturedOutbox, CaptureRelay
from slackwater_messaging.committing import (
    ChainedSender,
    CommitOrder,
    InDoubtError,
    Outcome,
    PreparedSender,
    PreparedTransaction,
    find_prepared,
    is_committed,
    resolve,
)
from slackwater_messaging.kafka import SenderSettings
from slackwater_messaging.message import HEADER_MESSAGE, Message, MessageId
from slackwater_messaging.outbox import Outbox, PollingRelay, RelaySettings, SavedMessage
from slackwater_messaging.saved import DeliveryListener, ProvenSender, Recovery, SavedSender
from slackwater_messaging.sender import (
    HalfCommittedError,
    SenderPool,
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
