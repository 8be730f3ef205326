"""What a plan says of a changed folder, and what a run with it refuses; nothing here needs a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.cdc.batch import OffsetSpan
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.settings import Scope
from slackwater.engine.state.manifest import StateKeeper
from slackwater.pipeline import PipelineDefinition, RunSettings, change_plan, load_pipeline
from slackwater.pipeline.change_plan import (
    Begins,
    Change,
    ChangePlan,
    Known,
    PlannedOutput,
    check_plan,
    plan_change,
    plan_lines,
)
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.pipeline.definition import pipeline_fingerprint, stage_settings
from slackwater.pipeline.settings import revision_checkpoint
from slackwater.pipeline.source.position import Position, TopicPosition
from slackwater.protocol import ConfigError, KafkaSettings, Servers, SlackwaterError, StateError

FILES = {
    "pipeline.toml": 'name = "p"\nsource = "inv"\n[outputs.orders]\n[outputs.totals]\n',
    "schema.sql": "CREATE TABLE s.orders (id bigint PRIMARY KEY, customer varchar(9), total numeric(8,2));\n",
    "views/orders.sql": "SELECT TRANSACTIONALLY o.id, o.customer FROM s.orders o",
    "views/totals.sql": (
        "SELECT TRANSACTIONALLY o.customer, sum(o.total) AS t FROM s.orders o GROUP BY o.customer"
    ),
}
EDITS: Mapping[str, tuple[str, str, str]] = {
    "a comment": ("views/orders.sql", "SELECT", "-- all of them\nSELECT"),
    "spacing": ("views/totals.sql", " FROM", "\n  FROM"),
    "an unused column": ("schema.sql", ");", ", note text);"),
    "an unused added column": ("schema.sql", ");", "); ALTER TABLE s.orders ADD COLUMN extra int DEFAULT 1;"),
    "an owner": ("pipeline.toml", "[outputs.orders]", 'owner = "me"\n[outputs.orders]'),
    "a wider text": ("schema.sql", "varchar(9)", "text"),
    "a wider number": ("schema.sql", "numeric(8,2)", "numeric(12,2)"),
    "NOT NULL": ("schema.sql", "varchar(9)", "varchar(9) NOT NULL"),
    "a condition": ("views/orders.sql", "s.orders o", "s.orders o WHERE o.id > 1"),
    "another column": ("views/orders.sql", "o.customer", "o.total"),
    "a name": ("views/totals.sql", "AS t", "AS total"),
    "a topic": ("pipeline.toml", "[outputs.totals]", '[outputs.totals]\ntopic = "sums"'),
    "emit": ("pipeline.toml", "[outputs.orders]", 'emit = "transactions"\n[outputs.orders]'),
    "buckets": ("pipeline.toml", "[outputs.orders]", "buckets = 5\n[outputs.orders]"),
    "a source": ("pipeline.toml", '"inv"', '"again"'),
}
HARMLESS = {"a comment", "spacing", "an unused column", "an unused added column", "an owner"}
ENDS = (7, 3)


def write(folder: Path, edits: Sequence[str] = (), revision: int = 1) -> PipelineDefinition:
    files = dict(FILES)
    for edit in edits:
        name, old, new = EDITS[edit]
        files[name] = files[name].replace(old, new, 1)
    files["pipeline.toml"] = f"revision = {revision}\n" + files["pipeline.toml"]
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_pipeline(folder)


class World:
    """A checkpoint, and topics that begin and end somewhere."""

    def __init__(self, folder: Path) -> None:
        self.settings = RunSettings(servers=Servers(KafkaSettings("none:1")), checkpoint=str(folder / "cp"))
        self.first = [0, 0]

    def spans(self, _kafka: object, topics: Sequence[str], _timeout: object) -> list[OffsetSpan]:
        return [OffsetSpan(t, n, self.first[n], end, n) for t in sorted(topics) for n, end in enumerate(ENDS)]

    def run(self, definition: PipelineDefinition) -> None:
        """Leaves what a run leaves; raises what it raises."""
        address = revision_checkpoint(self.settings.checkpoint, definition.revision)
        checkpoint = Checkpoint(address)
        identity = checkpoint.identity()
        check_plan(definition, self.settings)
        buckets = definition.buckets or (identity.buckets if identity else 8)
        definition = replace(definition, buckets=buckets)
        checkpoint.check(pipeline_fingerprint(definition, 1))
        checkpoint.claim(pipeline_fingerprint(definition, 1))
        keeper = StateKeeper(checkpoint.store, state_fingerprint(definition.plan, stage_settings(definition)))
        names = sorted(each.name for each in (Path(address) / "manifests").glob("*"))
        keeper.open(names[-1] if names else "")
        position = Position(
            source=definition.source,
            timeline=1,
            scope=Scope.STRICT,
            lsns=(700,),
            topics={name: (TopicPosition((3, 1), 700, (3, 1)),) for name in definition.input_topics},
        )
        keeper.adopt(keeper.prepare(position.to_json(), []))
        keeper.adopt(keeper.prepare(position.to_json(), []))

    def plan(self, definition: PipelineDefinition, known: Known | None = None) -> ChangePlan:
        return plan_change(definition, self.settings, known or Known(), "DIR")

    def use(self, plan: ChangePlan, folder: Path) -> None:
        path = folder / "plan.json"
        path.write_bytes(msgspec.json.encode(plan))
        self.settings = replace(self.settings, plan=path)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(tmp_path)
    monkeypatch.setattr(change_plan, "partition_spans", lambda *given: found.spans(*given))
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits=st.lists(st.sampled_from(sorted(EDITS)), unique=True, max_size=3))
def test_a_plan_says_kept_exactly_for_what_a_run_keeps(
    edits: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    world = World(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_plan, "partition_spans", world.spans)
        try:
            changed = write(folder / "new", edits)
        except SlackwaterError:
            return  # edits that contradict each other
        world.run(write(folder / "old"))
        plan = world.plan(changed)
        assert (plan.begins is Begins.KEPT) is (set(edits) <= HARMLESS)
        if plan.begins is Begins.KEPT:
            world.run(changed)
            assert {each.change for each in plan.stages} == {Change.KEPT}
            return
        with pytest.raises(StateError) as refused:
            world.run(changed)
        assert plan.begins is Begins.REFUSED
        assert plan.changes[0] in str(refused.value)
        assert (
            "set `revision = 2` in pipeline.toml, then: slackwater plan DIR --copy-state-of" in plan.command
        )


def test_what_is_kept_is_read_on_from_the_position_of_the_state(world: World, tmp_path: Path) -> None:
    definition = write(tmp_path / "p")
    world.run(definition)
    known = Known(
        events_per_second=0.05, outputs=(PlannedOutput(Change.LEFT, "p", "kafka", "orders", ("me",)),)
    )
    plan = world.plan(definition, known)
    assert plan.records == (7 - 3) + (3 - 1)
    assert plan.minutes == 2.0
    assert [(each.change, each.name, each.readers) for each in plan.outputs] == [
        (Change.KEPT, "orders", ("me",)),
        (Change.KEPT, "totals", ()),
    ]
    assert "duration  about 2.0 min, at the 0 records/s of the newest batch" in list(plan_lines(plan))


def test_a_new_revision_is_built_from_the_topics_or_from_the_rows_of_another(
    world: World, tmp_path: Path
) -> None:
    old = write(tmp_path / "old")
    world.run(old)
    edits = ["a condition", "a wider number", "a wider text"]
    new = write(tmp_path / "new", edits, revision=2)
    stages = {each.identity: each.why for each in old.plan.stages}
    theirs = PlannedOutput(Change.LEFT, "p", "kafka", "orders", ("pipeline q",))
    plan = world.plan(new, Known(stages=stages, outputs=(theirs,)))
    assert (plan.begins, plan.records, plan.state_bytes, plan.minutes) == (Begins.TOPICS, 10, 0, None)
    assert {each.change for each in plan.stages} >= {Change.ADDED}
    assert [(each.change, each.name) for each in plan.outputs] == [
        (Change.ADDED, "orders.v2"),
        (Change.ADDED, "totals.v2"),
        (Change.LEFT, "orders"),
    ]
    world.settings = replace(world.settings, copy_state_of=(tmp_path / "old",))
    plan = world.plan(new)
    assert (plan.begins, plan.records) == (Begins.COPIED, 6)
    assert plan.command.endswith(f"--copy-state-of {tmp_path / 'old'}")
    plan = world.plan(write(tmp_path / "new", ["NOT NULL"], revision=2))
    assert plan.begins is Begins.REFUSED
    assert "column customer could be NULL" in plan.changes[0]
    assert "plan it without --copy-state-of" in plan.command


def other_view(world: World, folder: Path) -> PipelineDefinition:
    return write(folder / "new", ["a condition"], revision=2)


def other_partitions(world: World, folder: Path) -> PipelineDefinition:
    new = write(folder / "new", revision=2)
    return replace(new, outputs=tuple(replace(each, partitions=9) for each in new.outputs))


def other_checkpoint(world: World, folder: Path) -> PipelineDefinition:
    world.settings = replace(world.settings, checkpoint=str(folder / "elsewhere"))
    return write(folder / "new", revision=2)


def truncated_topic(world: World, folder: Path) -> PipelineDefinition:
    world.first[1] = 2
    return write(folder / "new", revision=2)


def copied_after_all(world: World, folder: Path) -> PipelineDefinition:
    world.settings = replace(world.settings, copy_state_of=(folder / "old",))
    return write(folder / "new", revision=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_view, "view orders has another SQL"),
        (other_partitions, "output of view orders was kafka orders.v2, is kafka orders.v2, 9 partitions"),
        (other_checkpoint, "elsewhere.v2"),
        (truncated_topic, "topic inv.s.orders began at offsets [0, 0], begins at [0, 2]"),
        (copied_after_all, "the id of the checkpoint whose state is copied was none, is "),
    ],
)
def test_a_run_refuses_what_its_plan_does_not_say(
    world: World, tmp_path: Path, change: Callable[[World, Path], PipelineDefinition], said: str
) -> None:
    world.run(write(tmp_path / "old"))
    world.use(world.plan(write(tmp_path / "new", revision=2)), tmp_path)
    changed = change(world, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StateError) as refused:
        world.run(changed)
    assert said in refused.value.problem
    assert "make it again" in refused.value.hint
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"


def test_a_run_that_was_killed_goes_on_with_its_plan(world: World, tmp_path: Path) -> None:
    new = write(tmp_path / "new", revision=2)
    world.use(world.plan(new), tmp_path)
    world.run(new)
    world.first[0] = 3  # what was read may go
    world.run(new)


def test_a_checkpoint_that_is_another_one_or_gone_is_refused(world: World, tmp_path: Path) -> None:
    definition = write(tmp_path / "p")
    world.run(definition)
    world.use(world.plan(definition), tmp_path)
    Checkpoint(world.settings.checkpoint).remove()
    with pytest.raises(StateError, match=r"the id of checkpoint .* is gone"):
        world.run(definition)


def test_a_file_that_is_no_plan_is_refused(world: World, tmp_path: Path) -> None:
    definition = write(tmp_path / "p")
    for text in (b"", b"{}", msgspec.json.encode(replace(world.plan(definition), version=9))):
        (tmp_path / "plan.json").write_bytes(text)
        world.settings = replace(world.settings, plan=tmp_path / "plan.json")
        with pytest.raises(ConfigError, match=r"plan .*plan\.json"):
            world.run(definition)
