"""Receiving: inboxes and filters that recognise repeated messages, and the loops that use them."""

from slackwater_messaging.message import Place
from slackwater_messaging.receiving.asynchronous import AsyncReceiver, AsyncTableInbox
from slackwater_messaging.receiving.bloom import BloomInbox
from slackwater_messaging.receiving.filtered import FilteredInbox
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy
from slackwater_messaging.receiving.processor import ProcessorSettings, ProcessorStep, TransactionalProcessor
from slackwater_messaging.receiving.receipt import (
    Inbox,
    Receipt,
    ReceivedMessage,
    TakenOverError,
    header_key,
    offset_key,
)
from slackwater_messaging.receiving.receiver import Receiver, ReceiverSettings, ReceiverStep
from slackwater_messaging.receiving.table import TableInbox

__all__ = [
    "AsyncReceiver",
    "AsyncTableInbox",
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
