"""The rows that stages keep under one key, as their plan reads them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater_engine.payloads import bucket_of
from slackwater_engine.state.contents import DOCUMENTS, GROUPS, OWNERS, VALUES, kind_of
from slackwater_engine.state.entry import Entry, input_tag, is_digest, part
from slackwater_spark.state.buckets import entries_of_group
from slackwater_spark.state.checkpoint import checkpoint_facts
from slackwater_spark.state.errors import UnknownKeyError
from slackwater_spark.state.inspection import blob_table
from slackwater_spark.state.reading import LOG, StateVariable, operators, state_table
from slackwater_sql.plan import EnginePlan, InputPlan, StagePlan
from slackwater_sql.row_codec import RowCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What a stage keeps under a key."""

    stage: int
    bucket: int
    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    """By what is kept: rows by the alias of their input, numbers of groups, ..."""


def key_columns(stage: StagePlan) -> tuple[str, ...]:
    """Names of a stage's key."""
    return tuple(column.name for column in stage.key)


def packed_key(stage: StagePlan, key: Mapping[str, Any]) -> bytes:
    """A key as the stage packs it.

    Raises:
        UnknownKeyError: a value is not of the column's type.
    """
    values = []
    for column in stage.key:
        try:
            values.append(msgspec.convert(key[column.name], column.type.wire | None))
        except msgspec.ValidationError as error:
            problem = f"{column.name} is {column.type}: {error}"
            raise UnknownKeyError(msgspec.json.encode(key).decode(), problem) from error
    return msgspec.msgpack.encode(values)


def shown_key(stage: StagePlan | None, group: bytes) -> str:
    """A key as in entries' names, for people."""
    if is_digest(group):
        return f"(a long key with digest {group[1:].hex()})"
    values = msgspec.msgpack.decode(group)
    if stage is None or len(values) != len(stage.key):
        return msgspec.json.encode(values).decode()
    return msgspec.json.encode(dict(zip(key_columns(stage), values, strict=True))).decode()


def kind_names(kinds: Iterable[str], stage: StagePlan | None) -> list[str]:
    """What is kept, for people: inputs by their alias, and the table or stage they come from."""
    names = {
        DOCUMENTS: "digests of documents",
        GROUPS: "groups of aggregates",
        VALUES: "values of min, max and distinct",
        OWNERS: "partitions of keys",
    }
    if stage is not None and stage.rows is not None:
        for number, plan in enumerate(stage.rows.inputs):
            names[kind_of(input_tag(number))] = f"rows of {_input_name(plan)}"
    return [names.get(kind, f"rows of {kind}") for kind in kinds]


def kept_rows(
    session: "SparkSession",
    folder: Path,
    plan: EnginePlan,
    key: Mapping[str, Any],
    *,
    buckets: int,
    limit: int = 20,
) -> list[KeptRows]:
    """What the stages whose key has these columns keep under a key, after the newest committed batch.

    Args:
        session: With the settings that stages require.
        folder: The checkpoint.
        plan: Of the pipeline.
        key: Name to value, as in JSON.
        buckets: Of the pipeline.
        limit: Rows that are given at most of each input.

    Raises:
        NotACheckpointError: there is no state.
        UnknownKeyError: no stage has such a key.
    """
    wanted = [stage for stage in plan.stages if set(key_columns(stage)) == set(key)]
    if not wanted:
        known = "; ".join(f"stage {s.number}: {', '.join(key_columns(s)) or 'none'}" for s in plan.stages)
        shown = msgspec.json.encode(key).decode()
        raise UnknownKeyError(shown, f"no stage has these key columns; there are {known}")
    batch = checkpoint_facts(folder).committed
    found = []
    for operator in operators(session, folder):
        table = blob_table(state_table(session, folder, batch, StateVariable(operator, LOG)))
        for stage in wanted:
            packed = packed_key(stage, key)
            bucket = bucket_of(packed, buckets)
            of_bucket = table.where(f"stage = {stage.number} AND bucket = {bucket}")
            for _, entries in entries_of_group(of_bucket, part(packed), limit):
                found.append(KeptRows(stage.number, bucket, _decoded(stage, len(part(packed)), entries)))
    return found


def _decoded(stage: StagePlan, width: int, entries: list[Entry]) -> dict[str, tuple[Mapping[str, Any], ...]]:
    readers = dict(_readers(stage))
    result: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for name, value in entries:
        tag = name[width : width + 1]
        if (reader := readers.get(tag)) is not None:
            kind, codec = reader
            names = [column.name for column in codec.columns]
            shown: Mapping[str, Any] = dict(zip(names, codec.unpack(value), strict=True))
        else:
            kind, shown = kind_of(tag), _shown(kind_of(tag), value)
        result[kind] = (*result.get(kind, ()), shown)
    return result


def _readers(stage: StagePlan) -> Iterator[tuple[bytes, tuple[str, RowCodec]]]:
    if stage.rows is None:
        return
    for number, plan in enumerate(stage.rows.inputs):
        yield input_tag(number), (_input_name(plan), RowCodec(plan.table, plan.column_names))


def _input_name(plan: InputPlan) -> str:
    name = plan.table.full_name if plan.table.schema else plan.table.name
    return name if plan.alias in {name, plan.table.name} else f"{plan.alias} ({name})"


def _shown(kind: str, value: bytes) -> Mapping[str, Any]:
    if kind == DOCUMENTS:
        return {"digest": value.hex()}
    if kind == OWNERS:
        return {"partition": int.from_bytes(value, "big")}
    stored = msgspec.msgpack.decode(value)
    return {"numbers": stored[0]} if kind == GROUPS else {"value": stored}
