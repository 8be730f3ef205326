"""Pipelines that publish what a test says, by the sink of their folder: no source, no Spark session."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slackwater.cuts import PipelineLog
from slackwater.engine.payloads import DocumentBatch, pack_change, pack_items
from slackwater.outputs.sink import Sink
from slackwater.pipeline import RunSettings, load_pipeline
from slackwater.pipeline.sinks import make_sink
from slackwater.protocol import SNAPSHOT_XID, BatchHeader, Servers
from slackwater_lab.fakes.topics import REGISTRATION

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
    is_source: bool = False
    """Whether its output is a source: documents are changes, all of new keys."""

    def publish(self, rows: Mapping[int, int | str | None], *, is_snapshot: bool = False) -> int:
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
            transactions=((SNAPSHOT_XID if is_snapshot else self.lsn, self.lsn, self.lsn),),
        )
        documents = [
            (self.lsn, _json({"id": key}), self._document(key, value)) for key, value in rows.items()
        ]
        payloads = {0: tuple(pack_items(documents))}
        self.sink.write("q", DocumentBatch(batch_id, header, payloads, f"state {batch_id}"))
        return self.lsn

    def _document(self, key: int, value: int | str | None) -> bytes | None:
        document = None if value is None else _json({"id": key, "value": value})
        return pack_change(None, document) if self.is_source else document


@contextmanager
def publishing_pipeline(
    folder: Path, *, view: str, output: str, servers: Servers, emit: str = "transactions"
) -> Iterator[PublishingPipeline]:
    """Makes the folder of a pipeline, which is named like it, and opens its output.

    The output is in TOML. States are ``transactions`` or ``latest``.
    """
    (folder / "views").mkdir(parents=True)
    head = f'name = "{folder.name}"\nsource = "{SOURCE}"\nemit = "{emit}"\n'
    (folder / "pipeline.toml").write_text(f"{head}[outputs.{view}]\n{output}\n")
    (folder / "schema.sql").write_text(_SCHEMA)
    (folder / "views" / f"{view}.sql").write_text(_VIEW)
    settings = RunSettings(servers=servers, checkpoint=str(folder))
    definition = load_pipeline(folder)
    sink = make_sink(definition, settings)
    sink.open()
    try:
        is_source = any(each.is_source for each in definition.outputs)
        yield PublishingPipeline(folder, sink, is_source=is_source)
    finally:
        sink.close()


OUTPUT_OF_KIND = {
    "kafka": 'topic = "{name}.one"',
    "postgres": 'kind = "postgres"\ntable = "{name}.one"',
    "delta": 'kind = "delta"\ntable = "{name}.one"',
}
"""What pipeline.toml says of an output, by its kind."""


def published_revisions(
    kind: str, servers: Servers, folder: Path, opened: ExitStack, emit: str = "transactions"
) -> tuple[str, PublishingPipeline, PublishingPipeline]:
    """Makes two revisions of a pipeline with one view, which are registered; returns the name and both."""
    base, found = f"p{uuid.uuid4().hex[:10]}", list[PublishingPipeline]()
    log = opened.enter_context(closing(PipelineLog(servers.kafka)))
    log.ensure()
    for number, name in enumerate((base, f"{base}.v2"), 1):
        place = name.replace(".", "_")
        output = OUTPUT_OF_KIND[kind].format(name=place)
        made = publishing_pipeline(folder / name, view="one", output=output, servers=servers, emit=emit)
        found.append(opened.enter_context(made))
        view = replace(REGISTRATION.views[0], name="one", output=f"{place}.one", kind=kind, format="")
        log.register(replace(REGISTRATION, pipeline=name, base_name=base, revision=number, views=(view,)))
    return base, found[0], found[1]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
