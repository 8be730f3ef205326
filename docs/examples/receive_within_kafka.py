"""Messages into messages, each once, with no database: consume, process, produce.

    python receive_within_kafka.py BOOTSTRAP TOPIC TOPIC_OF_OUTPUTS

The value of a message is written to the other topic in capitals.
"""

import sys

from slackwater.protocol import KafkaSettings
from slackwater_messaging import Message
from slackwater_messaging.receiving import ReceivedMessage, TransactionalProcessor


class Shouter:
    """Writes what it gets in capitals."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def process(self, message: ReceivedMessage) -> list[Message]:
        """Returns the outputs of a message; it may be asked again for the same one."""
        return [Message(topic=self._topic, key=message.key, value=(message.value or b"").upper())]


def shouting(bootstrap: str, topic: str) -> TransactionalProcessor:
    """Returns the processor; ``run(Shouter(…).process)`` is the service."""
    return TransactionalProcessor(
        KafkaSettings(bootstrap), [topic], group="shouters", transactional_id="shouter-0"
    )


if __name__ == "__main__":
    with shouting(*sys.argv[1:3]) as processor:
        processor.run(Shouter(sys.argv[3]).process)
