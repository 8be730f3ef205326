"""Keeps a log short without a pause.

A small bucket's log is written anew. Of a large one each batch takes the oldest blobs, adds what of them is
still live to its own changes and drops them: as much as it adds itself and a bit more, so the work of a batch
stays in proportion to its changes.

What is live is decided by the index: a change of the oldest blobs is live if the index has its value. Should
a later blob have the same value for it, it is added once more than needed, which changes nothing. A removal
in the oldest blob has nothing older to remove.
"""

from dataclasses import replace
from typing import Final

from slackwater_engine.index.contract import IndexTransaction
from slackwater_engine.state.entry import Change
from slackwater_engine.state.log import LogMeta, LogWrite, StateLog, changes_bytes

SMALL_BYTES: Final = 1 << 20
"""Live contents up to which a log is written anew as a whole."""

MIN_STEP_BYTES: Final = 1 << 20
"""The least of old blobs that a batch may read, so that a few changes make headway, too."""

MAX_STEP_BLOBS: Final = 64
"""The most old blobs that a batch drops, each of which costs two round trips."""


def log_write(
    bucket: int, changes: list[Change], meta: LogMeta, log: StateLog, contents: IndexTransaction
) -> LogWrite:
    """Decides on the blobs that the log gets and drops for the changes of a batch; only reads.

    Args:
        bucket: The bucket, for errors.
        changes: The batch's.
        meta: The log's after the batch, if nothing is dropped.
        log: The log before the batch.
        contents: The entries after the batch.

    Raises:
        EngineStateError: A blob is damaged or missing.
    """
    if not meta.is_worth_compacting:
        return LogWrite(changes, meta)
    if meta.live_bytes <= SMALL_BYTES:
        live: list[Change] = list(contents.entries())
        size = changes_bytes(live)
        return LogWrite(live, replace(meta, log_bytes=size, live_bytes=size), len(meta.blobs))
    return _without_oldest(bucket, changes, meta, log, contents)


def _without_oldest(
    bucket: int, changes: list[Change], meta: LogMeta, log: StateLog, contents: IndexTransaction
) -> LogWrite:
    budget = MIN_STEP_BYTES + 2 * changes_bytes(changes)
    added = list(changes)
    left, blobs = meta, meta.blobs
    while budget > 0 and left.is_worth_compacting and len(blobs) - len(left.blobs) < MAX_STEP_BLOBS:
        if not left.blobs:
            break
        old = log.blob(bucket, left.blobs.start)
        live = _live(old, contents)
        added += live
        size = changes_bytes(old)
        budget -= size
        left = replace(left, log_bytes=left.log_bytes - size + changes_bytes(live), blobs=left.blobs[1:])
    return LogWrite(added, replace(left, blobs=blobs), len(blobs) - len(left.blobs))


def _live(old: list[Change], contents: IndexTransaction) -> list[Change]:
    last = {name: value for name, value in old if value is not None}
    now = contents.get_many(last)
    return [(name, value) for name, value in last.items() if now.get(name) == value]
