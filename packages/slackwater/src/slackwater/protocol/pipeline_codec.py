"""The codec of registrations and reports of pipelines; see also :mod:`slackwater.protocol.codec`."""

from dataclasses import asdict
from typing import Any

from slackwater.protocol.codec import PROTOCOL_VERSION, Fields, dump, load
from slackwater.protocol.keys import registration_key, report_key
from slackwater.protocol.registrations import (
    PipelineRecord,
    PipelineRegistration,
    PipelineReport,
    RegisteredStage,
    RegisteredView,
    RunEnd,
    StageWork,
)

_KINDS = {PipelineRegistration: "registration", PipelineReport: "report"}


def encode_pipeline_record(record: PipelineRecord) -> bytes:
    """Encodes the value of a record in the topic of pipelines."""
    fields = _without_unknown(asdict(record))
    if "stages" in fields:
        fields["stages"] = [_without_unknown(stage) for stage in fields["stages"]]
    return dump({"v": PROTOCOL_VERSION, "kind": _KINDS[type(record)], **fields})


def _without_unknown(fields: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what later versions have added, where it is not known."""
    return {name: value for name, value in fields.items() if name not in _ADDED or value not in _UNKNOWN}


_ADDED = ("identity", "processed_lsn", "stage_work", "state_bytes")
_UNKNOWN: tuple[Any, ...] = ("", None, {}, ())


def pipeline_record_key(record: PipelineRecord) -> bytes:
    """Returns the key under which a record replaces the one before it."""
    key = registration_key if isinstance(record, PipelineRegistration) else report_key
    return key(record.pipeline, record.run).encode()


def decode_pipeline_record(data: bytes) -> PipelineRecord:
    """Decodes a record of the topic of pipelines; raises like :func:`~slackwater.protocol.decode_cut`."""
    return load("record of the topic of pipelines", data, _pipeline_record)


def _pipeline_record(d: Fields) -> PipelineRecord:
    kind = d.text("kind")
    if kind == "registration":
        return _registration(d)
    if kind == "report":
        return _report(d)
    raise ValueError(f"kind is {kind!r}")


def _registration(d: Fields) -> PipelineRegistration:
    tables = d.mapping("tables")
    return PipelineRegistration(
        revision=d.number("revision", least=1),
        timeline=d.number("timeline"),
        tables={table: Fields(tables).text(table) for table in tables},
        stages=tuple(map(_stage, d.objects("stages"))),
        views=tuple(map(_view, d.objects("views"))),
        pid=d.number("pid"),
        started_ms=d.moment("started_ms"),
        **{name: d.text(name) for name in _REGISTERED_TEXTS},
    )


_REGISTERED_TEXTS = (
    "pipeline",
    "base_name",
    "owner",
    "source",
    "emit",
    "scope",
    "query_id",
    "checkpoint",
    "run",
    "host",
    "version",
)


def _stage(d: Fields) -> RegisteredStage:
    return RegisteredStage(
        number=d.number("number", least=1),
        level=d.number("level", least=1),
        key=d.text_list("key"),
        tables=d.text_list("tables"),
        stages=tuple(d.numbers("stages")),
        why=d.text("why"),
        identity=d.text("identity") if d.has("identity") else "",
    )


def _view(d: Fields) -> RegisteredView:
    texts: dict[str, Any] = {
        name: d.text(name) for name in ("name", "output", "kind", "format", "output_source")
    }
    return RegisteredView(tables=d.text_list("tables"), stages=tuple(d.numbers("stages")), **texts)


def _report(d: Fields) -> PipelineReport:
    return PipelineReport(
        pipeline=d.text("pipeline"),
        run=d.text("run"),
        batch_id=d.number("batch_id", least=-1),
        timeline=d.number("timeline"),
        commit_lsn=d.number("commit_lsn"),
        commit_ts_ms=d.moment_or_none("commit_ts_ms"),
        visible_ms=d.moment_or_none("visible_ms"),
        parts_us=d.counts("parts_us"),
        events=d.number("events"),
        documents=d.number("documents"),
        run_events=d.number("run_events"),
        run_documents=d.number("run_documents"),
        end=None if (end := d.object_or_none("end")) is None else _end(end),
        stage_work=tuple(map(_work, d.objects("stage_work"))) if d.has("stage_work") else (),
        state_bytes=d.counts("state_bytes") if d.has("state_bytes") else {},
        processed_lsn=d.number("processed_lsn") if d.has("processed_lsn") else None,
    )


def _work(d: Fields) -> StageWork:
    return StageWork(
        stage=d.number("stage", least=1),
        total_us=d.number("total_us"),
        tasks=d.number("tasks"),
        slowest_us=d.number("slowest_us"),
        slowest_task=d.number("slowest_task"),
    )


def _end(d: Fields) -> RunEnd:
    return RunEnd(ended_ms=d.moment("ended_ms"), failure=d.text("failure"))
