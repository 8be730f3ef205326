"""Errors of clients that a caller reacts to in particular; all others are of the general kinds.

::

    StateError
    ├── StateNotKeptError        the output does not keep the views at the requested commit
    └── TransactionLostError     the current transaction was handed to another member: undo it
    UnavailableError
    ├── NotVisibleError          a commit is not visible, or not in time                     exit code 3
    └── OutcomeUnknownError      it is not known yet whether a transaction was committed
"""

from slackwater.protocol import StateError, UnavailableError


class StateNotKeptError(StateError):
    """The output does not keep enough to reconstruct the views at a commit."""


class TransactionLostError(StateError):
    """The current transaction was handed to another member of the group, which receives all of it.

    Undo its effects so far.
    """


class NotVisibleError(UnavailableError):
    """A commit is not visible in an output yet, or did not become visible in time."""

    exit_code = 3


class OutcomeUnknownError(UnavailableError):
    """Kafka did not answer whether a transaction was committed, and its topics do not show it yet.

    The ``position`` of the next instance of the producer, that of the newest commit, shows the outcome.
    """
