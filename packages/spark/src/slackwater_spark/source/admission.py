"""Which cut ends the next batch. Pure."""

from collections.abc import Collection, Iterable, Sequence

from slackwater_protocol import Cut, PublishedCut
from slackwater_spark.source.offset import SourceOffset


def connected(
    after_lsn: int, candidates: Iterable[PublishedCut], *, may_start_anywhere: bool = False
) -> list[PublishedCut]:
    """The candidates that connect to ``after_lsn`` without a hole, ascending.

    Tables may overlap (two sidecars); a cut that adds nothing, or connects to nothing, is left out. The very
    first cut of a source follows LSN 0; the first one of a log need not be that: it may have been made anew.

    Args:
        after_lsn: Exclusive; 0 for the beginning.
        candidates: Cuts of one timeline in any order.
        may_start_anywhere: At the beginning, accept that earlier cuts are gone.
    """
    chain: list[PublishedCut] = []
    covered = after_lsn
    for published in sorted(candidates, key=lambda c: c.cut.lsn):
        if published.cut.lsn <= covered:
            continue
        is_start = covered == 0 and may_start_anywhere
        if published.cut.previous_lsn > covered and not is_start:
            continue
        chain.append(published)
        covered = published.cut.lsn
    return chain


def choose_cut(
    start: SourceOffset, cuts: Sequence[PublishedCut], *, max_events: int | None, target_lsn: int | None
) -> PublishedCut | None:
    """The newest of the ascending cuts within the limit; at least the first one; None when there is none.

    Args:
        start: Where the batch begins.
        cuts: Connected cuts above it.
        max_events: Change events of the source that a batch may hold; None for any number.
        target_lsn: Nothing above this.
    """
    chosen = None
    passed: list[Cut] = []
    for published in cuts:
        if target_lsn is not None and published.cut.lsn > target_lsn:
            break
        if _has_exact_rows(passed, published.cut.late_snapshots):
            break  # in one batch, rows of both would be taken for late ones
        passed.append(published.cut)
        size = published.cut.event_count - start.event_count
        if chosen is not None and max_events is not None and size > max_events:
            break
        chosen = published
    return chosen


def _has_exact_rows(cuts: Sequence[Cut], lsns: Collection[int]) -> bool:
    """Whether cuts hold a snapshot whose rows are true at one of these LSNs."""
    return bool(lsns) and any(
        t.is_snapshot and t.commit_lsn in lsns for cut in cuts for t in cut.transactions
    )
