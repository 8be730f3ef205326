"""Our own client as a reader of the cases: ``python -m slackwater_lab.conformance.client``."""

import json
import sys
import uuid
from typing import Any

from slackwater.cdc.batch import Record
from slackwater.client import ChangeTopics, ConsumerSettings, OutputTopics, TransactionalConsumer
from slackwater.client.inputs import Inputs
from slackwater.client.transaction import LanePosition, Transaction
from slackwater.kafka.reader import TopicReader
from slackwater.protocol import CommitPosition, KafkaSettings

_SECONDS = 120.0
_COMMITS, _CUTS = ".commits", ".slackwater.cuts"


def main(bootstrap: str, log: str, start: str | None = None) -> None:
    """Prints transactions up to the present end of a commit topic or a cut log."""
    with TopicReader({"bootstrap.servers": bootstrap}, _SECONDS) as reader:
        inputs, end = _inputs(reader, log), _end(reader, log)
    with TransactionalConsumer(
        KafkaSettings(bootstrap),
        inputs,
        group=uuid.uuid4().hex,
        positions=lambda _: None if start is None else str(LanePosition(int(start))),
        settings=ConsumerSettings(stores_positions=False),
    ) as consumer:
        is_over = end is None
        while not is_over:
            transaction = consumer.poll(0.1)
            if transaction is not None:
                sys.stdout.write(json.dumps(_printed(transaction)) + "\n")
                sys.stdout.flush()
                is_over = transaction.commit.position == end
            if isinstance(end, int):
                is_over = any(place.offset >= end for place in consumer.offsets())


def _inputs(reader: TopicReader, log: str) -> Inputs:
    is_of_cuts, names = log.endswith(_CUTS), sorted(reader.topics())
    if is_of_cuts:
        source = log.removesuffix(_CUTS)
        tables = [name.removeprefix(f"{source}.") for name in names if name.startswith(f"{source}.")]
        return ChangeTopics(source=source, tables=tuple(t for t in tables if not log.endswith(t)))
    case = log.removesuffix(_COMMITS).rpartition(".")[0]
    topics = [t for t in names if t.startswith(f"{case}.") and not t.endswith(_COMMITS)]
    return OutputTopics(*topics, commits=log)


def _end(reader: TopicReader, log: str) -> int | CommitPosition | None:
    """Returns the offset behind the newest commit record, or the last transaction of all cuts."""
    if not log.endswith(_CUTS):
        return next((1 + (m.offset() or 0) for m in reader.newest((log, 0))), None)
    cuts = [json.loads(m.value() or b"") for m in reader.read({(log, 0): reader.bounds((log, 0))})]
    lasts = [(c["timeline"], c["previous"] + sum(c["lsns"])) for c in cuts if c.get("lsns")]
    return CommitPosition(*max(lasts)) if lasts else None


def _printed(transaction: Transaction) -> dict[str, Any]:
    commit = transaction.commit
    found = {"id": commit.id, "xid": commit.xid, "skipped": commit.skipped}
    return {**found, "documents": [_document(record) for record in transaction]}


def _document(record: Record) -> list[Any]:
    key, value = record.key(), record.value()
    place = [record.topic(), record.partition(), record.offset()]
    return [*place, key and key.decode(), None if value is None else value.decode()]


if __name__ == "__main__":
    main(*sys.argv[1:])
