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

from slackwater_messaging.audit import AuditReport as AuditReport
from slackwater_messaging.audit import AuditWindow as AuditWindow
from slackwater_messaging.audit import audit_messages as audit_messages
from slackwater_messaging.audit import id_finder as id_finder
from slackwater_messaging.captured import CapturedOutbox as CapturedOutbox
from slackwater_messaging.captured import CaptureRelay as CaptureRelay
from slackwater_messaging.committing import ChainedSender as ChainedSender
from slackwater_messaging.committing import CommitOrder as CommitOrder
from slackwater_messaging.committing import InDoubtError as InDoubtError
from slackwater_messaging.committing import Outcome as Outcome
from slackwater_messaging.committing import PreparedSender as PreparedSender
from slackwater_messaging.committing import PreparedTransaction as PreparedTransaction
from slackwater_messaging.committing import find_prepared as find_prepared
from slackwater_messaging.committing import is_committed as is_committed
from slackwater_messaging.committing import resolve as resolve
from slackwater_messaging.dead_letters import DeadLetter as DeadLetter
from slackwater_messaging.dead_letters import DeadLetters as DeadLetters
from slackwater_messaging.kafka import SenderSettings as SenderSettings
from slackwater_messaging.message import HEADER_MESSAGE as HEADER_MESSAGE
from slackwater_messaging.message import Message as Message
from slackwater_messaging.message import MessageId as MessageId
from slackwater_messaging.outbox import Outbox as Outbox
from slackwater_messaging.outbox import PollingRelay as PollingRelay
from slackwater_messaging.outbox import RelaySettings as RelaySettings
from slackwater_messaging.outbox import SavedMessage as SavedMessage
from slackwater_messaging.saved import DeliveryListener as DeliveryListener
from slackwater_messaging.saved import ProvenSender as ProvenSender
from slackwater_messaging.saved import Recovery as Recovery
from slackwater_messaging.saved import SavedSender as SavedSender
from slackwater_messaging.sender import HalfCommittedError as HalfCommittedError
from slackwater_messaging.sender import SenderPool as SenderPool
from slackwater_messaging.sender import SendingTransaction as SendingTransaction
from slackwater_messaging.sender import SendProbe as SendProbe
from slackwater_messaging.sender import SendStep as SendStep

__version__ = "0.1.0"
