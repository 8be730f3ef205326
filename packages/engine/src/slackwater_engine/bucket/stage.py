"""A stage as a bucket runs it: its rows part, then its accumulators."""

from collections.abc import Sequence

from slackwater_engine.accumulate.groups import AccumulateLogic
from slackwater_engine.bucket.bucket import BucketStage
from slackwater_engine.bucket.owners import KeyOwners, Owners
from slackwater_engine.evaluate.calls import PartEvaluator
from slackwater_engine.evaluate.evaluators import Evaluators, check_aggregate, stage_name
from slackwater_engine.evaluate.latest import LatestLogic
from slackwater_engine.evaluate.lone_rows import LoneRowsLogic, has_lone_rows
from slackwater_engine.evaluate.results import route_of
from slackwater_engine.evaluate.rows import RowsLogic
from slackwater_engine.evaluate.touched import OWN_LSN
from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event
from slackwater_engine.scope import Scope
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater_sql.plan import EnginePlan, Reads, RowsPart, StagePlan, fingerprint


class StageLogic:
    """Applies events to the contents of buckets of a stage; for one thread.

    Pure: the same events and contents give the same outcome.
    """

    def __init__(
        self,
        stage: StagePlan,
        rows: PartEvaluator | None,
        accumulators: AccumulateLogic | None,
        *,
        buckets: int,
        every_commit: bool,
        owners: KeyOwners | None = None,
    ) -> None:
        """The logic of a stage.

        Args:
            stage: The stage.
            rows: Evaluates its rows part, if it has one.
            accumulators: Its accumulate part, if it has one.
            buckets: Buckets of every stage of the pipeline.
            every_commit: Results after each commit that changes them (`transactions`), not only after the
                batch (`latest`).
            owners: For scope `aggregate`, in which each key is at its own LSN.
        """
        self._buckets = buckets
        self._every_commit = every_commit
        self._owners = owners
        self._rows = None if rows is None else _rows_logic(stage, rows, every_commit=every_commit)
        self._accumulators = accumulators
        self._route = None if stage.accumulate is None else route_of(stage.accumulate.output, stage.number)

    @property
    def keeps_digests(self) -> bool:
        """The state knows which documents were published last, so that only `latest` can go on with it."""
        return isinstance(self._rows, LatestLogic)

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, owners: Owners | None = None
    ) -> Outcome:
        """The outcome of these events, sorted by commit LSN; reads `contents`, changes nothing.

        Raises:
            EngineInputError: an event needs a row that the contents do not have.
            EngineInputError: a key's rows come from another partition than before.
            EngineStateError: more is taken from a group than was ever added.
            EvaluationError: SQL fails on the rows of a key.
        """
        outcome = Outcome(self._buckets)
        if self._owners is not None and owners is not None:
            self._owners.check(owners, contents)
        if events:
            self._change_rows(events, contents, outcome, events[-1][0] if owners is None else OWN_LSN)
        if self._owners is not None and owners is not None:
            self._owners.conclude(owners, contents, outcome)
        self._change_groups(events, contents, outcome)
        return outcome

    def _change_rows(
        self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome, lsn: int
    ) -> None:
        if self._rows is not None:
            self._rows(events, contents, outcome, None if self._every_commit else lsn)
        else:
            for at, number, key, _, rest, _ in events:
                outcome.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))

    def _change_groups(self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome) -> None:
        """Adds the partials of this bucket to its groups; hands on what that changes."""
        if self._accumulators is None or self._route is None:
            return
        if self._rows is not None:
            touches = [event for event in events if event[1] == TOUCH_INPUT]
            outcome.partials += [(event[0], TOUCH_INPUT, EMPTY_KEY, b"") for event in touches]
        if not outcome.partials:
            return
        for points, rows in self._accumulators(outcome.partials, contents, outcome):
            self._route(points, rows, outcome)


def _rows_logic(
    stage: StagePlan, evaluator: PartEvaluator, *, every_commit: bool
) -> RowsLogic | LoneRowsLogic | LatestLogic | None:
    rows = stage.rows
    if rows is None:
        return None
    if not every_commit and _is_read_whole(rows):
        return LatestLogic(stage, rows, evaluator)
    return (LoneRowsLogic if has_lone_rows(rows) else RowsLogic)(stage, rows, evaluator)


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
) -> BucketStage:
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
        EngineConfigError: the scope is `aggregate`, and the pipeline is more than one stage of rows.
    """
    owners = None
    if scope is Scope.AGGREGATE:
        check_aggregate(plan)
        owners = KeyOwners(packing_spec(plan, buckets))
    name = stage_name(plan, stage)
    logic = StageLogic(
        stage,
        None if stage.rows is None else evaluators.rows(plan, stage, limits),
        None
        if stage.accumulate is None
        else AccumulateLogic(stage.accumulate, name=name, every_commit=every_commit, limits=limits),
        buckets=buckets,
        every_commit=every_commit,
        owners=owners,
    )
    view = fingerprint([stage])
    return BucketStage(logic, f"{view} with digests" if logic.keeps_digests else view, owners)
