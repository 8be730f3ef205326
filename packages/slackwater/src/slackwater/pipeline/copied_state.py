"""Begins a revision with the state of an earlier one, instead of at the beginning of the topics.

The rows of the tables in that state are the first batch. Until this batch is visible, the copy consists only
of files that nothing refers to. A run that is killed before that copies again; a run that is started later
continues like any other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from slackwater.cdc import UndecodableRecordError
from slackwater.cdc.envelope import decode_full_row
from slackwater.engine.bucket import state_fingerprint
from slackwater.engine.copied_state import CopyTask, TableCopy, copy_state, copy_tasks, plan_copy
from slackwater.engine.packer import packing_spec
from slackwater.engine.settings import Scope
from slackwater.engine.state.inspection import find_state
from slackwater.engine.state.store import StateStore
from slackwater.outputs.contract import REQUEST_TIMEOUT
from slackwater.pipeline.checkpoint import Checkpoint, listed_changes
from slackwater.pipeline.definition import PipelineDefinition, pipeline_fingerprint, stage_settings
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.source.kafka_reader import read_beginnings
from slackwater.pipeline.source.position import Position
from slackwater.protocol import SNAPSHOT_XID, BatchHeader, ConfigError, StateError
from slackwater.sql.catalog import Column

_FROM_THE_BEGINNING = (
    "start without --copy-state-of: the views are then built from the beginning of the source's topics"
)


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """The first batch of a pipeline that begins with a copied state."""

    header: BatchHeader
    """The header: all rows are those of one snapshot, as of the commit at which the state was copied."""
    tasks: tuple[CopyTask, ...] = field(repr=False)
    end: Position = field(repr=False)
    """The position in the source after the batch, which is that of the copied state."""


class EarlierRevision:
    """The state of an earlier revision, with which a pipeline can begin. Nothing there is changed.

    Methods raise ConfigError if some rows or columns are not kept or the two pipelines read different things,
    StateError if there is no state or it is damaged or belongs to another pipeline, and UnavailableError if
    the store does not answer. The number of buckets of the pipeline that is to begin is known, and both keep
    their state at the address that revisions have in the settings.
    """

    def __init__(
        self, earlier: PipelineDefinition, definition: PipelineDefinition, settings: RunSettings
    ) -> None:
        address = revision_checkpoint(settings.checkpoint, earlier.revision)
        self.checkpoint = Checkpoint(address, settings.spark_conf)
        """Where its state is."""
        self._earlier = earlier
        self._definition = definition
        self._timeline = settings.timeline
        self._kafka = settings.servers.kafka

    @property
    def place(self) -> str:
        """The name of the earlier revision and the place of its state, for messages."""
        return f"{self._earlier.name} in {self.checkpoint.store.address}"

    def check(self) -> Position:
        """Refuses a state that lacks what the pipeline needs; returns its position in the source."""
        tables = self._tables
        fingerprint = self._fingerprint()
        try:
            found = find_state(self.checkpoint.store)
        except StateError as error:
            raise self._unusable(str(error)) from error
        if found.fingerprint != fingerprint:
            raise self._unusable("it belongs to other stages than that revision has")
        end = self._position(found.state.position)
        self._check_added(tables, end, lambda: True)
        return end

    def copy(self, target: StateStore, is_wanted: Callable[[], bool]) -> CopiedBatch | None:
        """Copies the newest state into the store of the pipeline's checkpoint. It may be repeated.

        Returns:
            The batch with which the pipeline begins; None if `is_wanted`, called from time to time, is False.
        """
        tables = self._tables
        stages = {each.origin.stage for each in tables}
        fingerprint = self._fingerprint()
        try:
            state = copy_state(
                self.checkpoint.store, target, stages, fingerprint=fingerprint, is_wanted=is_wanted
            )
        except StateError as error:
            raise self._unusable(str(error)) from error
        if state is None:
            return None
        end = self._position(state.position)
        self._check_added(tables, end, is_wanted)
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
        return CopiedBatch(header, copy_tasks(tables, state, end.lsn), end)

    def _check_added(self, tables: Iterable[TableCopy], end: Position, is_wanted: Callable[[], bool]) -> None:
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

    @cached_property
    def _tables(self) -> tuple[TableCopy, ...]:
        """Where the rows of each input are."""
        earlier, definition = self._earlier, self._definition
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
        for table in definition.tables:
            if now.data(table) != then.data(table):
                raise self._unfit(
                    f"the topic of table {table} was {then.data(table)}, and is {now.data(table)}"
                )
        old, new = (packing_spec(each.plan, each.buckets or 1) for each in (earlier, definition))
        try:
            return plan_copy(old, new)
        except ConfigError as error:
            raise self._unfit(str(error)) from error

    def _fingerprint(self) -> str:
        """Returns the fingerprint of the earlier revision's state, after checking that it belongs to it."""
        identity = self.checkpoint.identity()
        if identity is None:
            raise self._unusable("the checkpoint has no state")
        earlier = replace(self._earlier, buckets=identity.buckets)
        changes = self.checkpoint.changes(pipeline_fingerprint(earlier, self._timeline))
        if changes:
            raise self._unusable(f"it does not fit the given folder: {listed_changes(changes)}")
        return state_fingerprint(earlier.plan, stage_settings(earlier))

    def _position(self, data: Mapping[str, Any] | None) -> Position:
        definition = self._definition
        position = Position.from_json(
            data or {}, source=definition.source, timeline=self._timeline, scope=definition.scope
        )
        wanted = definition.input_topics
        kept = {topic: each for topic, each in position.topics.items() if topic in wanted}
        return replace(position, topics=kept)

    def _unfit(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self._definition.name} cannot start with the state of {self._earlier.name}: {problem}",
            _FROM_THE_BEGINNING,
        )

    def _unusable(self, problem: str) -> StateError:
        return StateError(
            f"the state of {self.place} cannot be copied: {problem}",
            "name the folder of that revision as it runs, and the same --checkpoint; or "
            f"{_FROM_THE_BEGINNING}",
        )


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
