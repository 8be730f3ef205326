"""A stage as a bucket runs it: its rows part, then its accumulators."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_spark.scope import Scope
from slackwater_spark.stage.bucket import BucketStage
from slackwater_spark.stage.entry import Change
from slackwater_spark.stage.evaluators import (
    Evaluators,
    StageEvaluators,
    check_aggregate,
    stage_evaluators,
)
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.latest_logic import LatestLogic
from slackwater_spark.stage.lone_rows import LoneRowsLogic, has_lone_rows
from slackwater_spark.stage.outbox import Outbox
from slackwater_spark.stage.owner import KeyOwners, Owners
from slackwater_spark.stage.ownership import Ownership
from slackwater_spark.stage.packing import packing_spec
from slackwater_spark.stage.part_changes import PartChanges
from slackwater_spark.stage.results import route_of
from slackwater_spark.stage.rows_logic import RowsLogic
from slackwater_spark.stage.touched import OWN_LSN
from slackwater_spark.stage.wire import EMPTY_KEY, TOUCH_INPUT, Event
from slackwater_sql.fingerprint import fingerprint
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater_sql.stages import EnginePlan, Reads, RowsPart, StagePlan


@dataclass(slots=True)
class StageOutcome:
    """What a batch does to a bucket of a stage."""

    outbox: Outbox
    """What is handed on."""
    changes: list[Change]
    """Of entries; each name at most once."""
    live_bytes: int
    """By how much names and values of the live entries grow."""


class StageLogic:
    """Applies events to the contents of buckets of a stage; for one thread.

    Pure: the same events and contents give the same outcome.
    """

    def __init__(
        self,
        stage: StagePlan,
        evaluators: StageEvaluators,
        *,
        buckets: int,
        every_commit: bool,
        ownership: Ownership | None = None,
    ) -> None:
        """The logic of a stage.

        Args:
            stage: The stage.
            evaluators: Of its parts.
            buckets: Buckets of every stage of the pipeline.
            every_commit: Results after each commit that changes them (`transactions`), not only after the
                batch (`latest`).
            ownership: For scope `aggregate`, in which each key is at its own LSN.
        """
        self._buckets = buckets
        self._every_commit = every_commit
        self._ownership = ownership
        self._rows: RowsLogic | LoneRowsLogic | None = None
        self._latest: LatestLogic | None = None
        self._accumulators = evaluators.accumulators
        self._route = None if stage.accumulate is None else route_of(stage.accumulate.output, stage.number)
        if stage.rows is not None and evaluators.rows is not None:
            if not every_commit and _is_read_whole(stage.rows):
                self._latest = LatestLogic(stage, stage.rows, evaluators.rows)
            elif has_lone_rows(stage.rows):
                self._rows = LoneRowsLogic(stage, stage.rows, evaluators.rows)
            else:
                self._rows = RowsLogic(stage, stage.rows, evaluators.rows)

    @property
    def keeps_digests(self) -> bool:
        """The state knows which documents were published last, so that only `latest` can go on with it."""
        return self._latest is not None

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, owners: Owners | None = None
    ) -> StageOutcome:
        """The outcome of these events, sorted by commit LSN; reads `contents`, changes nothing.

        Raises:
            UnknownRowError: an event needs a row that the contents do not have.
            SplitKeyError: a key's rows come from another partition than before.
            ImpossibleCountError: more is taken from a group than was ever added.
            EvaluationError: SQL fails on the rows of a key.
        """
        outbox = Outbox(self._buckets)
        if self._ownership is not None and owners is not None:
            self._ownership.check(owners, contents)
        changes = self._of_rows(events, contents, outbox, owners)
        if self._ownership is not None and owners is not None:
            self._ownership.conclude(owners, contents, changes)
        self._of_groups(events, contents, outbox, changes)
        return StageOutcome(outbox, changes.changes, changes.live_bytes)

    def _of_rows(
        self, events: Sequence[Event], contents: IndexTransaction, outbox: Outbox, owners: Owners | None
    ) -> PartChanges:
        if not events:
            return PartChanges()
        lsn = events[-1][0] if owners is None else OWN_LSN
        if self._latest is not None:
            return self._latest(events, contents, outbox, lsn)
        if self._rows is not None:
            return self._rows(events, contents, outbox, None if self._every_commit else lsn)
        for at, number, key, _, rest, _ in events:
            outbox.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))
        return PartChanges()

    def _of_groups(
        self, events: Sequence[Event], contents: IndexTransaction, outbox: Outbox, changes: PartChanges
    ) -> None:
        """Adds the partials of this bucket to its groups; hands on what that changes."""
        if self._accumulators is None or self._route is None:
            return
        if self._rows is not None:
            touches = [event for event in events if event[1] == TOUCH_INPUT]
            outbox.partials += [(event[0], TOUCH_INPUT, EMPTY_KEY, b"") for event in touches]
        if not outbox.partials:
            return
        outcome = self._accumulators(outbox.partials, contents)
        for points, rows in outcome.results:
            self._route(points, rows, outbox)
        changes.changes += outcome.changes
        changes.live_bytes += outcome.live_bytes


def _is_read_whole(rows: RowsPart) -> bool:
    """Nothing is lost by reading touched keys whole, so that the state before need not be evaluated."""
    if rows.latest_statement is None:
        return False
    if all(mode is Reads.GROUP for mode in rows.reads):
        return True
    return all(set(each.table.primary_key) <= set(each.key) for each in rows.inputs)


def bucket_stage(
    plan: EnginePlan,
    stage: StagePlan,
    *,
    buckets: int,
    every_commit: bool,
    scope: Scope,
    evaluators: Evaluators,
    limits: StatementLimits = DEFAULT_LIMITS,
) -> BucketStage[StageOutcome]:
    """What runs the buckets of a stage.

    Args:
        plan: Of the pipeline.
        stage: One of its stages.
        buckets: Buckets of every stage.
        every_commit: Results after each commit, not only after the batch.
        scope: `aggregate` needs all rows of a key from one partition.
        evaluators: Of rows parts.
        limits: Of one statement.

    Raises:
        UnsupportedScopeError: the scope is `aggregate`, and the pipeline is more than one stage of rows.
    """
    owners = None
    if scope is Scope.AGGREGATE:
        check_aggregate(plan)
        owners = KeyOwners(packing_spec(plan, buckets))
    of_stage = stage_evaluators(plan, stage, limits, every_commit=every_commit, evaluators=evaluators)
    logic = StageLogic(
        stage,
        of_stage,
        buckets=buckets,
        every_commit=every_commit,
        ownership=None if owners is None else Ownership(owners),
    )
    view = fingerprint([stage])
    return BucketStage(logic, f"{view} with digests" if logic.keeps_digests else view, owners)
