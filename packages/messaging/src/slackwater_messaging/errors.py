"""What this package raises beside the kinds of :mod:`slackwater.protocol`, and the needed rights.

::

    StateError
    ├── OvertakenError      of the protocol: another process uses the name, and Kafka has rolled back
    ├── TakenOverError      another process has received messages of this batch
    └── HalfCommittedError  one side has committed, and the other one has not
    UnavailableError
    └── InDoubtError        it is not known yet whether a prepared transaction was committed
"""

from typing import Final

from slackwater.kafka.retry import NeededRights
from slackwater.protocol import StateError

READING: Final = NeededRights(
    user="the service's user", on_topics="Read on the topic", on_group="Read on the consumer's group"
)
WRITING: Final = NeededRights(
    user="the service's user",
    on_topics="Write on the topic",
    on_group="Read on the consumer's group",
    on_id="Write on its transactional id",
)


class TakenOverError(StateError):
    """Another process has taken over a partition of this inbox, or has processed messages of this batch.

    The transaction was rolled back. Load the partitions again, and receive the same messages again; they will
    be recognised as repeats.
    """
