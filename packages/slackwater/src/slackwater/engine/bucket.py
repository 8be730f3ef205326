"""Processes one batch of one bucket: decodes its events, updates the index, evaluates, and writes the log.

Each batch reads and changes the state once, and may be repeated at any point.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final, TypeVar

from slackwater.engine.evaluate.evaluators import Evaluators
from slackwater.engine.index import (
    BucketIndex,
    BucketRoute,
    Contents,
    IndexTransaction,
    TogetherContents,
)
from slackwater.engine.moves import MovedRows
from slackwater.engine.owners import KeyOwners, Owners, check_aggregate
from slackwater.engine.pack.specification import packing_spec
from slackwater.engine.payloads import Event, Outcome, PackedPayload, decode_events
from slackwater.engine.settings import Scope, StageSettings
from slackwater.engine.stages import GroupElsewhereError, StagesEvaluation
from slackwater.engine.state.entry import Change
from slackwater.engine.state.log import BucketLog, LogWrite, log_write
from slackwater.protocol import UnavailableError
from slackwater.sql.plan import EnginePlan, StagePlan, fingerprint

MAX_REPLAYED_BLOBS: Final = 256
"""The maximum number of blobs that are added to an outdated index; if more are missing, rebuilding it is
faster."""

MAX_TOGETHER_BYTES: Final = 256 << 10
"""The size of packed events up to which buckets are evaluated together. Above it, the fixed cost of a
statement is small compared with the cost of its rows."""

T = TypeVar("T")
_stage_key = itemgetter(2)
"""The stage key of an event; empty for a TRUNCATE."""


class BucketProcessor:
    """Processes the batches of the buckets of a stage. Use it from one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares a stage.

        Args:
            plan: The pipeline's plan.
            stage: A stage of the plan that keeps its own rows. The stages whose rows it also keeps run with
                it.
            settings: How the stages run. In scope `aggregate`, all rows of a key must come from one
                partition.
            evaluators: Create the evaluators of rows parts.

        Raises:
            ConfigError: The scope is `aggregate`, and the pipeline is more than one stage of rows.
        """
        self._stage = stage.number
        self._buckets = settings.buckets
        self._owners: KeyOwners | None = None
        if settings.scope is Scope.AGGREGATE:
            check_aggregate(plan)
            self._owners = KeyOwners(packing_spec(plan, settings.buckets))
        self._moved = MovedRows(stage)
        self._evaluation = StagesEvaluation(plan, stage, settings, evaluators)

    def process(
        self, payloads: Iterable[tuple[int, bytes]], log: BucketLog, index: BucketIndex
    ) -> tuple[Outcome, LogWrite | None]:
        """Processes the payloads ``(sequence, payload)`` of a bucket in a batch.

        The index is changed before the batch is committed. If the batch is lost, the next attempt finds a
        token that is not in the log, and rebuilds the index. A batch may therefore be repeated at any point.

        Args:
            payloads: The payloads, in any order.
            log: The bucket's log before the batch.
            index: The bucket's index, with any contents.

        Returns:
            The outcome of the payloads, and the change of the log; None if it does not change.

        Raises:
            SlackwaterError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
        """
        return self._process(_decoded(log.bucket, payloads), log, index)

    def _process(
        self, decoded: Sequence[tuple[int, list[Event]]], log: BucketLog, index: BucketIndex
    ) -> tuple[Outcome, LogWrite | None]:
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
    ) -> tuple[list[PackedPayload], list[LogWrite]]:
        """Processes buckets like :meth:`process`, but evaluates several small ones together.

        Args:
            payloads: All payloads of the batch, by bucket.
            find_log: Returns the log of a bucket before the batch.
            find_index: Returns the index of a bucket, with any contents.
            has_moves: Whether rows may lack values that they had under other primary keys. All buckets of the
                batch must be here.

        Returns:
            What the buckets send, and the changes of their logs.

        Raises:
            SlackwaterError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
            OldRowsNeededError: An event is about one of several rows of a key.
        """
        moved: dict[int, list[tuple[int, list[Event]]]] = {}
        if has_moves:
            moved = {bucket: _decoded(bucket, packed) for bucket, packed in payloads.items()}
            self._moved.complete(moved, partial(_stored_before, find_log, find_index))
        size = sum(len(payload) for packed in payloads.values() for _, payload in packed)
        if len(payloads) > 1 and size <= MAX_TOGETHER_BYTES and self._may_be_together:
            decoded = moved or {bucket: _decoded(bucket, packed) for bucket, packed in payloads.items()}
            done = self._process_together(decoded, find_log, find_index)
            if done is not None:
                return done
        rows: list[PackedPayload] = []
        writes = []
        for bucket in sorted(payloads):
            decoded_bucket = moved.get(bucket) or _decoded(bucket, payloads[bucket])
            outcome, write = self._process(decoded_bucket, find_log(bucket), find_index(bucket))
            rows += outcome.payloads(self._stage, bucket)
            if write is not None:
                writes.append(write)
        return rows, writes

    @property
    def _may_be_together(self) -> bool:
        """Whether the key of every entry determines its bucket."""
        return self._owners is None and self._evaluation.may_be_together

    def _process_together(
        self,
        decoded: Mapping[int, list[tuple[int, list[Event]]]],
        find_log: Callable[[int], BucketLog],
        find_index: Callable[[int], BucketIndex],
    ) -> tuple[list[PackedPayload], list[LogWrite]] | None:
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
                outcome = self._evaluation(events, TogetherContents(by_bucket, route), keys)
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
        return list(outcome.payloads(self._stage, min(logs))), writes

    def _outcome(self, events: Sequence[Event], owners: Owners | None, contents: Contents) -> Outcome:
        if self._owners is None or owners is None:
            return self._evaluation(events, contents)
        self._owners.check(owners, contents)
        outcome = self._evaluation(events, contents)
        self._owners.conclude(owners, contents, outcome)
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

    Args:
        log: The bucket's log.
        index: The bucket's index.
        work: May be run several times, as :meth:`BucketIndex.update` describes.

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
