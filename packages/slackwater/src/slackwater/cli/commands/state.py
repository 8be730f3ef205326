"""``slackwater state``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.command.invocation import required, setting
from slackwater.command.output import Output, aligned, json_option
from slackwater.engine.state import inspection
from slackwater.engine.state.manifest import Manifest
from slackwater.protocol import InputError, format_position
from slackwater.settings.model import Settings
from slackwater.sql.plan import EnginePlan, StagePlan

if TYPE_CHECKING:  # Spark's libraries take a second to import; the help text does not need them
    from slackwater.pipeline.checkpoint import Checkpoint

SHOWN = 5


@settings_command()
@click.argument("place", metavar="DIR")
@setting("run.checkpoint", "Location of the state: a folder, or s3://…")
@click.option(
    "--contents", is_flag=True, help="Read everything to count keys and rows and find the largest keys."
)
@click.option("--check", is_flag=True, help="Read everything and report damage; exit code 1 if there is any.")
@click.option("--key", metavar="JSON", help="Show what the stages keep for this key, given as column values.")
@click.option(
    "--top", type=click.IntRange(min=1), default=SHOWN, show_default=True, help="Length of rankings."
)
@json_option("one JSON object")
def state(
    settings: Settings, place: str, contents: bool, check: bool, key: str | None, top: int, as_json: bool
) -> int:
    """Inspect the state of a pipeline: sizes, contents, the rows of a key, damage.

    DIR is a pipeline or a checkpoint. For each stage, shows its buckets, the size of live entries and of the
    logs, and the largest buckets. Kafka is not queried. Only the output knows whether the newest batch was
    committed, so this command shows the newest batch that is followed by another one. The pipeline may be
    running or not.

    \b
    Examples:
      slackwater state pipelines/orders --checkpoint /var/lib/slackwater/orders
      slackwater state /var/lib/slackwater/orders --contents
      slackwater state s3://bucket/orders --check
      slackwater state pipelines/orders --key '{"id": 5}'

    For details see docs/state.md.
    """
    output = Output()
    target = _target(settings, place)
    wanted = None if key is None else target.key(key)
    plan, store = target.plan, target.checkpoint.store
    found = inspection.find_state(store)
    if wanted is not None:
        rows = target.kept_rows(found, wanted)
        facts = [{"stage": each.stage, "bucket": each.bucket, "kept": dict(each.rows)} for each in rows]
        output.report(json.dumps(facts, indent=2, default=str), key_lines(rows), as_json=as_json)
        return 0
    report = StateReport(
        checkpoint=store.address,
        found=found,
        stages=inspection.stage_states(store, found.state, top=top if contents else None),
        manifests=inspection.manifest_history(store),
        damage=list(inspection.find_damage(store, found.state)) if check else None,
    )
    known = plan if plan is not None and found.is_of(plan) else None
    output.report(state_json(report, known, top), state_lines(report, known, top), as_json=as_json)
    return 1 if report.damage else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReport:
    """What the command shows of a state."""

    checkpoint: str
    found: inspection.FoundState
    stages: Sequence[inspection.StageState]
    manifests: Sequence[tuple[str, Manifest]]
    """All that are in the checkpoint by name, in the order of their batches."""
    damage: Sequence[str] | None
    """A sentence for each blob that cannot be used; None: not looked for."""


@dataclass(frozen=True, slots=True)
class _Target:
    """Names the checkpoint that the command is about, with what is known of its pipeline."""

    checkpoint: "Checkpoint"
    buckets: int | None
    plan: EnginePlan | None
    """None if only the checkpoint was named."""

    def kept_rows(self, found: inspection.FoundState, key: Mapping[str, Any]) -> list[inspection.KeptRows]:
        """Returns what the stages keep under a key.

        Raises:
            InputError: Only the checkpoint was named, or nobody has said how many buckets each stage has.
        """
        if self.plan is None:
            problem = "only the pipeline's views define what its rows mean"
            raise self._error(problem, "specify the pipeline's folder, and the checkpoint with --checkpoint")
        if self.buckets is None:
            raise self._error("its number of buckets has not been recorded yet", "run the pipeline once")
        return inspection.kept_rows(self.checkpoint.store, found, self.plan, key, buckets=self.buckets)

    def key(self, text: str) -> Mapping[str, Any]:
        """Reads a key as a person writes it.

        Raises:
            InputError: It is no JSON object.
        """
        try:
            key = json.loads(text)
        except ValueError:
            key = None
        if not isinstance(key, dict):
            raise self._error(f"""--key is {text!r}, expected a JSON object such as '{{"id": 5}}'""")
        return key

    def _error(self, problem: str, *hints: str) -> InputError:
        return InputError(f"{self.checkpoint.store.address}: {problem}", *hints)


def _target(settings: Settings, place: str) -> _Target:
    """Determines whether the command was given a pipeline or a checkpoint."""
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.checkpoint import CHECKPOINT_FILE, Checkpoint
    from slackwater.pipeline.settings import revision_checkpoint
    from slackwater.pipeline.toml_table import DEFINITION_FILE

    run = settings.run
    checkpoint = Checkpoint(place, run.spark_conf)
    is_address = "://" in place
    may_be_pipeline = not is_address and (Path(place) / DEFINITION_FILE).exists()
    if is_address or (not may_be_pipeline and checkpoint.store.read(CHECKPOINT_FILE) is not None):
        identity = checkpoint.identity()
        return _Target(checkpoint, None if identity is None else identity.buckets, None)
    definition = load_pipeline(pipeline_folder(place))
    address = required(run.checkpoint, "run.checkpoint", "where its state is")
    checkpoint = Checkpoint(revision_checkpoint(address, definition.revision), run.spark_conf)
    identity = checkpoint.identity()
    return _Target(checkpoint, definition.buckets if identity is None else identity.buckets, definition.plan)


def state_lines(report: StateReport, plan: EnginePlan | None, top: int) -> list[str]:
    """Writes the state for people; without a plan of these stages inputs and keys have no names."""
    lines = [f"{report.checkpoint}: {_shown_state(report.found)}", f"  {_shown_manifests(report)}"]
    for stage in report.stages:
        lines += ["", *_stage_lines(stage, _plan_of(stage, plan), top)]
    if report.damage is not None:
        blobs = sum(stage.blobs for stage in report.stages)
        lines += ["", *report.damage, f"{blobs:,} blobs read, {len(report.damage):,} of them damaged"]
    return lines


def _shown_state(found: inspection.FoundState) -> str:
    state = found.state
    position = state.position or {}
    lsns = position.get("lsns")
    at = f", {position.get('source')} at {format_position(max(lsns))}" if lsns else ""
    what = f"state after batch {state.batch_id}{at}"
    if found.is_true:
        return what
    return f"{what}, which was prepared; only the output knows whether it became visible"


def _shown_manifests(report: StateReport) -> str:
    newest = max((each.batch_id for _, each in report.manifests), default=report.found.state.batch_id)
    beyond = newest - report.found.state.batch_id
    if beyond <= 0:
        return f"{len(report.manifests):,} manifests"
    return (
        f"{len(report.manifests):,} manifests, the newest of batch {newest}: only the output knows "
        "whether that became visible"
    )


def _stage_lines(stage: inspection.StageState, plan: StagePlan | None, top: int) -> Iterator[str]:
    contents = stage.contents
    key = f", keyed by {', '.join(column.name for column in plan.key) or 'nothing'}" if plan else ""
    keys = "" if contents is None else f", {contents.keys:,} keys"
    yield f"stage {stage.stage}{key}: {len(stage.buckets):,} buckets{keys}"
    if contents is not None:
        kinds = zip(inspection.name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
        yield from aligned((f"    {name}", f"{each.entries:,}", size(each.size)) for name, each in kinds)
    yield (
        f"  live {size(stage.live_bytes)}, log {size(stage.log_bytes)} in {stage.blobs:,} blobs "
        f"({size(stage.compressed_bytes)} compressed)"
    )
    yield "  largest buckets"
    yield from aligned(
        (
            f"    {each.bucket}",
            *(() if each.contents is None else (f"{each.contents.keys:,} keys",)),
            f"live {size(each.head.live_bytes)}",
            f"log {size(each.head.log_bytes)}",
        )
        for each in stage.largest_buckets(top)
    )
    if contents is not None:
        yield "  largest keys"
        yield from aligned(
            (f"    {inspection.show_key(plan, each.key)}", f"{each.entries:,} entries", size(each.size))
            for each in contents.largest
        )


def state_json(report: StateReport, plan: EnginePlan | None, top: int) -> str:
    """Writes the state for tools."""
    found = report.found
    facts = {
        "checkpoint": report.checkpoint,
        "manifest": found.state.name,
        "batch": found.state.batch_id,
        "is_true": found.is_true,
        "position": found.state.position,
        "fingerprint": found.fingerprint,
        "stages": [_stage_facts(stage, _plan_of(stage, plan), top) for stage in report.stages],
        "manifests": [
            {"name": name, "batch": each.batch_id, "before": each.before or None}
            for name, each in report.manifests
        ],
    }
    if report.damage is not None:
        facts["damage"] = list(report.damage)
    return json.dumps(facts, indent=2)


def _stage_facts(stage: inspection.StageState, plan: StagePlan | None, top: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "stage": stage.stage,
        "buckets": len(stage.buckets),
        "live_bytes": stage.live_bytes,
        "log_bytes": stage.log_bytes,
        "compressed_bytes": stage.compressed_bytes,
        "blobs": stage.blobs,
        "largest_buckets": [_bucket_facts(each) for each in stage.largest_buckets(top)],
    }
    if (contents := stage.contents) is not None:
        kinds = zip(inspection.name_kinds(contents.kinds, plan), contents.kinds.values(), strict=True)
        facts["keys"] = contents.keys
        facts["kept"] = [{"what": name, "entries": each.entries, "bytes": each.size} for name, each in kinds]
        facts["largest_keys"] = [
            {"key": inspection.show_key(plan, each.key), "entries": each.entries, "bytes": each.size}
            for each in contents.largest
        ]
    return facts


def _bucket_facts(bucket: inspection.BucketState) -> dict[str, Any]:
    return {
        "bucket": bucket.bucket,
        "live_bytes": bucket.head.live_bytes,
        "log_bytes": bucket.head.log_bytes,
        "compressed_bytes": bucket.compressed_bytes,
        "blobs": len(bucket.head.blobs),
        **({} if bucket.contents is None else {"keys": bucket.contents.keys}),
    }


def key_lines(found: Sequence[inspection.KeptRows]) -> list[str]:
    """Writes what is kept under a key, for people."""
    if not found:
        return ["nothing is kept for this key"]
    lines = []
    for each in found:
        lines.append(f"stage {each.stage}, bucket {each.bucket}")
        if not each.rows:
            lines.append("  nothing")
        for kind, rows in each.rows.items():
            lines.append(f"  {kind}")
            lines += [f"    {json.dumps(row, ensure_ascii=False, default=str)}" for row in rows]
    return lines


def size(count: int) -> str:
    """Returns a number of bytes in a suitable unit."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _plan_of(stage: inspection.StageState, plan: EnginePlan | None) -> StagePlan | None:
    numbers = {each.number: each for each in plan.stages} if plan else {}
    return numbers.get(stage.stage)
