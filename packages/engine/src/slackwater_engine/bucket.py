"""Processes one batch of one bucket: decodes its events, brings the index up to date, evaluates, logs.

Each batch reads, changes and logs the state once, and may be repeated at any point.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, TypeVar

from slackwater_engine.accumulate.groups import AccumulateEvaluation
from slackwater_engine.evaluate.evaluators import Evaluators, PartEvaluator, stage_name
from slackwater_engine.evaluate.every_commit import CommitEvaluation, LoneRowEvaluation, has_lone_rows
from slackwater_engine.evaluate.latest import LatestEvaluation
from slackwater_engine.evaluate.results import route_of
from slackwater_engine.evaluate.touched_keys import OWN_LSN
from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.owners import KeyOwners, Owners, check_aggregate
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event, Outcome, decode_events
from slackwater_engine.settings import Scope, StageSettings
from slackwater_engine.state.log import LogMeta, LogWrite, StateLog, changes_bytes, log_write
from slackwater_sql.plan import EnginePlan, Reads, RowsPart, StagePlan, fingerprint

_TOKEN_BYTES: Final = 16
T = TypeVar("T")
_stage_key = itemgetter(2)
"""Empty in a TRUNCATE."""


class BucketProcessor:
    """Processes the batches of a stage's buckets; for one thread.

    Attributes:
        view: Fingerprint that its states are written with; state of another view is refused.
    """

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares a stage.

        Args:
            plan: The pipeline's.
            stage: One of its stages.
            settings: How the stages run. Scope `aggregate` needs all rows of a key from one partition.
            evaluators: Make the evaluators of rows parts.

        Raises:
            EngineConfigError: The scope is `aggregate`, and the pipeline is more than one stage of rows.
        """
        self._owners: KeyOwners | None = None
        if settings.scope is Scope.AGGREGATE:
            check_aggregate(plan)
            self._owners = KeyOwners(packing_spec(plan, settings.buckets))
        self._evaluation = _StageEvaluation(plan, stage, settings, evaluators)
        view = fingerprint([stage])
        self.view = f"{view} with digests" if self._evaluation.keeps_digests else view

    def process(
        self, bucket: int, payloads: Iterable[tuple[int, bytes]], log: StateLog, index: BucketIndex
    ) -> Outcome:
        """Processes the payloads ``(sequence, payload)`` of a bucket in a batch; returns what they lead to.

        The index is committed before the state. Should the state not follow, the next batch finds a token it
        does not know and rebuilds the index: a batch may be repeated at any point.

        Raises:
            EngineError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
        """
        decoded = [(sequence, decode_events(bucket, payload)) for sequence, payload in payloads]
        owners = None if self._owners is None else self._owners.find(decoded)
        events = events_in_commit_order(decoded)
        before = log.meta(bucket, self.view)

        def work(contents: IndexTransaction) -> tuple[Outcome, LogWrite | None]:
            outcome = self._outcome(events, owners, contents)
            if not outcome.changes:
                return outcome, None
            contents.apply(outcome.changes)
            meta = self._meta_after(before, outcome)
            contents.set_token(meta.token)
            return outcome, log_write(bucket, outcome.changes, meta, log, contents)

        outcome, write = update_current(bucket, before, log, index, work)
        if write is not None:
            log.write(write)
        return outcome

    def _outcome(self, events: Sequence[Event], owners: Owners | None, contents: IndexTransaction) -> Outcome:
        if self._owners is None or owners is None:
            return self._evaluation(events, contents)
        self._owners.check(owners, contents)
        outcome = self._evaluation(events, contents)
        self._owners.conclude(owners, contents, outcome)
        return outcome

    def _meta_after(self, before: LogMeta | None, outcome: Outcome) -> LogMeta:
        return LogMeta(
            view=self.view,
            token=secrets.token_bytes(_TOKEN_BYTES),
            log_bytes=(0 if before is None else before.log_bytes) + changes_bytes(outcome.changes),
            live_bytes=(0 if before is None else before.live_bytes) + outcome.live_bytes,
            blobs=range(0) if before is None else before.blobs,
        )


def events_in_commit_order(payloads: Iterable[tuple[int, Sequence[Event]]]) -> list[Event]:
    """Returns the events of all payloads by commit LSN; those of one commit in the order of reading.

    With a TRUNCATE among them, those of one commit are in the order of the database's log: rows of several
    partitions lie before and behind it.
    """
    events: list[Event] = []
    for _, of_payload in sorted(payloads, key=itemgetter(0)):
        events += of_payload
    if not all(map(_stage_key, events)):
        events.sort(key=_log_order)
    else:
        events.sort(key=itemgetter(0))
    return events


def _log_order(event: Event) -> tuple[int, int]:
    """Orders events by commit, and within a commit as the database made the changes."""
    return event[0], -event[5]


def update_current(
    bucket: int,
    meta: LogMeta | None,
    log: StateLog,
    index: BucketIndex,
    work: Callable[[IndexTransaction], T],
) -> T:
    """Runs `work` once the index has the contents of the log, whatever it had before, and commits.

    Args:
        bucket: The bucket, for errors.
        meta: The log's; None if the bucket has no state.
        log: The bucket's.
        index: The bucket's.
        work: May be run several times, as :meth:`BucketIndex.update` says.

    Raises:
        EngineStateError: A blob is damaged or missing.
        EngineUnavailableError: The index cannot be written.
    """
    token = None if meta is None else meta.token
    is_current = True

    def only_if_current(contents: IndexTransaction) -> T | None:
        nonlocal is_current
        is_current = contents.token == token
        return work(contents) if is_current else None

    def in_any_case(contents: IndexTransaction) -> T:
        if contents.token != token:
            _rebuild(bucket, meta, log, contents)
        return work(contents)

    result = index.update(only_if_current)
    if is_current:
        return result  # type: ignore[return-value]  # `work` has returned it
    if meta is not None:
        index.load(log.changes(bucket, meta), meta.token)
    return index.update(in_any_case)


def _rebuild(bucket: int, meta: LogMeta | None, log: StateLog, contents: IndexTransaction) -> None:
    """Fills an index of a bucket without state, or one that another process took over while it was loaded."""
    contents.clear()
    if meta is None:
        return
    for changes in log.changes(bucket, meta):
        contents.apply(changes)
    contents.set_token(meta.token)


class _StageEvaluation:
    """Evaluates what events do to the contents of a stage's buckets; for one thread.

    Pure: the same events and contents give the same outcome.
    """

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares the evaluation of a stage.

        Args:
            plan: The pipeline's.
            stage: One of its stages.
            settings: How the stages run. In scope `aggregate` each document has the LSN of its newest change.
            evaluators: Make the evaluator of the stage's rows part.
        """
        self._settings = settings
        self._rows: CommitEvaluation | LatestEvaluation | LoneRowEvaluation | None = None
        if stage.rows is not None:
            evaluator = evaluators.rows(plan, stage, settings.limits)
            self._rows = _rows_evaluation(stage, stage.rows, evaluator, every_commit=settings.every_commit)
        self._accumulators: AccumulateEvaluation | None = None
        if stage.accumulate is not None:
            self._route = route_of(stage.accumulate.output, stage.number)
            self._accumulators = AccumulateEvaluation(
                stage.accumulate,
                name=stage_name(plan, stage),
                every_commit=settings.every_commit,
                limits=settings.limits,
            )

    @property
    def keeps_digests(self) -> bool:
        """The state says which documents were published last, so that only `latest` can go on with it."""
        return isinstance(self._rows, LatestEvaluation)

    def __call__(self, events: Sequence[Event], contents: IndexTransaction) -> Outcome:
        """Returns the outcome of events that are sorted by commit LSN; reads `contents`, changes nothing.

        Raises:
            EngineInputError: An event needs a row that the contents do not have.
            EngineStateError: More is taken from a group than was ever added.
            EvaluationError: SQL fails on the rows of a key.
        """
        outcome = Outcome(self._settings.buckets)
        if events:
            self._change_rows(events, contents, outcome)
        self._change_groups(events, contents, outcome)
        return outcome

    def _change_rows(self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome) -> None:
        if self._rows is None:
            for at, number, key, _, rest, _ in events:
                outcome.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))
        elif self._settings.every_commit:
            self._rows(events, contents, outcome, None)
        else:
            is_aligned = self._settings.scope is Scope.STRICT
            self._rows(events, contents, outcome, events[-1][0] if is_aligned else OWN_LSN)

    def _change_groups(self, events: Sequence[Event], contents: IndexTransaction, outcome: Outcome) -> None:
        """Adds the partials of this bucket to its groups and hands on the differences."""
        if self._accumulators is None:
            return
        if self._rows is not None:
            touches = [event for event in events if event[1] == TOUCH_INPUT]
            outcome.partials += [(event[0], TOUCH_INPUT, EMPTY_KEY, b"") for event in touches]
        if not outcome.partials:
            return
        for points, rows in self._accumulators(outcome.partials, contents, outcome):
            self._route(points, rows, outcome)


def _rows_evaluation(
    stage: StagePlan, rows: RowsPart, evaluator: PartEvaluator, *, every_commit: bool
) -> CommitEvaluation | LatestEvaluation | LoneRowEvaluation:
    """Chooses the way of a rows part."""
    if not every_commit and _is_read_whole(rows):
        return LatestEvaluation(stage, rows, evaluator)
    return (LoneRowEvaluation if has_lone_rows(rows) else CommitEvaluation)(stage, rows, evaluator)


def _is_read_whole(rows: RowsPart) -> bool:
    """Returns whether touched keys are read whole anyway, so that the state before need not be evaluated."""
    if rows.latest_statement is None:
        return False
    if all(mode is Reads.GROUP for mode in rows.reads):
        return True
    return all(set(each.table.primary_key) <= set(each.key) for each in rows.inputs)
