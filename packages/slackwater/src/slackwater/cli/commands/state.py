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
        kept = [{"stage": each.stage, "bucket": each.bucket, "kept": dict(each.rows)} for each in rows]
        output.report(json.dumps(kept, indent=2, default=str), key_lines(rows), as_json=as_json)
        return 0
    known = plan if plan is not None and found.is_of(plan) else None
    stages = inspection.stage_states(store, found.state, top=top if contents else None)
    facts = {"checkpoint": store.address, **_state_facts(found, stages, known, top)}
    history = inspection.manifest_history(store)
    facts["manifests"] = [
        {"name": name, "batch": each.batch_id, "before": each.before or None} for name, each in history
    ]
    if check:
        facts["damage"] = list(inspection.find_damage(store, found.state))
    output.report(json.dumps(facts, indent=2), _state_lines(facts, known), as_json=as_json)
    return 1 if facts.get("damage") else 0


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


def _state_facts(
    found: inspection.FoundState, stages: Sequence[inspection.StageState], plan: EnginePlan | None, top: int
) -> dict[str, Any]:
    """Returns the state for tools; without a plan of these stages inputs and keys have no names."""
    state = found.state
    return {
        "manifest": state.name,
        "batch": state.batch_id,
        "is_true": found.is_true,
        "position": state.position,
        "fingerprint": found.fingerprint,
        "stages": [_stage_facts(stage, _plan_of(stage.stage, plan), top) for stage in stages],
    }


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


def _state_lines(facts: Mapping[str, Any], plan: EnginePlan | None) -> Iterator[str]:
    """Writes the same for people."""
    batch, manifests, position = facts["batch"], facts["manifests"], facts["position"] or {}
    lsns = position.get("lsns")
    at = f", {position.get('source')} at {format_position(max(lsns))}" if lsns else ""
    prepared = ", which was prepared; only the output knows whether it became visible"
    yield f"{facts['checkpoint']}: state after batch {batch}{at}{'' if facts['is_true'] else prepared}"
    newest = max((each["batch"] for each in manifests), default=batch)
    beyond = f", the newest of batch {newest}: only the output knows whether that became visible"
    yield f"  {len(manifests):,} manifests{beyond if newest > batch else ''}"
    for stage in facts["stages"]:
        yield ""
        yield from _stage_lines(stage, _plan_of(stage["stage"], plan))
    if "damage" in facts:
        blobs, damage = sum(stage["blobs"] for stage in facts["stages"]), facts["damage"]
        yield from ("", *damage, f"{blobs:,} blobs read, {len(damage):,} of them damaged")


def _stage_lines(stage: Mapping[str, Any], plan: StagePlan | None) -> Iterator[str]:
    key = f", keyed by {', '.join(column.name for column in plan.key) or 'nothing'}" if plan else ""
    keys = f", {stage['keys']:,} keys" if "keys" in stage else ""
    yield f"stage {stage['stage']}{key}: {stage['buckets']:,} buckets{keys}"
    kept = stage.get("kept", ())
    yield from aligned((f"    {each['what']}", f"{each['entries']:,}", size(each["bytes"])) for each in kept)
    log = f"log {size(stage['log_bytes'])} in {stage['blobs']:,} blobs"
    yield f"  live {size(stage['live_bytes'])}, {log} ({size(stage['compressed_bytes'])} compressed)"
    yield "  largest buckets"
    rows = []
    for each in stage["largest_buckets"]:
        counted = (f"{each['keys']:,} keys",) if "keys" in each else ()
        sizes = f"live {size(each['live_bytes'])}", f"log {size(each['log_bytes'])}"
        rows.append((f"    {each['bucket']}", *counted, *sizes))
    yield from aligned(rows)
    rows = []
    if "keys" in stage:
        yield "  largest keys"
        largest = stage["largest_keys"]
        yield from aligned(
            (f"    {e['key']}", f"{e['entries']:,} entries", size(e["bytes"])) for e in largest
        )


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


def _plan_of(stage: int, plan: EnginePlan | None) -> StagePlan | None:
    return next((each for each in plan.stages if each.number == stage), None) if plan else None
