"""Pipelines that publish what a test says, by the sink of their folder: no source, no Spark session."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slackwater_engine.documents import DocumentBatch
from slackwater_engine.payloads import document_payloads
from slackwater_protocol import BatchHeader, Servers
from slackwater_spark.pipeline import RunSettings, load_pipeline
from slackwater_spark.pipeline.sinks import make_sink
from slackwater_spark.sink import Sink

SOURCE = "inv"
_SCHEMA = "CREATE TABLE s.t (id bigint PRIMARY KEY, value bigint);"
_VIEW = "SELECT TRANSACTIONALLY id, value FROM s.t"


@dataclass(slots=True)
class PublishingPipeline:
    """A pipeline with one view of `id` and `value`. Its batches are of one commit each: 100, 200, 300."""

    folder: Path
    sink: Sink
    lsn: int = 0
    """Of the newest commit."""

    def publish(self, rows: Mapping[int, int | None]) -> int:
        """Publishes values by id, None for a document that is gone; returns the commit LSN."""
        batch_id, before = self.lsn // 100, self.lsn
        self.lsn += 100
        header = BatchHeader(
            source=SOURCE,
            timeline=1,
            from_lsn=before,
            to_lsn=self.lsn,
            commit_ts_ms=self.lsn,
            event_count=len(rows),
            transactions=((self.lsn, self.lsn, self.lsn),),
        )
        documents = [
            (self.lsn, _json({"id": key}), None if value is None else _json({"id": key, "value": value}))
            for key, value in rows.items()
        ]
        payloads = {0: tuple(document_payloads(documents))}
        self.sink.write("q", DocumentBatch(batch_id, header, payloads, f"state {batch_id}"))
        return self.lsn


@contextmanager
def publishing_pipeline(
    folder: Path, *, view: str, output: str, servers: Servers
) -> Iterator[PublishingPipeline]:
    """Makes the folder of a pipeline, which is named like it, and opens its output.

    Args:
        folder: Where; it must not exist.
        view: The name of its view.
        output: What pipeline.toml says of the output, in TOML.
        servers: Where it publishes.
    """
    (folder / "views").mkdir(parents=True)
    head = f'name = "{folder.name}"\nsource = "{SOURCE}"\nemit = "transactions"\n'
    (folder / "pipeline.toml").write_text(f"{head}[outputs.{view}]\n{output}\n")
    (folder / "schema.sql").write_text(_SCHEMA)
    (folder / "views" / f"{view}.sql").write_text(_VIEW)
    settings = RunSettings(servers=servers, checkpoint=str(folder))
    sink = make_sink(load_pipeline(folder), settings)
    sink.open()
    try:
        yield PublishingPipeline(folder, sink)
    finally:
        sink.close()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
