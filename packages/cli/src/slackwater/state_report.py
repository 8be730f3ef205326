"""Writes a pipeline's state in words and as JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from slackwater.output import aligned
from slackwater_spark.state import (
    BucketState,
    KeptRows,
    PipelineState,
    Rescaled,
    StageState,
    name_kinds,
    show_key,
)
from slackwater_sql.plan import EnginePlan, StagePlan


def state_lines(state: PipelineState, plan: EnginePlan | None, top: int) -> list[str]:
    """Writes the state for people."""
    lines = [f"{state.checkpoint}: batch {state.batch}, {state.partitions} partitions"]
    for stage in state.stages:
        lines += ["", *_stage_lines(stage, _plan_of(stage, plan), top)]
    return lines


def _stage_lines(stage: StageState, plan: StagePlan | None, top: int) -> Iterator[str]:
    contents = stage.contents
    key = f", keyed by {', '.join(column.name for column in plan.key) or 'nothing'}" if plan else ""
    fingerprint = ", ".join(each[:12] for each in stage.fingerprints)
    yield f"stage {stage.stage}{key}: plan {fingerprint}, format {stage.buckets[0].version}"
    yield f"  {len(stage.buckets):,} buckets, {contents.keys:,} keys"
    rows = [
        (f"    {name}", f"{amount.entries:,}", size(amount.size))
        for name, amount in zip(name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
    ]
    yield from aligned(rows)
    yield (
        f"  live {size(stage.live_bytes)}, log {size(stage.log_bytes)} in {stage.blobs:,} blobs "
        f"({size(stage.compressed_bytes)} compressed), {stage.due:,} buckets due for compaction"
    )
    yield "  largest buckets"
    yield from aligned(
        (
            f"    {each.bucket}",
            f"{each.contents.keys:,} keys",
            f"live {size(each.meta.live_bytes)}",
            f"log {size(each.meta.log_bytes)}",
            f"partition {each.partition}",
        )
        for each in stage.largest_buckets(top)
    )
    yield "  largest keys"
    yield from aligned(
        (f"    {show_key(plan, each.key)}", f"{each.entries:,} entries", size(each.size))
        for each in contents.largest
    )


def state_json(state: PipelineState, plan: EnginePlan | None, top: int) -> str:
    """Writes the state for tools."""
    return json.dumps(
        {
            "checkpoint": str(state.checkpoint),
            "batch": state.batch,
            "partitions": state.partitions,
            "stages": [_stage_facts(stage, _plan_of(stage, plan), top) for stage in state.stages],
        },
        indent=2,
    )


def _stage_facts(stage: StageState, plan: StagePlan | None, top: int) -> dict[str, Any]:
    contents = stage.contents
    return {
        "stage": stage.stage,
        "fingerprints": stage.fingerprints,
        "format_version": stage.buckets[0].version,
        "buckets": len(stage.buckets),
        "keys": contents.keys,
        "kept": [
            {"what": name, "entries": amount.entries, "bytes": amount.size}
            for name, amount in zip(name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
        ],
        "live_bytes": stage.live_bytes,
        "log_bytes": stage.log_bytes,
        "compressed_bytes": stage.compressed_bytes,
        "blobs": stage.blobs,
        "buckets_due_for_compaction": stage.due,
        "largest_buckets": [_bucket_facts(each) for each in stage.largest_buckets(top)],
        "largest_keys": [
            {"key": show_key(plan, each.key), "entries": each.entries, "bytes": each.size}
            for each in contents.largest
        ],
    }


def _bucket_facts(bucket: BucketState) -> dict[str, Any]:
    return {
        "bucket": bucket.bucket,
        "partition": bucket.partition,
        "keys": bucket.contents.keys,
        "live_bytes": bucket.meta.live_bytes,
        "log_bytes": bucket.meta.log_bytes,
        "compressed_bytes": bucket.compressed_bytes,
        "blobs": len(bucket.meta.blobs),
    }


def key_lines(found: Sequence[KeptRows]) -> list[str]:
    """Writes what is kept under a key, for people."""
    if not found:
        return ["nothing is kept under this key"]
    lines = []
    for each in found:
        lines.append(f"stage {each.stage}, bucket {each.bucket}")
        if not each.rows:
            lines.append("  nothing")
        for kind, rows in each.rows.items():
            lines.append(f"  {kind}")
            lines += [f"    {json.dumps(row, ensure_ascii=False, default=str)}" for row in rows]
    return lines


def keys_json(found: Sequence[KeptRows]) -> str:
    """Writes the same for tools."""
    facts = [{"stage": each.stage, "bucket": each.bucket, "kept": dict(each.rows)} for each in found]
    return json.dumps(facts, indent=2, default=str)


def rescaled_line(done: Rescaled | None, partitions: int) -> str:
    """Writes what a change of partitions did."""
    if done is None:
        return f"has {partitions} partitions already; nothing to do"
    return (
        f"{done.before} partitions became {done.after} (batch {done.batch}): {done.buckets:,} buckets with "
        f"{done.blobs:,} blobs, {size(done.bytes)}, all of them equal to what they were"
    )


def size(count: int) -> str:
    """Bytes in a unit that keeps them short."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _plan_of(stage: StageState, plan: EnginePlan | None) -> StagePlan | None:
    numbers = {each.number: each for each in plan.stages} if plan else {}
    return numbers.get(stage.stage)
