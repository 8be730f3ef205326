"""Errors of the package, by what can be done about them.

::

    MessagingError
    ├── MessagingConfigError       an argument, a table or a topic has to be changed
    ├── MessagingStateError        tables and topics no longer match, or another process has taken over
    └── MessagingUnavailableError  a server failed or did not answer; nothing is lost
"""

from typing import Final

from slackwater.kafka.advice import NeededRights
from slackwater.protocol import SlackwaterError

READING: Final = NeededRights(
    user="the service's user", on_topics="Read on the topic", on_group="Read on the consumer's group"
)
WRITING: Final = NeededRights(
    user="the service's user",
    on_topics="Write on the topic",
    on_group="Read on the consumer's group",
    on_id="Write on its transactional id",
)


class MessagingError(SlackwaterError):
    """Root of all errors of this package."""


class MessagingConfigError(MessagingError):
    """Arguments, tables or topics cannot be used as they are."""


class MessagingStateError(MessagingError):
    """Tables and topics no longer match each other, or another process has taken over."""


class MessagingUnavailableError(MessagingError):
    """A server failed or did not answer. Nothing is lost: a retry continues where the call stopped."""
