"""One bucket, one batch: decode, bring the index up to date, apply, log."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Protocol

from slackwater_engine.bucket.owners import KeyOwners, Owners
from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.outcome import Outcome
from slackwater_engine.payloads import Event, decode_events
from slackwater_engine.state.compaction import log_write
from slackwater_engine.state.log import LogMeta, LogWrite, StateLog, changes_bytes
from slackwater_engine.state.rebuild import update_current

_TOKEN_BYTES: Final = 16


_stage_key = itemgetter(2)
"""Empty in a TRUNCATE."""


class ApplyEvents(Protocol):
    """A bucket's logic as its caller sees it."""

    def __call__(
        self, events: Sequence[Event], contents: IndexTransaction, owners: Owners | None = None
    ) -> Outcome:
        """The outcome of these events, sorted by commit LSN; reads `contents`, changes nothing.

        With `owners` (scope `aggregate`) the keys of a bucket are at different LSNs: each document then has
        the LSN of its own newest change.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Work:
    outcome: Outcome
    write: LogWrite | None
    """None if nothing changed."""


class BucketStage:
    """Processes batches of buckets; for one thread.

    Attributes:
        view: What its states are written by.
    """

    def __init__(self, apply: ApplyEvents, view: str, owners: KeyOwners | None = None) -> None:
        """A stage.

        Args:
            apply: What events do.
            view: Fingerprint of the view; state of another view is refused.
            owners: For scope `aggregate`, where all rows of a key come from one partition.
        """
        self._apply = apply
        self.view = view
        self._owners = owners

    def process(
        self, bucket: int, payloads: Iterable[tuple[int, bytes]], log: StateLog, index: BucketIndex
    ) -> Outcome:
        """Takes a batch's payloads ``(sequence, payload)`` of one bucket; gives what is to be handed on.

        The index is committed before the state. Should the state not follow, the next batch finds a token it
        does not know and rebuilds the index: a batch may be repeated at any point.

        Raises:
            EngineError: see its tree.
            EvaluationError: the view's SQL fails on the rows of a key.
        """
        decoded = [(sequence, decode_events(bucket, payload)) for sequence, payload in payloads]
        owners = None if self._owners is None else self._owners.of_batch(decoded)
        events = events_in_commit_order(decoded)
        before = log.meta(bucket, self.view)
        work = update_current(
            bucket, before, log, index, lambda c: self._work(bucket, (events, owners), before, log, c)
        )
        if work.write is not None:
            log.write(work.write)
        return work.outcome

    def _work(
        self,
        bucket: int,
        batch: tuple[Sequence[Event], Owners | None],
        before: LogMeta | None,
        log: StateLog,
        contents: IndexTransaction,
    ) -> _Work:
        events, owners = batch
        outcome = self._apply(events, contents, owners)
        if not outcome.changes:
            return _Work(outcome, None)
        contents.apply(outcome.changes)
        meta = self._meta_after(before, outcome)
        contents.set_token(meta.token)
        return _Work(outcome, log_write(bucket, outcome.changes, meta, log, contents))

    def _meta_after(self, before: LogMeta | None, outcome: Outcome) -> LogMeta:
        return LogMeta(
            view=self.view,
            token=secrets.token_bytes(_TOKEN_BYTES),
            log_bytes=(0 if before is None else before.log_bytes) + changes_bytes(outcome.changes),
            live_bytes=(0 if before is None else before.live_bytes) + outcome.live_bytes,
            blobs=range(0) if before is None else before.blobs,
        )


def events_in_commit_order(payloads: Iterable[tuple[int, Sequence[Event]]]) -> list[Event]:
    """The events of all payloads by commit LSN; those of one commit in the order in which they were read.

    With a TRUNCATE among them, those of one commit in the order of the database's log: rows of several
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
    """By commit, and within a commit as the database made the changes."""
    return event[0], -event[5]
