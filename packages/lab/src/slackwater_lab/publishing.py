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
from slackwater.protocol import SNAPSHOT_XID, BatchHeader, PipelineRegistration, Servers
from slackwater_lab.fakes.topics import REGISTRATION

SOURCE = "inv"
_SCHEMA = "CREATE TABLE s.t (id bigint PRIMARY KEY, value bigint);"
_VIEW = "SELECT TRANSACTIONALLY id, value FROM s.t"


@dataclass(slots=True)
class PublishingPipeline:
    """A pipeline of `id` and `value`, in each view the same. Its batches are of one commit each: 100, 200."""

    folder: Path
    sink: Sink
    lsn: int = 0
    """Of the newest commit."""
    is_source: bool = False
    """Whether its output is a source: documents are changes, all of new keys."""
    views: int = 1

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
        payloads = dict.fromkeys(range(self.views), tuple(pack_items(documents)))
        self.sink.write("q", DocumentBatch(batch_id, header, payloads, f"state {batch_id}"))
        return self.lsn

    def _document(self, key: int, value: int | str | None) -> bytes | None:
        document = None if value is None else _json({"id": key, "value": value})
        return pack_change(None, document) if self.is_source else document


@contextmanager
def publishing_pipeline(
    folder: Path,
    *,
    view: str,
    output: str,
    servers: Servers,
    emit: str = "transactions",
    more: Mapping[str, str] | None = None,
) -> Iterator[PublishingPipeline]:
    """Makes the folder of a pipeline, which is named like it, and opens its outputs.

    The output of a view is in TOML; there may be more. States are ``transactions`` or ``latest``.
    """
    outputs = {view: output, **(more or {})}
    (folder / "views").mkdir(parents=True)
    head = f'name = "{folder.name}"\nsource = "{SOURCE}"\nemit = "{emit}"\n'
    tables = (f"[outputs.{name}]\n{each}\n" for name, each in outputs.items())
    (folder / "pipeline.toml").write_text(head + "".join(tables))
    (folder / "schema.sql").write_text(_SCHEMA)
    for name in outputs:
        (folder / "views" / f"{name}.sql").write_text(_VIEW)
    settings = RunSettings(servers=servers, checkpoint=str(folder))
    definition = load_pipeline(folder)
    sink = make_sink(definition, settings)
    sink.open()
    try:
        is_source = any(each.is_source for each in definition.outputs)
        yield PublishingPipeline(folder, sink, is_source=is_source, views=len(outputs))
    finally:
        sink.close()


OUTPUT_OF_KIND = {
    "kafka": 'topic = "{name}"',
    "postgres": 'kind = "postgres"\ntable = "{name}"',
    "delta": 'kind = "delta"\ntable = "{name}"',
}
"""What pipeline.toml says of an output, by its kind."""


def published_revisions(
    kind: str, servers: Servers, folder: Path, opened: ExitStack, emit: str = "transactions"
) -> tuple[str, PublishingPipeline, PublishingPipeline]:
    """Makes two revisions of a pipeline with one view, which are registered; returns the name and both."""
    base = f"p{uuid.uuid4().hex[:10]}"
    first = replace(REGISTRATION, pipeline=base, base_name=base, emit=emit)
    second = replace(first, pipeline=f"{base}.v2", revision=2)
    old, new = (registered_pipeline(kind, servers, folder, opened, each, "one") for each in (first, second))
    return base, old, new


def registered_pipeline(
    kind: str, servers: Servers, folder: Path, opened: ExitStack, run: PipelineRegistration, *views: str
) -> PublishingPipeline:
    """Makes a pipeline with views of its own in topics or tables ``pipeline.view``, and registers it."""
    names = {view: f"{run.pipeline.replace('.', '_')}.{view}" for view in views}
    outputs = {view: OUTPUT_OF_KIND[kind].format(name=name) for view, name in names.items()}
    view, output = outputs.popitem()
    made = publishing_pipeline(
        folder / run.pipeline, view=view, output=output, servers=servers, emit=run.emit, more=outputs
    )
    published = opened.enter_context(made)
    with closing(PipelineLog(servers.kafka)) as log:
        log.ensure()
        of = replace(REGISTRATION.views[0], kind=kind, format="")
        own = tuple(replace(of, name=view, output=name) for view, name in names.items())
        log.register(replace(run, views=own))
    return published


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
