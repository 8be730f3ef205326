"""Takes the messages of a captured outbox from the database's log to their topics. Each outbox has one.

    python relay.py BOOTSTRAP OUTBOX

Kill it whenever you like.
"""

import signal
import sys
import threading

from slackwater.protocol import KafkaSettings
from slackwater_messaging import CapturedOutbox, CaptureRelay

SOURCE = "shop"
"""The connector's ``topic.prefix``."""


def main(bootstrap: str, outbox: str) -> None:
    """Sends whole transactions, in commit order, until it is asked to end."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    kafka = KafkaSettings(bootstrap, {"group.instance.id": f"{outbox}-1"})
    with CaptureRelay(kafka, CapturedOutbox(outbox), source=SOURCE, name=outbox) as relay:
        relay.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
