"""Errors of the package, by what can be done about them.

::

    ClientError
    ├── ClientConfigError        an argument has to be changed
    ├── ClientStateError         topics or stored positions are not what they were
    │   ├── RecordsMissingError  records that are needed are no longer in Kafka
    │   └── StateNotKeptError    views are not known as of the commit that is asked for
    ├── NotVisibleError          a commit is not visible yet
    ├── TransactionLostError     the transaction in hand went to another member: undo it
    ├── ProducerFencedError      another instance of the producer writes
    └── ClientUnavailableError   a server does not do its part; nothing is lost
        └── OutcomeUnknownError  a transaction is committed or not: nobody can tell yet
"""

from slackwater_protocol import ExplainedError


class ClientError(ExplainedError):
    """Root of everything this package raises of its own."""


class ClientConfigError(ClientError):
    """Arguments that cannot be used as they are."""


class ClientStateError(ClientError):
    """Topics, or positions that were stored, do not fit each other any more."""


class RecordsMissingError(ClientStateError):
    """Records that belong to a transaction, or tell of one, are no longer in Kafka."""


class StateNotKeptError(ClientStateError):
    """The state of views at a commit cannot be told from what their output keeps."""


class NotVisibleError(ClientError):
    """A commit is not visible in an output, yet or in time."""


class TransactionLostError(ClientError):
    """A transaction that is being streamed can be read no further: another member has it from its beginning.

    Whatever was done with its first part has to be undone.
    """


class ProducerFencedError(ClientError):
    """Another instance of a producer was opened after this one, which can write no more."""


class ClientUnavailableError(ClientError):
    """Kafka refuses or does not answer. Nothing is lost: what was not processed comes again."""


class OutcomeUnknownError(ClientUnavailableError):
    """Kafka has not said whether a transaction was committed, and its topics cannot be asked yet.

    The next instance of the producer knows: its ``position`` is that of the newest commit.
    """
