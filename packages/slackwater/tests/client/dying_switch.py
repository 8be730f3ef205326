"""Switches readers, and kills itself at a step: ``dying_switch.py KIND STEP PIPELINE REVISION VIEWS PLACE…``.

A step is a call of what writes: before the first one, after it, and so on; what has no such step ends.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from deltalake import DeltaTable

from slackwater.client.kafka import KafkaBroker
from slackwater.client.lake_views import LakeReaders
from slackwater.client.topic_views import TopicReaders
from slackwater.client.writer import KafkaWriter
from slackwater.outputs.lake import delta
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.protocol import KafkaSettings, LakeSettings

WRITES: dict[str, list[tuple[Any, str]]] = {
    "kafka": [
        (KafkaBroker, "ensure_topic"),
        *((KafkaWriter, name) for name in ("open", "begin", "produce", "flush", "commit", "discard")),
    ],
    "delta": [(delta, "write_deltalake"), (DeltaTable, "create")],
    "iceberg": [],
}
left = 0


def step() -> None:
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(do: Callable[..., Any]) -> Callable[..., Any]:
    def done(*arguments: Any, **options: Any) -> Any:
        step()
        found = do(*arguments, **options)
        step()
        return found

    return done


def main(kind: str, count: str, pipeline: str, revision: str, views: str, *place: str) -> None:
    global left
    left = int(count)
    now = timedelta(0)
    if kind == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        WRITES[kind] = [(SqlCatalog, name) for name in ("create_namespace", "create_table", "commit_table")]
    for owner, name in WRITES[kind]:
        setattr(owner, name, dying(getattr(owner, name)))
    arguments = pipeline, int(revision), json.loads(views)
    if kind == "kafka":
        TopicReaders(KafkaSettings(place[0]), pipeline).switch(*arguments, timeout=now)
    else:
        options = dict(zip(("uri", "warehouse"), place[1:], strict=False))
        lake = LakeSettings(place=place[0], options={"type": "sql", **options} if options else {})
        tables = delta.DeltaLake(lake) if kind == "delta" else IcebergLake(lake)
        LakeReaders(tables, pipeline).switch(*arguments, timeout=now)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # Arrow's threads now and then abort a process that ends otherwise
