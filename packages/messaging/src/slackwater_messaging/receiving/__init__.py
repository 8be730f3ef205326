"""Receiving: inboxes and filters that recognise repeated messages, and the loops that use them."""

from slackwater_messaging.message import Place as Place
from slackwater_messaging.message import ReceivedMessage as ReceivedMessage
from slackwater_messaging.receiving.filtered import BloomInbox as BloomInbox
from slackwater_messaging.receiving.filtered import FilteredInbox as FilteredInbox
from slackwater_messaging.receiving.filters import FilterChain as FilterChain
from slackwater_messaging.receiving.filters import FilterPolicy as FilterPolicy
from slackwater_messaging.receiving.inbox import Inbox as Inbox
from slackwater_messaging.receiving.inbox import Receipt as Receipt
from slackwater_messaging.receiving.inbox import TableInbox as TableInbox
from slackwater_messaging.receiving.inbox import TakenOverError as TakenOverError
from slackwater_messaging.receiving.inbox import header_key as header_key
from slackwater_messaging.receiving.inbox import offset_key as offset_key
from slackwater_messaging.receiving.loops import AsyncReceiver as AsyncReceiver
from slackwater_messaging.receiving.loops import ProcessorSettings as ProcessorSettings
from slackwater_messaging.receiving.loops import ProcessorStep as ProcessorStep
from slackwater_messaging.receiving.loops import Receiver as Receiver
from slackwater_messaging.receiving.loops import ReceiverSettings as ReceiverSettings
from slackwater_messaging.receiving.loops import ReceiverStep as ReceiverStep
from slackwater_messaging.receiving.loops import TransactionalProcessor as TransactionalProcessor
