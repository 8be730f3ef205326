"""A member of a group that reads a topic of several views, as docs/examples/exactly_once_kafka.py does.

    python member_of_group.py SHARE BOOTSTRAP TOPIC GROUP TARGET MEMBER

Writes for each transaction a list of customer, view, key and commit LSN of its records, in their order.
"""

import json
import sys
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

from slackwater.cdc.batch import Record
from slackwater.client import ByPartition, ByUnit, Everything, Transaction, TransactionalConsumer
from slackwater.client.inputs import Share
from slackwater.protocol import KafkaSettings

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "exactly_once_kafka.py"
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}


def customer_of(record: Record) -> str:
    return str(json.loads(record.key() or b"")["customer_id"])


def described(record: Record) -> tuple[str, str, str, int]:
    headers: dict[str, Any] = dict(record.headers() or ())
    view, lsn = headers["slackwater-view"].decode(), int(headers["slackwater-commit-lsn"])
    return customer_of(record), view, (record.key() or b"").decode(), lsn


def write(self: Any, transaction: Transaction) -> None:
    self._producer.produce(self._target, json.dumps([described(record) for record in transaction]))


def main(share: str, bootstrap: str, topic: str, *arguments: str) -> None:
    shares: dict[str, Share] = {
        "everything": Everything(),
        "by unit": ByUnit(customer_of, 8),
        "by partition": ByPartition(topic),
    }
    example = run_path(str(EXAMPLE))
    example["Handler"].write = write
    run = example["main"]
    run.__globals__["KafkaSettings"] = partial(KafkaSettings, options=QUICK)
    run.__globals__["TransactionalConsumer"] = partial(TransactionalConsumer, share=shares[share])
    run(bootstrap, topic, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
