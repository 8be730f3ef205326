"""Receiving: inboxes and filters that recognise repeated messages, and the loops that use them."""

from slackwater_messaging.errors import TakenOverError
from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.receiving.filtered import BloomInbox, FilteredInbox
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy
from slackwater_messaging.receiving.processor import ProcessorSettings, ProcessorStep, TransactionalProcessor
from slackwater_messaging.receiving.receipt import Inbox, Receipt, header_key, offset_key
from slackwater_messaging.receiving.receiver import AsyncReceiver, Receiver, ReceiverSettings, ReceiverStep
from slackwater_messaging.receiving.table import TableInbox

__all__ = [
    "AsyncReceiver",
    "BloomInbox",
    "FilterChain",
    "FilterPolicy",
    "FilteredInbox",
    "Inbox",
    "Place",
    "ProcessorSettings",
    "ProcessorStep",
    "Receipt",
    "ReceivedMessage",
    "Receiver",
    "ReceiverSettings",
    "ReceiverStep",
    "TableInbox",
    "TakenOverError",
    "TransactionalProcessor",
    "header_key",
    "offset_key",
]
