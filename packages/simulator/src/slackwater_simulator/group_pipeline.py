"""A reader in scope ``aggregate``: each group of partitions goes on by its own markers."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from slackwater_cdc.testing import partition_of
from slackwater_protocol.keys import data_topic
from slackwater_simulator.broker import Key
from slackwater_simulator.connector import key_bytes
from slackwater_simulator.database import State
from slackwater_simulator.oracle import Expected, ViolationError
from slackwater_simulator.pipeline import NOT_AT_ALL, Pipeline, Seen
from slackwater_simulator.scenario import SOURCE, Feature
from slackwater_spark.scope import Scope
from slackwater_spark.source.aggregate import AggregatePlanner
from slackwater_spark.source.errors import (
    BadInputError,
    PartitionsChangedError,
    UnlikePartitionsError,
)
from slackwater_spark.source.group_feed import GroupFeed
from slackwater_spark.source.group_offset import GroupOffset
from slackwater_spark.stage.errors import TruncateInGroupsError

if TYPE_CHECKING:
    from slackwater_simulator.world import Era, World


class GroupPipeline(Pipeline):
    """Reads the tables with keys; a document is made of the rows of one key, of all tables.

    Args:
        world: Where it runs.
        era: What it reads.
    """

    def __init__(self, world: "World", era: "Era") -> None:
        tables = [name for name in world.followed_tables if not world.is_keyless(name)]
        super().__init__(world, era, Scope.AGGREGATE, tables)

    @property
    def name(self) -> str:
        """See the base."""
        return "groups"

    @property
    def lsn(self) -> int:
        """What the commit record says."""
        return int(self.planner.offset(self._durable.offset).lsn) if self._durable.offset else 0

    @property
    def shown_lsn(self) -> int:
        """See the base. Where a cut comes after groups ran ahead, the next commit record says so."""
        return min(self._lsns, default=0)

    @property
    def _lsns(self) -> tuple[int, ...]:
        return tuple(self._durable.offset["lsns"]) if self._durable.offset else ()

    def needs(self, key: Key) -> int:
        """See the base."""
        if key[0] not in self._options.topics:
            return NOT_AT_ALL
        positions = self._durable.offset["positions"].get(key[0], ()) if self._durable.offset else ()
        return int(positions[key[1]][0]) if key[1] < len(positions) else 0

    def needs_log(self) -> int:
        """See the base."""
        return int(self._durable.offset["floor"]) if self._durable.offset and self._lsns else 0

    def _connect(self) -> AggregatePlanner:
        key, store, log = self._feed()
        monotonic = self._world.clock.monotonic
        feed = GroupFeed(key, self._options.topics, store=store, log=log, monotonic=monotonic)
        return AggregatePlanner(self._options, feed)

    def _judge(self, rows: list[Seen], start: GroupOffset, end: GroupOffset) -> None:
        """Each group goes from its LSN to its next one."""
        truncates = [row for row in rows if row[2] == "t"]
        if truncates:  # a stage refuses them
            raise TruncateInGroupsError(truncates[0][1], truncates[0][0], -1)
        before = start.lsns or (0,) * len(end.lsns)
        batch = f"batch {before}..{end.lsns}"
        if end.lsn < start.lsn or any(new < old for new, old in zip(end.lsns, before, strict=True)):
            raise ViolationError("scope", f"{batch}: a group goes back")
        commits = [
            (commit, number)
            for commit in self._era.oracle.between(min(before, default=0), max(end.lsns, default=0))
            for number, group in self._groups_of(commit, len(end.lsns)).items()
            if commit.is_listed and before[group] < commit.lsn <= end.lsns[group]
        ]
        problem = self._compare(rows, commits, self._era.oracle.skipped)
        if problem:
            raise ViolationError("G3", f"{batch}: {problem}")
        skipped = self.planner.feed.skipped((start.lsn, end.lsn), start.floor, end.log)
        self._judge_passed(start.lsn, end.lsn, skipped)

    def _judge_passed(self, after_lsn: int, up_to_lsn: int, skipped: Collection[int]) -> None:
        """What the commit record says is passed is whole, or named; and no table was truncated in it."""
        for commit in self._era.oracle.between(after_lsn, up_to_lsn):
            if commit.is_listed and not commit.is_whole and commit.xid not in skipped:
                raise ViolationError("scope", f"{commit.xid} is passed, which lacks rows, unnamed")
            if commit.xid in skipped:
                continue
            if any(c.op == "t" and c.table in self._options.tables for c in commit.changes.values()):
                raise ViolationError("scope", f"all groups pass the TRUNCATE of {commit.xid}")

    def _groups_of(self, commit: Expected, groups: int) -> dict[int, int]:
        """The group of each change of the tables that are read, by number; TRUNCATE is in none."""
        return {
            number: partition_of(key_bytes(change.key), groups)
            for number, change in commit.changes.items()
            if change.table in self._options.tables and change.op != "t"
        }

    def _judge_state(self) -> None:
        """Every document is that of the database after some commit: its group's."""
        for group, lsn in enumerate(self._lsns):
            if not self._is_comparable(lsn):
                continue
            expected = self._of_group(self._era.database.state_at(lsn), group)
            actual = self._of_group(self._durable.state, group)
            if actual != expected:
                raise ViolationError(
                    "scope", f"group {group} at {lsn} is {actual}, the database's {expected}"
                )

    def _is_comparable(self, lsn: int) -> bool:
        """Whether nothing up to an LSN is lost, skipped or truncated."""
        oracle = self._era.oracle
        return all(
            commit.is_whole
            and commit.xid not in oracle.skipped
            and all(change.op != "t" for change in commit.changes.values())
            for commit in oracle.between(0, lsn)
        )

    def _of_group(self, state: State, group: int) -> dict[str, list[tuple[int, int]]]:
        world, groups = self._world, len(self._lsns)
        return {
            table: sorted(
                row
                for row in state[table].elements()
                if partition_of(key_bytes(row[0]), groups) == group and not world.is_dropped(table, row[0])
            )
            for table in self._options.tables
        }

    def _may_refuse(self, error: Exception) -> bool:
        """Topics must be partitioned alike, and stay so; no table may be truncated."""
        world = self._world
        counts = {world.broker.partition_count(data_topic(SOURCE, table)) for table in self._options.tables}
        if isinstance(error, UnlikePartitionsError | PartitionsChangedError):
            return len(counts) > 1 or world.scenario.has(Feature.NEW_PARTITIONS)
        is_truncate = isinstance(error, TruncateInGroupsError | BadInputError)
        return is_truncate and world.scenario.has(Feature.TRUNCATE)
