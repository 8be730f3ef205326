"""A state that cannot give what a revision needs is refused before anything is written, and named."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slackwater.cdc.batch import OffsetSpan
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.settings import Scope
from slackwater.engine.state import manifest
from slackwater.engine.state.log import Blob, LogWrite
from slackwater.engine.state.manifest import StateKeeper, history, segment_path
from slackwater.engine.state.store import MemoryStore
from slackwater.pipeline import RunSettings, copied_state, load_pipeline
from slackwater.pipeline.checkpoint import CHECKPOINT_FILE, Checkpoint
from slackwater.pipeline.copied_state import CopiedBatch, EarlierRevisions
from slackwater.pipeline.definition import pipeline_fingerprint, stage_settings
from slackwater.pipeline.dry_run import examine_run
from slackwater.pipeline.source.position import Position, TopicPosition
from slackwater.protocol import ConfigError, Finding, KafkaSettings, Servers, SlackwaterError, StateError

SCHEMA = """
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer text NOT NULL, total numeric(12,2));
CREATE TABLE s.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL);
ALTER TABLE s.orders REPLICA IDENTITY FULL;
"""
VIEW = "SELECT TRANSACTIONALLY o.customer, count(*) AS orders FROM s.orders o GROUP BY o.customer"
NEWER = VIEW.replace("count(*)", "count(o.customer)")
POSITION = Position(
    source="inv",
    timeline=1,
    scope=Scope.STRICT,
    lsns=(700,),
    commit_ts_ms=1_000,
    log=5,
    cut=700,
    topics={name: (TopicPosition((3,), 700, (3,)),) for name in ("inv.s.orders", "inv.s.lines")},
)


def write(folder: Path, revision: int, view: str = VIEW, more: str = "", schema: str = SCHEMA) -> Path:
    path = folder / f"revision{revision}"
    (path / "views").mkdir(parents=True, exist_ok=True)
    (path / "pipeline.toml").write_text(f'name = "p"\nsource = "inv"\nrevision = {revision}\n{more}\n')
    (path / "schema.sql").write_text(schema)
    (path / "views" / "orders.sql").write_text(view)
    return path


class Revisions:
    """The checkpoint of a revision that has run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        servers = Servers(KafkaSettings("127.0.0.1:1"))
        self.settings = RunSettings(servers=servers, checkpoint=str(folder / "checkpoint"))

    def ran(
        self,
        path: Path,
        position: Mapping[str, Any] | None = None,
        batches: int = 2,
        positions: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Leaves what some batches of a revision have left."""
        definition = replace(load_pipeline(path), buckets=4)
        checkpoint = Checkpoint(self.settings.checkpoint)
        checkpoint.claim(pipeline_fingerprint(definition, 1))
        keeper = StateKeeper(checkpoint.store, state_fingerprint(definition.plan, stage_settings(definition)))
        for at in positions or [POSITION.to_json() if position is None else position] * batches:
            keeper.adopt(keeper.prepare(at, []))

    def check(self, new: Path, old: Path) -> Position:
        definition = replace(load_pipeline(new), buckets=8)
        return EarlierRevisions([load_pipeline(old)], definition, self.settings).check()

    def refusal(self, new: Path, old: Path) -> SlackwaterError:
        before = self.files
        with pytest.raises(SlackwaterError) as refused:
            self.check(new, old)
        assert "without --copy-state-of" in refused.value.hint
        assert self.files == before
        return refused.value

    @property
    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def revisions(tmp_path: Path) -> Revisions:
    return Revisions(tmp_path)


def test_a_state_that_has_all_rows_gives_a_batch_of_one_snapshot(
    revisions: Revisions, tmp_path: Path
) -> None:
    old, new = write(tmp_path, 1), write(tmp_path, 2, NEWER, 'emit = "transactions"\nbuckets = 3')
    revisions.ran(old)
    assert revisions.check(new, old) == replace(
        POSITION, topics={"inv.s.orders": POSITION.topics["inv.s.orders"]}
    ), "the other topic is not read any more"
    earlier = EarlierRevisions([load_pipeline(old)], load_pipeline(new), revisions.settings)
    batch = earlier.copy(MemoryStore(), lambda: True)
    assert isinstance(batch, CopiedBatch)
    assert (batch.header.from_lsn, batch.header.to_lsn, batch.header.event_count) == (0, 700, 0)
    assert batch.header.transactions == ((0, 700, 1_000),)
    assert [task.lsn for task in batch.tasks] == [700]
    assert earlier.copy(MemoryStore(), lambda: False) is None


def test_rows_and_columns_that_are_kept_nowhere_are_named(revisions: Revisions, tmp_path: Path) -> None:
    old = write(tmp_path, 1)
    revisions.ran(old)
    more = VIEW.replace("count(*)", "sum(o.total)").replace(
        "FROM s.orders o", "FROM s.orders o JOIN s.lines l ON l.order_id = o.id"
    )
    refused = revisions.refusal(write(tmp_path, 2, more), old)
    assert isinstance(refused, ConfigError)
    assert refused.problem == (
        "p.v2 cannot start with the state of p: table s.lines: no stage keeps its rows; "
        "table s.orders: column total is not kept"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('scope = "aggregate"', 'with scope "aggregate" the rows are not as of one commit'),
        ('[topics]\n"s.orders" = "all"', "the topic of table s.orders was inv.s.orders, and is all"),
    ],
)
def test_pipelines_that_do_not_read_the_same_are_refused(
    revisions: Revisions, tmp_path: Path, settings: str, problem: str
) -> None:
    old = write(tmp_path, 1, "SELECT TRANSACTIONALLY o.id, o.customer FROM s.orders o GROUP BY o.id")
    revisions.ran(old)
    new = write(tmp_path, 2, "SELECT TRANSACTIONALLY o.id FROM s.orders o GROUP BY o.id", settings)
    assert problem in str(revisions.refusal(new, old))


def test_another_source_or_timeline_is_refused(revisions: Revisions, tmp_path: Path) -> None:
    old, new = write(tmp_path, 1), write(tmp_path, 2, NEWER)
    revisions.ran(old)
    toml = new / "pipeline.toml"
    toml.write_text(toml.read_text().replace('"inv"', '"again"'))
    assert "it reads source inv, but this one reads again" in str(revisions.refusal(new, old))
    revisions.settings = replace(revisions.settings, timeline=2)
    refused = revisions.refusal(write(tmp_path, 2, NEWER), old)
    assert isinstance(refused, StateError)
    assert "timeline was 1, is 2" in str(refused)


def test_a_folder_that_is_not_that_of_the_state_is_refused(revisions: Revisions, tmp_path: Path) -> None:
    old, new = write(tmp_path, 1), write(tmp_path, 2, NEWER)
    assert "cannot be copied: the checkpoint has no state" in str(revisions.refusal(new, old))
    revisions.ran(old, batches=0)
    assert "cannot be copied: the checkpoint has no state yet" in str(revisions.refusal(new, old))
    revisions.ran(old)
    refused = revisions.refusal(new, write(tmp_path, 1, NEWER))
    assert "it does not fit the given folder: view orders has another SQL" in str(refused)
    third = write(tmp_path, 3)
    assert f"{revisions.settings.checkpoint}.v3" in str(revisions.refusal(new, third))
    with pytest.raises(ConfigError, match="are both revision 2"):
        revisions.check(new, new)


def test_a_damaged_manifest_is_refused(revisions: Revisions, tmp_path: Path) -> None:
    old, new = write(tmp_path, 1), write(tmp_path, 2, NEWER)
    revisions.ran(old)
    for path in (tmp_path / "checkpoint" / "manifests").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "its content does not match its name" in str(revisions.refusal(new, old))


BOTH = {"orders": VIEW, "sums": "SELECT TRANSACTIONALLY l.id, l.order_id FROM s.lines l"}


class Going:
    """A pipeline that runs: each batch replaces what all stages keep by the LSN at which it ends."""

    def __init__(self, revisions: Revisions, path: Path, rng: random.Random) -> None:
        revisions.ran(path, positions=[at_lsn(1)])
        definition = replace(load_pipeline(path), buckets=4)
        fingerprint = state_fingerprint(definition.plan, stage_settings(definition))
        self.keeper = StateKeeper(Checkpoint(revisions.settings.checkpoint).store, fingerprint)
        (name,) = history(Checkpoint(revisions.settings.checkpoint).store)
        self.keeper.open(name)
        self.stages = [stage.number for stage in definition.plan.stages]
        self.lsns, self._rng = [1], rng

    def go_on(self, batches: int) -> None:
        """Every fifth commit is one at which batches always end, as cuts do."""
        for _ in range(batches):
            before = self.lsns[-1]
            lsn = self._rng.randrange(before + 1, before - before % 5 + 6)
            blob = Blob("", 0, len(str(lsn)), 100, str(lsn).encode())
            drops = int(len(self.lsns) > 1)
            writes = [LogWrite(each, 0, drops, (blob,), 100, str(lsn).encode()) for each in self.stages[:1]]
            self.keeper.adopt(self.keeper.prepare(at_lsn(lsn), writes))
            self.lsns.append(lsn)


def at_lsn(lsn: int) -> Mapping[str, Any]:
    topics = {name: (TopicPosition((lsn,), lsn, (lsn,)),) for name in POSITION.topics}
    return replace(POSITION, lsns=(lsn,), cut=lsn, log=lsn, topics=topics).to_json()


class TestStatesOfSeveral:
    """A pipeline with the views of two begins with the states of both, as of one commit."""

    @pytest.fixture
    def parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        monkeypatch.setattr(copied_state, "_COMMON_SECONDS", 0.0)
        self.folder, found = tmp_path, []
        for name, view in BOTH.items():
            path = write(tmp_path / name, 1, view)
            toml = path / "pipeline.toml"
            toml.write_text(toml.read_text().replace('"p"', f'"{name}"'))
            found.append(path)
        self.joint = write(tmp_path, 2, BOTH["orders"])
        (self.joint / "views" / "sums.sql").write_text(BOTH["sums"])
        address = lambda _, name: str(tmp_path / name / "checkpoint")  # noqa: E731 - registrations are in Kafka
        monkeypatch.setattr(copied_state, "_registered_address", address)
        return found

    def ran(self, path: Path, *lsns: int) -> None:
        at = [replace(POSITION, lsns=(lsn,), cut=lsn, log=lsn % 7).to_json() for lsn in lsns]
        Revisions(path.parent).ran(path, positions=at)

    def states(self, parts: list[Path]) -> EarlierRevisions:
        joint = replace(load_pipeline(self.joint), buckets=8)
        return EarlierRevisions([*map(load_pipeline, parts)], joint, Revisions(self.folder).settings)

    def test_they_are_those_of_the_newest_commit_that_both_keep(self, parts: list[Path]) -> None:
        self.ran(parts[0], 300, 500, 600, 700)
        self.ran(parts[1], 400, 500, 600, 800, 900)
        states = self.states(parts)
        assert states.check().lsn == 600
        batch = states.copy(MemoryStore(), lambda: True)
        assert isinstance(batch, CopiedBatch)
        assert (batch.header.to_lsn, batch.end.lsn, batch.end.log) == (600, 600, 600 % 7)
        assert {task.lsn for task in batch.tasks} == {600}

    @pytest.mark.parametrize("seed", range(6))
    def test_rows_and_position_are_of_one_commit_however_both_continue(
        self, parts: list[Path], seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They end batches at commits of their own, and remove what they need no more, at every step."""
        monkeypatch.setattr(manifest, "_SWEEP_INTERVAL", 1)
        monkeypatch.setattr(copied_state, "_COMMON_SECONDS", 600.0)
        monkeypatch.setattr(copied_state, "_LOOK_SECONDS", 0.0)
        rng, target = random.Random(seed), MemoryStore()
        going = [Going(Revisions(part.parent), part, rng) for part in parts]
        for each in going:
            each.go_on(2 + rng.randrange(30))

        def is_wanted() -> bool:
            """Lets one continue now and then: mostly the one that is behind."""
            behind = min(going, key=lambda each: each.lsns[-1])
            if rng.random() < 0.4:
                rng.choice([behind, behind, *going]).go_on(rng.randrange(1, 4))
            return True

        batch = self.states(parts).copy(target, is_wanted)
        assert isinstance(batch, CopiedBatch)
        assert all(batch.end.lsn in each.lsns for each in going)
        assert batch.end.read_to("inv.s.orders", 0) == batch.end.lsn
        heads = [head for task in batch.tasks for _, _, head in task.logs]
        assert {target.files[segment_path(blob.segment)] for head in heads for blob in head.blobs} == {
            str(batch.end.lsn).encode()
        }

    def test_without_such_a_commit_they_are_refused(self, parts: list[Path]) -> None:
        self.ran(parts[0], 300, 500, 600)
        self.ran(parts[1], 700, 800, 900)
        with pytest.raises(StateError, match="none of a commit that all of them keep") as refused:
            self.states(parts).check()
        assert "0/1F4, 0/12C" in str(refused.value)
        assert "leave them running" in refused.value.hint

    def test_one_that_has_no_state_is_refused(self, parts: list[Path]) -> None:
        self.ran(parts[0], 300, 500, 600)
        with pytest.raises(StateError, match=r"sums in .* cannot be copied: the checkpoint has no state"):
            self.states(parts).check()


def test_a_dry_run_tells_what_the_run_would_find(revisions: Revisions, tmp_path: Path) -> None:
    old, new = write(tmp_path, 1), write(tmp_path, 2, NEWER)
    revisions.settings = replace(revisions.settings, copy_state_of=(old,))

    def found() -> list[Finding]:
        findings = examine_run(load_pipeline(new), revisions.settings)
        return [next(findings), next(findings)]

    assert [f"{each.verdict} {each.subject}" for each in found()] == ["ok checkpoint", "problem copied state"]
    revisions.ran(old)
    checkpoint, state = found()
    assert checkpoint.text.endswith("checkpoint.v2 is new: the run starts with a copied state")
    assert (state.verdict, state.subject) == ("ok", "copied state")
    assert state.text.endswith("has all rows that the pipeline needs, up to 0/2BC")
    assert not (tmp_path / "checkpoint.v2" / CHECKPOINT_FILE).exists()


WITHOUT = b'{"op": "u", "after": {"id": 1, "customer": "a", "total": null}}'
WITH = WITHOUT.replace(b"null", b'null, "note": %s')
DELETE = b'{"op": "d", "after": null}'


@pytest.mark.parametrize(
    ("default", "first", "records", "is_proven"),
    [
        ("", 0, [], True),
        ("", 0, [WITHOUT, DELETE], True),
        ("", 0, [WITHOUT, WITH % b"null"], True),
        ("", 0, [WITH % b"null"], True),
        ("", 0, [WITH % b'"n"', WITHOUT], True),  # the column was dropped, and added again
        ("", 0, [WITHOUT, WITH % b'"n"', DELETE], False),
        ("", 2, [WITH % b"null"], False),  # what retention has removed may have had values
        ("", 2, [WITHOUT], True),
        ("", 2, [], False),
        ("", 0, [b"\x00\x00\x00\x00\x01"], False),
        ("DEFAULT 'n'", 0, [WITHOUT, WITH % b'"n"'], True),
        ("DEFAULT 'n'", 0, [WITHOUT, WITH % b"null"], False),
    ],
)
def test_an_added_column_is_carried_over_if_no_row_has_another_value(
    revisions: Revisions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    default: str,
    first: int,
    records: Sequence[bytes],
    is_proven: bool,
) -> None:
    def read_beginnings(
        _kafka: object, topics: Sequence[str], _timeout: object, *, up_to: Callable[[str, int], int]
    ) -> Iterator[tuple[OffsetSpan, Sequence[bytes]]]:
        assert list(topics) == ["inv.s.orders"]
        span = OffsetSpan(topics[0], 0, first, up_to(topics[0], 0), 0)
        assert span.to_offset == 3
        yield span, []
        yield span, records
        yield OffsetSpan(topics[0], 1, 7, 0, 0), []  # of which nothing was read

    monkeypatch.setattr(copied_state, "read_beginnings", read_beginnings)
    old = write(tmp_path, 1)
    revisions.ran(old)
    schema = f"{SCHEMA}ALTER TABLE s.orders ADD COLUMN note text {default};"
    new = write(tmp_path, 2, VIEW.replace("count(*)", "max(o.note)"), schema=schema)
    if is_proven:
        assert revisions.check(new, old).lsn == 700
        return
    text = str(revisions.refusal(new, old))
    assert "table s.orders: column note is not kept, and rows may have values in it" in text
