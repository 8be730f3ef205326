"""Begins a revision with the states of earlier ones, instead of at the beginning of the topics.

The rows of the tables in these states are the first batch. Until this batch is visible, the copy consists
only of files that nothing refers to. A run that is killed before that copies again; a run that is started
later continues like any other.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.batch import ticks_of
from slackwater.cdc.envelope import decode_full_row
from slackwater.control import known_runs
from slackwater.cuts import PipelineLog
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.copied_state import (
    ROUNDS,
    CopiedState,
    CopyTask,
    TableCopy,
    copy_state,
    copy_tasks,
    plan_copies,
)
from slackwater.engine.packer import packing_spec
from slackwater.engine.settings import Scope
from slackwater.engine.state.inspection import find_state, kept_manifests
from slackwater.engine.state.store import StateStore
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.checkpoint import Checkpoint, listed_changes
from slackwater.pipeline.definition import PipelineDefinition, pipeline_fingerprint, stage_settings
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.source.kafka_reader import read_beginnings
from slackwater.pipeline.source.position import Position
from slackwater.protocol import SNAPSHOT_XID, BatchHeader, ConfigError, StateError, format_position
from slackwater.sql.catalog import Column

_FROM_THE_BEGINNING = (
    "start without --copy-state-of: the views are then built from the beginning of the source's topics"
)


_COMMON_SECONDS: Final = 30.0
"""How long to wait for a commit at which all of several pipelines have ended a batch, and keep its state."""
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """The first batch of a pipeline that begins with a copied state."""

    header: BatchHeader
    """The header: all rows are those of one snapshot, as of the commit at which the state was copied."""
    tasks: tuple[CopyTask, ...] = field(repr=False)
    end: Position = field(repr=False)
    """The position in the source after the batch, which is that of the copied state."""


class EarlierRevisions:
    """The states of earlier revisions, with which a pipeline can begin. Nothing there is changed.

    There are several if the pipeline has the views of several; they are copied as of one commit, at which all
    of them have ended a batch. Methods raise ConfigError if some rows or columns are not kept or the
    pipelines read different things, StateError if there is no state or it is damaged or belongs to another
    pipeline, or if there is no such commit, and UnavailableError if a store or Kafka does not answer. The
    number of buckets of the pipeline that is to begin is known.
    """

    def __init__(
        self, earlier: Sequence[PipelineDefinition], definition: PipelineDefinition, settings: RunSettings
    ) -> None:
        self._all = [EarlierRevision(each, definition, settings) for each in earlier]
        self._definition = definition

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """Where their states are."""
        return [each.checkpoint for each in self._all]

    @property
    def place(self) -> str:
        """The names of the earlier revisions and the places of their states, for messages."""
        return " and of ".join(each.place for each in self._all)

    def check(self) -> Position:
        """Refuses states that lack what the pipeline needs; returns their position in the source."""
        wanted = self._tables()
        for each in wanted:
            each.check_state()
        found = self._at_one_commit([*wanted], lambda: True) or []
        end = _merged([each.position(at) for each, at in zip(wanted, found, strict=True)])
        for each, tables in wanted.items():
            each.check_added(tables, end, lambda: True)
        return end

    def copy(self, target: StateStore, is_wanted: Callable[[], bool]) -> CopiedBatch | None:
        """Copies the states into the store of the pipeline's checkpoint. It may be repeated.

        Returns:
            The batch with which the pipeline begins; None if `is_wanted`, called from time to time, is False.
        """
        tables = self._tables()
        sources = {each: (found, each.fingerprint(), set[str]()) for each, found in tables.items()}
        before: Sequence[Mapping[str, Any]] = ()
        for rest in reversed(range(ROUNDS)):
            ends = self._at_one_commit([*sources], is_wanted)
            if ends is None:
                return None
            try:
                states = [
                    each.copy(target, *source, None if len(sources) == 1 else end, is_wanted)
                    for (each, source), end in zip(sources.items(), ends, strict=True)
                ]
            except StateError:
                if not rest or ends == before:
                    raise  # nobody has advanced, so nobody has removed anything
                before = ends
            else:
                break
        found = [state for state in states if state is not None]
        if len(found) < len(states):
            return None
        end = _merged([each.position(state.position) for each, state in zip(sources, found, strict=True)])
        for each, of_each in tables.items():
            each.check_added(of_each, end, is_wanted)
        if not is_wanted():
            return None
        header = BatchHeader(
            source=end.source,
            timeline=end.timeline,
            from_lsn=0,
            to_lsn=end.lsn,
            commit_ts_ms=end.commit_ts_ms,
            event_count=0,
            transactions=((SNAPSHOT_XID, end.lsn, end.commit_ts_ms),),
        )
        tasks: list[CopyTask] = []
        for of_table, state in zip(tables.values(), found, strict=True):
            ticks = ticks_of(header.transactions, 0)
            tasks += copy_tasks(of_table, state, end.lsn, first=len(tasks), ticks=ticks)
        return CopiedBatch(header, tuple(tasks), end)

    def _at_one_commit(
        self, sources: Sequence["EarlierRevision"], is_wanted: Callable[[], bool]
    ) -> list[Mapping[str, Any]] | None:
        """Returns the positions of the newest states of one commit; None if nobody wants them any more."""
        deadline = time.monotonic() + _COMMON_SECONDS
        while is_wanted():
            kept = [each.positions() for each in sources]
            common = [at for at in kept[0] if all(at in other for other in kept)]
            if common:
                return [each[common[0]] for each in kept]
            if time.monotonic() > deadline:
                at = "; ".join(
                    f"{each.place} keeps {_listed(known)}" for each, known in zip(sources, kept, strict=True)
                )
                raise StateError(
                    f"the states cannot be copied: there is none of a commit that all of them keep: {at}",
                    f"start all of the pipelines, and leave them running; or {_FROM_THE_BEGINNING}",
                )
            time.sleep(_LOOK_SECONDS)
        return None

    def _tables(self) -> dict["EarlierRevision", tuple[TableCopy, ...]]:
        """Returns where the rows of each input are, of all pipelines that are needed for it."""
        for each in self._all:
            each.check_fits()
        old = [packing_spec(each.earlier.plan, each.earlier.buckets or 1) for each in self._all]
        new = packing_spec(self._definition.plan, self._definition.buckets or 1)
        try:
            found = plan_copies(old, new)
        except ConfigError as error:
            names = " and ".join(each.earlier.name for each in self._all)
            problem = f"{self._definition.name} cannot start with the state of {names}: {error}"
            raise ConfigError(problem, _FROM_THE_BEGINNING) from error
        return {each: tables for each, tables in zip(self._all, found, strict=True) if tables}


def _merged(positions: Sequence[Position]) -> Position:
    """Returns the position after states of one commit: in each topic, that of one that reads it."""
    floor = min(each.floor for each in positions)
    topics = {topic: at for each in positions for topic, at in each.topics.items()}
    return replace(min(positions, key=lambda each: each.log), floor=floor, topics=topics)


def _listed(known: Mapping[tuple[int, ...], object]) -> str:
    return ", ".join(format_position(at[-1]) for at in known) or "none"


class EarlierRevision:
    """One of these states. It is at the address that revisions have in the settings.

    That of a pipeline of another name is where the pipeline has registered it.
    """

    def __init__(
        self, earlier: PipelineDefinition, definition: PipelineDefinition, settings: RunSettings
    ) -> None:
        address = revision_checkpoint(settings.checkpoint, earlier.revision)
        if earlier.base_name != definition.base_name:
            address = _registered_address(settings, earlier.name)
        self.checkpoint = Checkpoint(address, settings.spark_conf)
        self.earlier = earlier
        self._definition = definition
        self._timeline = settings.timeline
        self._kafka = settings.servers.kafka

    @property
    def place(self) -> str:
        """The name of the earlier revision and the place of its state, for messages."""
        return f"{self.earlier.name} in {self.checkpoint.store.address}"

    def check_state(self) -> None:
        """Refuses a checkpoint that has no state, or that of other stages."""
        fingerprint = self.fingerprint()
        try:
            found = find_state(self.checkpoint.store)
        except StateError as error:
            raise self._unusable(str(error)) from error
        if found.fingerprint != fingerprint:
            raise self._unusable("it belongs to other stages than that revision has")

    def positions(self) -> dict[tuple[int, ...], Mapping[str, Any]]:
        """Returns the positions of the states that are kept, newest first, by their commits."""
        try:
            kept = [each.position for _, each, _ in kept_manifests(self.checkpoint.store)]
        except StateError as error:
            raise self._unusable(str(error)) from error
        return {(*(at := self.position(each)).lsns, at.lsn): each for each in kept}

    def copy(
        self,
        target: StateStore,
        tables: Sequence[TableCopy],
        fingerprint: str,
        copied: set[str],
        at: Mapping[str, Any] | None,
        is_wanted: Callable[[], bool],
    ) -> CopiedState | None:
        """Copies the state, at a position or the newest one; None if nobody wants it any more."""
        store, stages = self.checkpoint.store, {each.origin.stage for each in tables}
        try:
            return copy_state(
                store, target, stages, fingerprint=fingerprint, at=at, copied=copied, is_wanted=is_wanted
            )
        except StateError as error:
            raise self._unusable(str(error)) from error

    def check_added(self, tables: Iterable[TableCopy], end: Position, is_wanted: Callable[[], bool]) -> None:
        """Refuses added columns that the earlier revision does not keep, if some row has another value.

        Reads the topics of these tables up to the position. A record without the column proves that it did
        not exist, so no earlier record matters.
        """
        for copy in tables:
            table, added = copy.origin.plan.table.full_name, copy.added
            unproven: dict[int, set[str]] = {}
            if not added:
                continue
            topic = self._definition.source_topics.data(table)
            for span, values in read_beginnings(self._kafka, [topic], REQUEST_TIMEOUT, up_to=end.read_to):
                if not is_wanted():
                    return
                is_cut_off = span.from_offset > 0 and span.to_offset > 0
                of_partition = unproven.setdefault(span.partition, set(added) if is_cut_off else set())
                for value in values:
                    _note_values(value, added, of_partition)
            if found := sorted(set().union(*unproven.values())):
                columns = ", ".join(found)
                raise self._unfit(
                    f"table {table}: column {columns} is not kept, and rows may have values in it"
                )

    def check_fits(self) -> None:
        """Refuses pipelines that read different things, whatever the state has."""
        earlier, definition = self.earlier, self._definition
        if earlier.revision == definition.revision:
            raise ConfigError(
                f"{earlier.name!r} and {definition.name!r} are both revision {definition.revision}",
                "raise `revision` in pipeline.toml of the pipeline that is to start with the other's state",
            )
        if Scope.AGGREGATE in (earlier.scope, definition.scope):
            raise self._unfit('with scope "aggregate" the rows are not as of one commit')
        if earlier.source != definition.source:
            raise self._unfit(f"it reads source {earlier.source}, but this one reads {definition.source}")
        now, then = (each.source_topics for each in (definition, earlier))
        for table in {*definition.tables} & {*earlier.tables}:
            if now.data(table) != then.data(table):
                raise self._unfit(
                    f"the topic of table {table} was {then.data(table)}, and is {now.data(table)}"
                )

    def fingerprint(self) -> str:
        """Returns the fingerprint of the earlier revision's state, after checking that it belongs to it."""
        identity = self.checkpoint.identity()
        if identity is None:
            raise self._unusable("the checkpoint has no state")
        earlier = replace(self.earlier, buckets=identity.buckets)
        changes = self.checkpoint.changes(pipeline_fingerprint(earlier, self._timeline))
        if changes:
            raise self._unusable(f"it does not fit the given folder: {listed_changes(changes)}")
        return state_fingerprint(earlier.plan, stage_settings(earlier))

    def position(self, data: Mapping[str, Any] | None) -> Position:
        """Returns a position in the topics that the pipeline is to read."""
        definition = self._definition
        position = Position.from_json(
            data or {}, source=definition.source, timeline=self._timeline, scope=definition.scope
        )
        wanted = definition.input_topics
        kept = {topic: each for topic, each in position.topics.items() if topic in wanted}
        return replace(position, topics=kept)

    def _unfit(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self._definition.name} cannot start with the state of {self.earlier.name}: {problem}",
            _FROM_THE_BEGINNING,
        )

    def _unusable(self, problem: str) -> StateError:
        return StateError(
            f"the state of {self.place} cannot be copied: {problem}",
            "name the folder of that revision as it runs, and the same --checkpoint; or "
            f"{_FROM_THE_BEGINNING}",
        )


def _registered_address(settings: RunSettings, pipeline: str) -> str:
    """Returns where a pipeline has registered that it keeps its state."""
    with closing(PipelineLog(settings.servers.kafka)) as log:
        runs = [run.registration for run in known_runs(log.read())]
    found = [run.checkpoint for run in runs if run.pipeline == pipeline]
    if not found:
        problem = f"the state of {pipeline} cannot be copied: no run of it has registered where it is"
        raise StateError(problem, f"start it; or {_FROM_THE_BEGINNING}")
    return found[-1]


def _note_values(record: bytes, added: Mapping[str, Column], unproven: set[str]) -> None:
    """Adds the columns in which a record has another value than rows had before; removes those it lacks."""
    try:
        row = msgspec.json.decode(decode_full_row(record).after, type=dict[str, msgspec.Raw] | None)
    except UndecodableRecordError:
        unproven.update(added)
        return
    if row is None:
        return
    for name, column in added.items():
        if name not in row:
            unproven.discard(name)
        elif msgspec.json.decode(row[name]) != column.absent:
            unproven.add(name)
