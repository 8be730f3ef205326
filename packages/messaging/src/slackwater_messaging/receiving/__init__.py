"""Receiving: inboxes and filters that recognise repeated messages, and the loops that use them."""

from slackwater_messaging.message import Place, ReceivedMessage
from slackwater_messaging.receiving.filtered import BloomInbox, FilteredInbox
from slackwater_messaging.receiving.filters import FilterChain, FilterPolicy
from slackwater_messaging.receiving.inbox import (
    Inbox,
    Receipt,
    TableInbox,
    TakenOverError,
    header_key,
    offset_key,
)
from slackwater_messaging.receiving.loops import (
    AsyncReceiver,
    ProcessorSettings,
    ProcessorStep,
    Receiver,
    ReceiverSettings,
    ReceiverStep,
    TransactionalProcessor,
)

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
