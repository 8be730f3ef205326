"""Processes one batch of one bucket: decodes its events, brings the index up to date, evaluates, logs."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, TypeVar

from slackwater_engine.bucket.owners import KeyOwners, Owners, check_aggregate
from slackwater_engine.evaluate.evaluators import Evaluators
from slackwater_engine.evaluate.stage import StageEvaluation
from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import Event, decode_events
from slackwater_engine.settings import Scope, StageSettings
from slackwater_engine.state.compaction import log_write
from slackwater_engine.state.log import LogMeta, LogWrite, StateLog, changes_bytes
from slackwater_sql.plan import EnginePlan, StagePlan, fingerprint

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
        self._evaluation = StageEvaluation(plan, stage, settings, evaluators)
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
