"""Working on an index whose contents are those of the log, whatever it had before."""

from collections.abc import Callable
from typing import TypeVar

from slackwater_engine.index.contract import BucketIndex, IndexTransaction
from slackwater_engine.state.log import LogMeta, StateLog

T = TypeVar("T")


def update_current(
    bucket: int,
    meta: LogMeta | None,
    log: StateLog,
    index: BucketIndex,
    work: Callable[[IndexTransaction], T],
) -> T:
    """Runs `work` once the index has the contents of the log, and commits.

    Args:
        bucket: The bucket.
        meta: Of its log; None if it has no state.
        log: Its log.
        index: Its index.
        work: May be run several times, as :meth:`BucketIndex.update` says.

    Raises:
        EngineStateError: a blob is damaged or missing.
        EngineUnavailableError: the index cannot be written.
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
        return result  # type: ignore[return-value]  # it is what `work` gave
    if meta is not None:
        index.load(log.changes(bucket, meta), meta.token)
    return index.update(in_any_case)


def _rebuild(bucket: int, meta: LogMeta | None, log: StateLog, contents: IndexTransaction) -> None:
    """For a bucket without state, and when another process took the index over since it was loaded."""
    contents.clear()
    if meta is None:
        return
    for changes in log.changes(bucket, meta):
        contents.apply(changes)
    contents.set_token(meta.token)
