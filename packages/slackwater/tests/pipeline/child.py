"""Runs a pipeline in a process of its own and tells in JSON lines what happens.

Its one argument is a JSON object: ``folder``, ``settings`` of the run, optionally ``crash`` = step and batch
id at which the process kills itself, or ``crash_write`` = the number of a file of the checkpoint that is not
written any more, ``task_bytes`` of a copied state, and ``name``, ``source``, ``topic`` (further views:
``topic-view``), ``emit`` instead of the folder's, and ``table``: ``schema.name`` in the PostgreSQL of the
settings' ``postgres_url``, with every version if ``emit`` is ``transactions``, or in the lake that ``delta``
or ``iceberg`` in the settings say: place and options; ``format`` and ``keys`` with the settings'
``registry``.
"""

import json
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from slackwater.engine.state.store import ArrowStore
from slackwater.outputs.contract import Emit, Format, KeyFormat, SinkKind, SinkStep
from slackwater.pipeline import (
    BatchProgress,
    RunSettings,
    ViewOutput,
    copied_state,
    default_class_archives,
    load_pipeline,
    run_pipeline,
)
from slackwater.pipeline.settings import revision_name
from slackwater.protocol import (
    KafkaSettings,
    LakeSettings,
    PostgresSettings,
    RedisSettings,
    RegistrySettings,
    Servers,
    SlackwaterError,
)


class KillAt:
    """Kills this process, as the kernel would, at a step of a batch."""

    def __init__(self, step: str, batch_id: int) -> None:
        self._place = (step, batch_id)

    def __call__(self, step: SinkStep, batch_id: int) -> None:
        if (str(step), batch_id) == self._place:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_write(number: int) -> None:
    """Kills this process, as the kernel would, when it is to write the so-manieth file of its checkpoint."""
    numbers, write = count(1), ArrowStore.write

    def write_or_die(self: ArrowStore, name: str, data: bytes) -> None:
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, name, data)

    setattr(ArrowStore, "write", write_or_die)  # noqa: B010 - mypy takes no method for another


def main(order: dict[str, Any]) -> int:
    if "crash_write" in order:
        kill_at_write(order["crash_write"])
    if "task_bytes" in order:
        copied_state.copy_tasks = partial(copied_state.copy_tasks, task_bytes=order["task_bytes"])  # type: ignore[attr-defined]
    definition = load_pipeline(Path(order["folder"]))
    revision = definition.revision
    definition = replace(
        definition,
        name=revision_name(order["name"], revision) if "name" in order else definition.name,
        source=order.get("source", definition.source),
        outputs=tuple(
            replace(output, name=revision_name(order["topic"], revision) + suffix(number, output.view))
            if "topic" in order
            else output
            for number, output in enumerate(definition.outputs)
        ),
        emit=Emit(order.get("emit", definition.emit)),
    )
    if "table" in order:
        lakes = [kind for kind in (SinkKind.DELTA, SinkKind.ICEBERG) if kind in order["settings"]]
        kind = lakes[0] if lakes else SinkKind.POSTGRES
        history = kind is SinkKind.POSTGRES and definition.emit is Emit.TRANSACTIONS
        tables = tuple(
            ViewOutput(o.view, order["table"], kind=kind, history=history) for o in definition.outputs
        )
        definition = replace(definition, outputs=tables)
    if "format" in order:
        form, keys = Format(order["format"]), KeyFormat(order["keys"])
        outputs = tuple(replace(output, format=form, key_format=keys) for output in definition.outputs)
        definition = replace(definition, outputs=outputs)
    archives = default_class_archives(os.environ)
    given = dict(order["settings"])
    address = given.pop("postgres_url", None)
    servers = Servers(
        KafkaSettings(given.pop("bootstrap"), given.pop("kafka", {})),
        RedisSettings(given.pop("redis_url")),
        registry=RegistrySettings(url=given.pop("registry")) if "registry" in given else None,
        postgres=None if address is None else PostgresSettings(address),
        delta=lake_settings(given.pop("delta", None)),
        iceberg=lake_settings(given.pop("iceberg", None)),
    )
    given |= {"servers": servers}
    if "spark_log" in given:
        given["spark_log"] = Path(given["spark_log"])
    if "copy_state_of" in given:
        given["copy_state_of"] = (Path(given["copy_state_of"]),)
    settings = RunSettings(**{"class_archives": archives, "allow_missing_tables": True, **given})
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    probe = KillAt(*order["crash"]) if "crash" in order else None
    try:
        run_pipeline(definition, settings, tell_batch, stop=stop, probe=probe)
    except SlackwaterError as error:
        tell(error=type(error).__name__, message=str(error))
        return 1
    tell(ended=True)
    return 0


def lake_settings(values: dict[str, Any] | None) -> LakeSettings | None:
    return None if values is None else LakeSettings(**values)


def suffix(number: int, view: str) -> str:
    return "" if number == 0 else f"-{view}"


def tell_batch(batch: BatchProgress) -> None:
    tell(
        batch=batch.batch_id,
        lsn=batch.commit_lsn,
        events=batch.events,
        documents=batch.documents,
        was_covered=batch.was_covered,
        lag_seconds=batch.delay.total_seconds(),
        seconds=dict(batch.seconds),
        withheld=dict(batch.withheld),
    )


def tell(**news: object) -> None:
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(main(json.loads(sys.argv[1])))
