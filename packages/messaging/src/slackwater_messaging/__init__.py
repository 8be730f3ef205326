"""Messages and a database as one transaction, for services with psycopg and confluent-kafka. No Spark."""

from slackwater_messaging.errors import (
    MessagingConfigError,
    MessagingError,
    MessagingStateError,
    MessagingUnavailableError,
)
from slackwater_messaging.message import Message

__all__ = [
    "Message",
    "MessagingConfigError",
    "MessagingError",
    "MessagingStateError",
    "MessagingUnavailableError",
]
