"""Errors of the package, by what can be done about them.

::

    MessagingError
    ├── MessagingConfigError       an argument or a table has to be changed
    ├── MessagingStateError        tables and topics are not what they were, or somebody else has taken over
    └── MessagingUnavailableError  a server does not do its part; nothing is lost
"""

from typing import Final

import psycopg

from slackwater_protocol import ExplainedError

LOST_CONNECTION: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
"""What is raised when the database cannot be reached or has ended the connection: another one may succeed.
Time-outs that end a connection are no operational errors for psycopg."""


class MessagingError(ExplainedError):
    """Root of everything this package raises of its own."""


class MessagingConfigError(MessagingError):
    """Arguments, tables or topics that cannot be used as they are."""


class MessagingStateError(MessagingError):
    """Tables and topics do not fit each other any more, or another process has taken over."""


class MessagingUnavailableError(MessagingError):
    """A server refuses or does not answer. Nothing is lost: trying again goes on where it stopped."""
