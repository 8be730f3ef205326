"""Documents as CloudEvents: the attributes are headers of the records, whose values stay the same. Pure.

This is the binary content mode of CloudEvents' Kafka binding. The contents of Slackwater's own headers are
extension attributes.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

from slackwater.outputs.batch import CommittedDocuments, CommitUnit
from slackwater.outputs.kafka.settings import OutputTopic
from slackwater.protocol import BatchHeader, commit_id, from_epoch_ms

HEADER_EVENT_ID: Final = "ce_id"

_VERSION = "1.0"
_OWN = "slackwater"


def event_attributes(
    pipeline: str, output: OutputTopic, found: CommittedDocuments
) -> list[tuple[str, str | bytes | None]]:
    """Returns the headers that the documents of a commit have in common: all attributes except the id."""
    time = from_epoch_ms(found.unit.commit_ts_ms).isoformat(timespec="milliseconds")
    attributes = {
        "specversion": _VERSION,
        "source": f"/{_OWN}/{pipeline}/{output.name}",
        "type": f"{_OWN}.{output.schema_name}",
        "time": time.replace("+00:00", "Z"),
        f"{_OWN}pipeline": pipeline,
        f"{_OWN}commitlsn": str(found.commit_lsn),
    }
    if found.xid is not None:
        attributes[f"{_OWN}xid"] = str(found.xid)
    return [
        ("content-type", b"application/json"),
        *((f"ce_{name}", value.encode()) for name, value in attributes.items()),
    ]


def event_ids(header: BatchHeader, unit: CommitUnit) -> Iterator[bytes]:
    """Yields the ids of an output's documents in a commit: the id of the commit, and their numbers from 1.

    They are unique within the output, because each commit record covers other commits, and becomes visible
    once.
    """
    of_commit = commit_id(header.timeline, unit.commit_lsn)
    return (f"{of_commit}-{number}".encode() for number in count(1))
