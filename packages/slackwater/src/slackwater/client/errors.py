"""Errors of the package, by what can be done about them.

::

    ClientError
    ├── ClientConfigError        an argument has to be changed
    ├── ClientStateError         topics or stored positions have changed and no longer match
    │   └── StateNotKeptError    the output does not keep the views at the requested commit
    ├── NotVisibleError          a commit is not visible yet
    ├── TransactionLostError     the current transaction was handed to another member: undo it
    ├── ProducerFencedError      another instance of the producer has taken over
    └── ClientUnavailableError   a server failed or did not answer; nothing is lost
        └── OutcomeUnknownError  it is not known yet whether a transaction was committed
"""

from slackwater.protocol import SlackwaterError


class ClientError(SlackwaterError):
    """Root of all errors of this package."""


class ClientConfigError(ClientError):
    """Arguments are invalid or contradict each other."""


class ClientStateError(ClientError):
    """Topics and stored positions no longer match each other."""


class StateNotKeptError(ClientStateError):
    """The output does not keep enough to reconstruct the views at a commit."""


class NotVisibleError(ClientError):
    """A commit is not visible in an output yet, or did not become visible in time."""


class TransactionLostError(ClientError):
    """The current transaction was handed to another member of the group, which receives all of it.

    Undo its effects so far.
    """


class ProducerFencedError(ClientError):
    """Another instance of a producer was opened after this one, which can no longer write."""


class ClientUnavailableError(ClientError):
    """A server failed or did not answer. Nothing is lost: unprocessed transactions are delivered again."""


class OutcomeUnknownError(ClientUnavailableError):
    """Kafka did not answer whether a transaction was committed, and its topics do not show it yet.

    The ``position`` of the next instance of the producer, that of the newest commit, shows the outcome.
    """
