"""Processes one batch of one bucket: decodes its events, brings the index up to date, evaluates, logs.

Each batch reads and changes the state once, and may be repeated at any point.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Final, TypeVar

from slackwater_engine.errors import EngineUnavailableError
from slackwater_engine.evaluate.evaluators import Evaluators
from slackwater_engine.index.contract import BucketIndex, Contents, IndexTransaction
from slackwater_engine.index.together import BucketRoute, TogetherContents
from slackwater_engine.owners import KeyOwners, Owners, check_aggregate
from slackwater_engine.pack.specification import packing_spec
from slackwater_engine.payloads import Event, Outcome, PackedPayload, decode_events
from slackwater_engine.settings import Scope, StageSettings
from slackwater_engine.stages import GroupElsewhereError, StagesEvaluation
from slackwater_engine.state.entry import Change
from slackwater_engine.state.log import BucketLog, LogWrite, log_write
from slackwater_sql.plan import EnginePlan, StagePlan, fingerprint

MAX_REPLAYED_BLOBS: Final = 256
"""The most blobs that are added to an index that is behind; more are faster loaded anew."""

MAX_TOGETHER_BYTES: Final = 256 << 10
"""The size of packed events up to which buckets are evaluated together: beyond it a statement's own cost is
small beside that of its rows."""

T = TypeVar("T")
_stage_key = itemgetter(2)
"""Empty in a TRUNCATE."""


class BucketProcessor:
    """Processes the batches of a stage's buckets; for one thread."""

    def __init__(
        self, plan: EnginePlan, stage: StagePlan, settings: StageSettings, evaluators: Evaluators
    ) -> None:
        """Prepares a stage.

        Args:
            plan: The pipeline's.
            stage: One of its stages that keeps its own rows; those whose rows it keeps run with it.
            settings: How the stages run. Scope `aggregate` needs all rows of a key from one partition.
            evaluators: Make the evaluators of rows parts.

        Raises:
            EngineConfigError: The scope is `aggregate`, and the pipeline is more than one stage of rows.
        """
        self._stage = stage.number
        self._buckets = settings.buckets
        self._owners: KeyOwners | None = None
        if settings.scope is Scope.AGGREGATE:
            check_aggregate(plan)
            self._owners = KeyOwners(packing_spec(plan, settings.buckets))
        self._evaluation = StagesEvaluation(plan, stage, settings, evaluators)

    def process(
        self, payloads: Iterable[tuple[int, bytes]], log: BucketLog, index: BucketIndex
    ) -> tuple[Outcome, LogWrite | None]:
        """Processes the payloads ``(sequence, payload)`` of a bucket in a batch.

        The index is changed before the state is true. Should the batch be lost, the next attempt finds a
        token that the log does not have and rebuilds the index: a batch may be repeated at any point.

        Args:
            payloads: In any order.
            log: The bucket's before the batch.
            index: The bucket's, whatever it holds.

        Returns:
            What the payloads lead to, and how the log changes; None: not at all.

        Raises:
            EngineError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
        """
        decoded = _decoded(log.bucket, payloads)
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
    ) -> tuple[list[PackedPayload], list[LogWrite]]:
        """Processes buckets as :meth:`process` does, several small ones in one evaluation.

        Args:
            payloads: All that the batch has, by bucket.
            find_log: Returns the log of a bucket before the batch.
            find_index: Returns the index of a bucket, whatever it holds.

        Returns:
            What leaves the buckets, and how their logs change.

        Raises:
            EngineError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
        """
        size = sum(len(payload) for packed in payloads.values() for _, payload in packed)
        if len(payloads) > 1 and size <= MAX_TOGETHER_BYTES and self._may_be_together:
            decoded = {bucket: _decoded(bucket, packed) for bucket, packed in payloads.items()}
            done = self._process_together(decoded, find_log, find_index)
            if done is not None:
                return done
        rows: list[PackedPayload] = []
        writes = []
        for bucket in sorted(payloads):
            outcome, write = self.process(payloads[bucket], find_log(bucket), find_index(bucket))
            rows += outcome.payloads(self._stage, bucket)
            if write is not None:
                writes.append(write)
        return rows, writes

    @property
    def _may_be_together(self) -> bool:
        """The bucket of every entry follows from its key."""
        return self._owners is None and self._evaluation.may_be_together

    def _process_together(
        self,
        decoded: Mapping[int, list[tuple[int, list[Event]]]],
        find_log: Callable[[int], BucketLog],
        find_index: Callable[[int], BucketIndex],
    ) -> tuple[list[PackedPayload], list[LogWrite]] | None:
        """Evaluates the events of several buckets as if they were of one; None if that is not possible.

        The evaluation reads snapshots with the contents that the logs say. So what it finds holds whatever
        other processes do with the indexes before the changes are made.
        """
        events = events_in_commit_order(chain.from_iterable(decoded.values()))
        if not all(map(_stage_key, events)):  # a TRUNCATE is told to each bucket
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


def _decoded(bucket: int, payloads: Iterable[tuple[int, bytes]]) -> list[tuple[int, list[Event]]]:
    return [(sequence, decode_events(bucket, payload)) for sequence, payload in payloads]


def _keep(
    log: BucketLog, changes: list[Change], growths: list[int], contents: IndexTransaction
) -> LogWrite | None:
    """Makes the changes of a batch in an index that has what the log says, and returns those of the log."""
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
    """Returns what differs when state of other stages, or kept in another way, must not be gone on with.

    The state of `latest` says which documents were published last, that of `transactions` does not.
    """
    emitted = "each commit" if settings.every_commit else "each batch"
    return f"{fingerprint(plan.stages)} {settings.buckets} {settings.scope} {emitted}"


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


def update_current(log: BucketLog, index: BucketIndex, work: Callable[[IndexTransaction], T]) -> T:
    """Runs `work` once the index has the contents of the log, whatever it had before, and commits.

    An index that is behind gets the blobs that it lacks; one without a token of the log is made anew.

    Args:
        log: The bucket's.
        index: The bucket's.
        work: May be run several times, as :meth:`BucketIndex.update` says.

    Raises:
        EngineStateError: A blob is damaged or missing.
        EngineUnavailableError: The index cannot be written, or the store does not answer.
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
    """Tells whether an index can be read and has what the log says."""
    try:
        with index.snapshot() as contents:
            return contents.token == log.head.token
    except EngineUnavailableError:
        return False


def _replay(log: BucketLog, place: int, index: BucketIndex) -> None:
    """Adds the blobs that an index lacks, unless another process changes it meanwhile."""
    for before, blob in zip(log.head.blobs[place - 1 :], log.head.blobs[place:], strict=False):
        changes = log.blob(blob)
        index.update(partial(_add_blob, before.token, changes, blob.token))


def _add_blob(before: bytes, changes: list[Change], token: bytes, contents: IndexTransaction) -> None:
    if contents.token == before:
        contents.apply(changes)
        contents.set_token(token)


def _rebuild(log: BucketLog, contents: IndexTransaction) -> None:
    """Fills an index of a bucket without state, or one that another process took over while it was loaded."""
    contents.clear()
    if (token := log.head.token) is None:
        return
    for changes in log.changes():
        contents.apply(changes)
    contents.set_token(token)
