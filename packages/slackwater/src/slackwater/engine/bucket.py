"""Processes one batch of one bucket: decodes its events, updates the index, evaluates, and writes the log.

Each batch reads and changes the state once, and may be repeated at any point.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from slackwater.engine.evaluate.every_commit import CommitEvaluation, LoneRowEvaluation, has_lone_rows
from slackwater.engine.evaluate.expiring_rows import ExpiringRows
from slackwater.engine.evaluate.groups import AccumulateEvaluation
from slackwater.engine.evaluate.latest import LatestEvaluation
from slackwater.engine.evaluate.points import route_of
from slackwater.engine.evaluate.touched_keys import OWN_LSN
from slackwater.engine.evaluate.withheld import WithheldKeys
from slackwater.engine.index import (
    BucketIndex,
    BucketRoute,
    Contents,
    IndexTransaction,
    TogetherContents,
)
from slackwater.engine.moves import MovedRows
from slackwater.engine.owners import KeyOwners, Owners
from slackwater.engine.packer import packing_spec
from slackwater.engine.payloads import EMPTY_KEY, TOUCH_INPUT, Event, Outcome, PackedPayload, decode_events
from slackwater.engine.settings import Evaluators, PartEvaluator, Scope, StageSettings, stage_name
from slackwater.engine.state.entry import Change, sharer_part
from slackwater.engine.state.log import BucketLog, LogWrite, log_write
from slackwater.protocol import UnavailableError
from slackwater.sql.errors import EvaluationError
from slackwater.sql.plan import (
    AccumulatePart,
    EnginePlan,
    Reads,
    RowsPart,
    StagePlan,
    fingerprint,
    withholding_view,
    withholds,
)

MAX_REPLAYED_BLOBS: Final = 256
"""The maximum number of blobs that are added to an outdated index; if more are missing, rebuilding it is
faster."""

MAX_TOGETHER_BYTES: Final = 256 << 10
"""The size of packed events up to which buckets are evaluated together. Above it, the fixed cost of a
statement is small compared with the cost of its rows."""

T = TypeVar("T")
_stage_key = itemgetter(2)
"""The stage key of an event; empty for a TRUNCATE."""


class Processed(NamedTuple):
    """The results of buckets of a stage."""

    rows: list[PackedPayload]
    """What they send."""
    writes: list[LogWrite]
    """The changes of their logs."""
    withheld: Counter[int]
    """How many more keys are withheld, by the number of the view that shows them."""


class BucketProcessor:
    """Processes the batches of the buckets of a stage. Use it from one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares a stage that keeps its own rows, and the stages whose rows it also keeps."""
        self._stage = stage.number
        self._buckets = settings.buckets
        self._owners: KeyOwners | None = None
        if settings.scope is Scope.AGGREGATE:
            self._owners = KeyOwners(packing_spec(plan, settings.buckets))
        self._moved = MovedRows(stage)
        self._stages = [
            _StageEvaluation(plan, each, settings, evaluators, sharer)
            for sharer, each in enumerate(plan.kept_with(stage.number))
        ]

    def _process(
        self, decoded: Sequence[tuple[int, list[Event]]], log: BucketLog, index: BucketIndex
    ) -> tuple[Outcome, LogWrite | None]:
        """Returns the outcome of the payloads of a bucket, and the change of its log, if it changes.

        The index is changed before the batch is committed. If the batch is lost, the next attempt finds a
        token that is not in the log, and rebuilds the index. A batch may therefore be repeated at any point.
        """
        owners = None if self._owners is None else self._owners.find(decoded)
        events = events_in_commit_order(decoded)

        def work(contents: IndexTransaction) -> tuple[Outcome, LogWrite | None]:
            outcome = self._outcome(events, owners, contents)
            return outcome, _keep(log, outcome.changes, outcome.growths, contents)

        return update_current(log, index, work)

    def process_all(
        self,
        payloads: Mapping[int, Sequence[tuple[int, bytes]]],
        find_log: Callable[[int], BucketLog],
        find_index: Callable[[int], BucketIndex],
        *,
        has_moves: bool = False,
    ) -> "Processed":
        """Processes the payloads ``(sequence, payload)`` of buckets, several small ones together.

        With `has_moves`, rows may lack values
        that they had under other primary keys; all buckets of the batch must then be here. Raises the same
        errors as :meth:`PipelineTask.process`.
        """
        moved: dict[int, list[tuple[int, list[Event]]]] = {}
        if has_moves:
            moved = {bucket: _decoded(bucket, packed) for bucket, packed in payloads.items()}
            self._moved.complete(moved, partial(_stored_before, find_log, find_index))
        size = sum(len(payload) for packed in payloads.values() for _, payload in packed)
        if len(payloads) > 1 and size <= MAX_TOGETHER_BYTES and self._may_be_together:
            decoded = moved or {bucket: _decoded(bucket, packed) for bucket, packed in payloads.items()}
            together = self._process_together(decoded, find_log, find_index)
            if together is not None:
                return together
        done = Processed([], [], Counter())
        for bucket in sorted(payloads):
            decoded_bucket = moved.get(bucket) or _decoded(bucket, payloads[bucket])
            outcome, write = self._process(decoded_bucket, find_log(bucket), find_index(bucket))
            done.rows.extend(outcome.payloads(self._stage, bucket))
            done.withheld.update(outcome.withheld)
            if write is not None:
                done.writes.append(write)
        return done

    @property
    def _may_be_together(self) -> bool:
        """Whether the key of every entry determines its bucket."""
        return self._owners is None and all(stage.may_be_together for stage in self._stages)

    def _process_together(
        self,
        decoded: Mapping[int, list[tuple[int, list[Event]]]],
        find_log: Callable[[int], BucketLog],
        find_index: Callable[[int], BucketIndex],
    ) -> "Processed | None":
        """Evaluates the events of several buckets as if they were one bucket; None if that is not possible.

        The evaluation reads snapshots whose contents match the logs. Its results are therefore correct,
        whatever other processes do with the indexes before the changes are written.
        """
        events = events_in_commit_order(chain.from_iterable(decoded.values()))
        if not all(map(_stage_key, events)):  # each bucket receives a TRUNCATE
            return None
        keys = frozenset(map(_stage_key, events))
        route = BucketRoute(self._buckets, keys)
        logs = {bucket: find_log(bucket) for bucket in sorted(decoded)}
        for bucket, log in logs.items():
            if not _has_contents_of(log, find_index(bucket)):
                update_current(log, find_index(bucket), lambda _: None)
        with ExitStack() as snapshots:
            by_bucket = {bucket: snapshots.enter_context(find_index(bucket).snapshot()) for bucket in logs}
            if any(contents.token != logs[bucket].head.token for bucket, contents in by_bucket.items()):
                return None
            try:
                outcome = self._evaluated(events, TogetherContents(by_bucket, route), keys)
            except GroupElsewhereError:
                return None
        of_buckets: dict[int, tuple[list[Change], list[int]]] = {}
        for change, growth in zip(outcome.changes, outcome.growths, strict=True):
            changes, growths = of_buckets.setdefault(route.bucket(change[0]), ([], []))
            changes.append(change)
            growths.append(growth)
        writes = []
        for bucket in sorted(of_buckets):
            log, (changes, growths) = logs[bucket], of_buckets[bucket]
            write = update_current(log, find_index(bucket), partial(_keep, log, changes, growths))
            if write is not None:
                writes.append(write)
        return Processed(list(outcome.payloads(self._stage, min(logs))), writes, outcome.withheld)

    def _outcome(self, events: Sequence[Event], owners: Owners | None, contents: Contents) -> Outcome:
        if self._owners is None or owners is None:
            return self._evaluated(events, contents)
        self._owners.check(owners, contents)
        outcome = self._evaluated(events, contents)
        self._owners.conclude(owners, contents, outcome)
        return outcome

    def _evaluated(
        self, events: Sequence[Event], contents: Contents, keys: Collection[bytes] | None = None
    ) -> Outcome:
        """Returns the outcome of events that are sorted by commit LSN; reads `contents` and changes nothing.

        Events of several buckets are evaluated together, given their stage `keys`.
        """
        outcome = Outcome(self._buckets)
        for stage in self._stages:
            with outcome.changed_once():
                stage(events, contents, outcome, keys)
        return outcome


def _stored_before(
    find_log: Callable[[int], BucketLog],
    find_index: Callable[[int], BucketIndex],
    bucket: int,
    names: Iterable[bytes],
) -> Mapping[bytes, bytes]:
    """Returns entries of a bucket before the batch, whatever its index contains."""
    return update_current(find_log(bucket), find_index(bucket), lambda contents: contents.get_many(names))


def _decoded(bucket: int, payloads: Iterable[tuple[int, bytes]]) -> list[tuple[int, list[Event]]]:
    return [(sequence, decode_events(bucket, payload)) for sequence, payload in payloads]


def _keep(
    log: BucketLog, changes: list[Change], growths: list[int], contents: IndexTransaction
) -> LogWrite | None:
    """Writes the changes of a batch to an index that matches the log, and returns the changes of the log."""
    if not changes:
        return None
    contents.apply(changes)
    write = log_write(log, changes, sum(growths), contents)
    if write.blobs:
        contents.set_token(write.blobs[-1].token)
    else:
        contents.clear()
    return write


def state_fingerprint(plan: EnginePlan, settings: StageSettings) -> str:
    """Returns a text that differs between states that cannot be used for each other.

    It changes if the stages change, or the way in which their state is kept. The state of `latest` contains
    which documents were published last; that of `transactions` does not.
    """
    emitted = "each commit" if settings.every_commit else "each batch"
    return f"{fingerprint(plan.stages)} {settings.buckets} {settings.scope} {emitted}"


def events_in_commit_order(payloads: Iterable[tuple[int, Sequence[Event]]]) -> list[Event]:
    """Returns the events of all payloads by commit LSN, and within a commit in the order of the log.

    The changes of a row may lie in several partitions, and rows of all partitions precede and follow a
    TRUNCATE. Events of one change are in the order of reading.
    """
    events: list[Event] = []
    for _, of_payload in sorted(payloads, key=itemgetter(0)):
        events += of_payload
    events.sort(key=_distance, reverse=True)
    events.sort(key=itemgetter(0))
    return events


def _distance(event: Event) -> int:
    """Returns the distance of a change from its commit in the database's log."""
    return event[5] >> 1


def update_current(log: BucketLog, index: BucketIndex, work: Callable[[IndexTransaction], T]) -> T:
    """Runs `work` once the index has the contents of the log, whatever it contained before, and commits.

    The missing blobs are added to an index that is behind. An index without a token of the log is rebuilt.
    `work` may be run several times, as :meth:`BucketIndex.update` describes.

    Raises:
        StateError: A blob is damaged or missing.
        UnavailableError: The index cannot be written, or the store does not answer.
    """
    token = log.head.token
    found: bytes | None = None
    is_current = True

    def only_if_current(contents: IndexTransaction) -> T | None:
        nonlocal found, is_current
        found = contents.token
        is_current = found == token
        return work(contents) if is_current else None

    def in_any_case(contents: IndexTransaction) -> T:
        if contents.token != token:
            _rebuild(log, contents)
        return work(contents)

    result = index.update(only_if_current)
    if is_current:
        return result  # type: ignore[return-value]  # `work` has returned it
    place = None if found is None else log.place_of(found)
    if place is not None and len(log.head.blobs) - place <= MAX_REPLAYED_BLOBS:
        _replay(log, place, index)
    elif token is not None:
        index.load(log.changes(), token)
    return index.update(in_any_case)


def _has_contents_of(log: BucketLog, index: BucketIndex) -> bool:
    """Returns whether an index can be read and has the contents of the log."""
    try:
        with index.snapshot() as contents:
            return contents.token == log.head.token
    except UnavailableError:
        return False


def _replay(log: BucketLog, place: int, index: BucketIndex) -> None:
    """Adds the missing blobs to an index, unless another process changes it at the same time."""
    for before, blob in zip(log.head.blobs[place - 1 :], log.head.blobs[place:], strict=False):
        changes = log.blob(blob)
        index.update(partial(_add_blob, before.token, changes, blob.token))


def _add_blob(before: bytes, changes: list[Change], token: bytes, contents: IndexTransaction) -> None:
    if contents.token == before:
        contents.apply(changes)
        contents.set_token(token)


def _rebuild(log: BucketLog, contents: IndexTransaction) -> None:
    """Fills the index of a bucket without state, or one that another process changed during the loading."""
    contents.clear()
    if (token := log.head.token) is None:
        return
    for changes in log.changes():
        contents.apply(changes)
    contents.set_token(token)


class GroupElsewhereError(Exception):
    """A group may be in another bucket than its key indicates, so buckets must be evaluated one by one."""


class _StageEvaluation:
    """Evaluates one stage. Use it from one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators, sharer: int
    ) -> None:
        self._settings = settings
        self._number = stage.number
        withholding = {view.withheld_of for view in plan.views}
        of_views = {view.name for view in plan.views if stage.number in view.stages}
        self._feeds_withholding = bool(withholding & of_views) and not withholds(plan, stage)
        self.may_be_together = not stage.is_timed and (
            stage.rows is None or stage.accumulate is None or stage.accumulate.has_stage_key
        )
        self._expiring: ExpiringRows | None = None
        if stage.rows is not None and stage.is_timed:
            self._expiring = ExpiringRows(stage.rows, every_commit=settings.every_commit)
        self._rows: CommitEvaluation | LatestEvaluation | LoneRowEvaluation | None = None
        if stage.rows is not None:
            evaluator = evaluators.rows(plan, stage, settings.limits)
            withheld = _withheld_keys(plan, stage, stage.rows, sharer)
            self._rows = _rows_evaluation(
                stage, stage.rows, evaluator, sharer, withheld, every_commit=settings.every_commit
            )
        self._accumulators: AccumulateEvaluation | None = None
        if stage.accumulate is not None:
            self._route = route_of(stage.accumulate.output, stage.number)
            self._accumulators = AccumulateEvaluation(
                stage.accumulate,
                name=stage_name(plan, stage),
                every_commit=settings.every_commit,
                limits=settings.limits,
                sharer=sharer,
                withheld=_withheld_keys(plan, stage, stage.accumulate, sharer),
            )

    def __call__(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, keys: Collection[bytes] | None
    ) -> None:
        try:
            self._evaluate(events, contents, outcome, keys)
        except EvaluationError as error:
            if self._feeds_withholding and not error.is_limit:
                raise error.not_withheld(f"others depend on the rows of stage {self._number}") from error
            raise

    def _evaluate(
        self, events: Sequence[Event], contents: Contents, outcome: Outcome, keys: Collection[bytes] | None
    ) -> None:
        if self._expiring is not None:
            events = self._expiring(events, contents, outcome)
        if events:
            self._change_rows(events, contents, outcome)
        if keys is not None and any(group not in keys for _, _, group, _ in outcome.partials):
            raise GroupElsewhereError
        self._change_groups(events, contents, outcome)

    def _change_rows(self, events: Sequence[Event], contents: Contents, outcome: Outcome) -> None:
        if self._rows is None:
            for at, number, key, _, rest, _ in events:
                outcome.partials.append((at, number, key, rest if isinstance(rest, bytes) else b""))
        elif self._settings.every_commit:
            self._rows(events, contents, outcome, None)
        else:
            is_aligned = self._settings.scope is Scope.STRICT
            self._rows(events, contents, outcome, events[-1][0] if is_aligned else OWN_LSN)

    def _change_groups(self, events: Sequence[Event], contents: Contents, outcome: Outcome) -> None:
        """Adds the partials of this bucket to its groups, and emits the differences."""
        if self._accumulators is None:
            return
        if self._rows is not None:
            touches = [event for event in events if event[1] == TOUCH_INPUT]
            outcome.partials += [(event[0], TOUCH_INPUT, EMPTY_KEY, b"") for event in touches]
        if not outcome.partials:
            return
        for points, rows in self._accumulators(outcome.partials, contents, outcome):
            self._route(points, rows, outcome)


def _withheld_keys(
    plan: EnginePlan, stage: StagePlan, part: RowsPart | AccumulatePart, sharer: int
) -> WithheldKeys | None:
    """Returns the withheld keys of a part of a stage; None if it withholds none."""
    view = withholding_view(plan, stage, part.output)
    return None if view < 0 else WithheldKeys(plan, stage, part, view, sharer_part(sharer))


def _rows_evaluation(
    stage: StagePlan,
    rows: RowsPart,
    evaluator: PartEvaluator,
    sharer: int,
    withheld: WithheldKeys | None,
    *,
    every_commit: bool,
) -> CommitEvaluation | LatestEvaluation | LoneRowEvaluation:
    """Chooses how a rows part is evaluated."""
    if not every_commit and _is_read_whole(rows):
        return LatestEvaluation(stage, rows, evaluator, sharer, withheld)
    return (LoneRowEvaluation if has_lone_rows(rows) else CommitEvaluation)(stage, rows, evaluator, withheld)


def _is_read_whole(rows: RowsPart) -> bool:
    """Returns whether touched keys are read completely, so that the state before need not be evaluated."""
    if rows.latest_statement is None:
        return False
    if all(mode is Reads.GROUP for mode in rows.reads):
        return True
    return all(set(each.table.primary_key) <= set(each.key) for each in rows.inputs)
