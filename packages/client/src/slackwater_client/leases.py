"""Leases: views of several pipelines that stay readable at one commit for as long as a reader needs them.

A reader writes what it needs into the topic of leases, and each pipeline answers once it keeps that. Reading
trusts nobody: it finds out by itself whether the state is whole, with a lease as without.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from slackwater_client.errors import ClientConfigError, ClientUnavailableError, StateNotKeptError
from slackwater_client.snapshot import PipelineOutput, newest_common, repeated, views_by_output
from slackwater_control import LeaseStanding, LeaseState, is_over, lease_standings
from slackwater_markers import KafkaLeaseLog, LeaseLog, PipelineLogUnavailableError
from slackwater_protocol import (
    Clock,
    CommitPosition,
    Hold,
    KafkaSettings,
    Lease,
    SystemClock,
    epoch_ms,
)

_MARGIN_MS = 60_000
"""Leases that are over for so long are removed by whoever takes the next one; clocks may differ."""


@contextmanager
def open_leases(kafka: KafkaSettings) -> Iterator[LeaseLog]:
    """Opens the topic of leases of a cluster for the time of the block.

    Raises:
        ClientUnavailableError: What is done in the block fails because Kafka refuses or does not answer.
    """
    log = KafkaLeaseLog(kafka)
    try:
        yield log
    except PipelineLogUnavailableError as error:
        raise ClientUnavailableError(error.problem, error.hint) from error
    finally:
        log.close()


def take_lease(
    log: LeaseLog,
    outputs: Sequence[PipelineOutput],
    views: Sequence[str] = (),
    *,
    duration: timedelta,
    holder: str,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> Lease:
    """Takes a lease on the newest commit at which some pipelines can be read; waits until they hold it.

    Until its end, or until somebody ends it, the views can be read at its commit as often as is wanted, by
    anybody who knows the commit: with ``read_views(..., at=lease)``.

    Args:
        log: See :func:`open_leases`.
        outputs: One per pipeline; all of one source.
        views: Those that have to be readable; none: all views of all outputs.
        duration: How long; pipelines refuse what is longer than their ``run.longest_lease``.
        holder: Who needs it and what for, for the people who see it listed.
        timeout: How long a common commit, and then the pipelines' answers, are waited for.
        clock: For the deadlines.

    Raises:
        StateNotKeptError: There is no common commit, or a pipeline refuses or does not answer; it says which
            and why. No lease is left behind.
        NotVisibleError: Nothing is visible yet in one of the outputs.
        ClientConfigError: A view is unknown, or the outputs are of several sources.
        ClientUnavailableError: A server does not answer.
    """
    clock = clock or SystemClock()
    wanted = views_by_output(outputs, views)
    source, position = repeated(partial(_common_or_error, wanted), timeout, clock)
    now = clock.now()
    lease = Lease(
        id=uuid.uuid4().hex[:12],
        source=source,
        timeline=position.timeline,
        commit_lsn=position.lsn,
        pipelines=tuple(sorted(each.pipeline for each in wanted)),
        holder=holder,
        taken_ms=epoch_ms(now),
        expires_ms=epoch_ms(now + duration),
    )
    log.ensure()
    _remove_what_is_over(log, epoch_ms(now))
    log.write(lease)
    try:
        _wait_until_held(log, lease, timeout, clock)
        for each, names in wanted.items():
            states = each.states(names)
            if states is None or states.at_or_below(position) != position:
                raise StateNotKeptError(
                    f"pipeline {each.pipeline!r} holds commit {position} from now on, but its output no "
                    "longer has all of that state",
                    "take the lease again, at a newer commit; if that happens again, its output keeps states "
                    "for less than a minute: `kafka.keep`, and `keep` of a lake",
                )
    except BaseException:
        end_lease(log, lease.id)
        raise
    return lease


def renew_lease(
    log: LeaseLog,
    lease_id: str,
    *,
    duration: timedelta,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> Lease:
    """Lets a lease end later, or sooner: so long from now on. Returns it as it is then.

    Raises:
        ClientConfigError: There is no such lease, or it is over.
        StateNotKeptError: A pipeline refuses the new end, or does not answer; the lease is as it was.
    """
    clock = clock or SystemClock()
    now = clock.now()
    lease = find_lease(log, lease_id, epoch_ms(now)).lease
    renewed = replace(lease, expires_ms=epoch_ms(now + duration))
    log.write(renewed)
    try:
        _wait_until_held(log, renewed, timeout, clock)
    except StateNotKeptError:
        log.write(lease)
        raise
    return renewed


def end_lease(log: LeaseLog, lease_id: str) -> bool:
    """Ends a lease, also one of somebody else; returns whether there was one. Its readers are not asked."""
    records = log.read()
    found = [each for each in records if isinstance(each, Lease) and each.id == lease_id]
    log.remove([*found, *(each for each in records if isinstance(each, Hold) and each.lease == lease_id)])
    return bool(found)


def find_lease(log: LeaseLog, lease_id: str, now_ms: int) -> LeaseStanding:
    """Returns a lease that is not over, with what its pipelines say to it.

    Raises:
        ClientConfigError: There is none of this id.
    """
    known = lease_standings(log.read(), now_ms)
    for standing in known:
        if standing.lease.id == lease_id and standing.state is not LeaseState.OVER:
            return standing
    ids = ", ".join(each.lease.id for each in known if each.state is not LeaseState.OVER)
    raise ClientConfigError(
        f"there is no lease {lease_id!r}: it is over, was ended, or never was",
        f"leases: {ids}" if ids else "there are none; `slackwater read --level repeatable` takes one",
    )


def _common_or_error(
    wanted: dict[PipelineOutput, Sequence[str]],
) -> tuple[str, CommitPosition] | StateNotKeptError:
    try:
        return newest_common(wanted)
    except StateNotKeptError as error:
        return error


def _wait_until_held(log: LeaseLog, lease: Lease, timeout: timedelta, clock: Clock) -> None:
    repeated(partial(_held_or_error, log, lease, timeout), timeout, clock)


def _held_or_error(log: LeaseLog, lease: Lease, timeout: timedelta) -> bool | StateNotKeptError:
    """Returns True if all pipelines hold a lease, else an error to be raised if that does not change.

    Raises:
        StateNotKeptError: One of them refuses it, or it was ended.
    """
    standings = [each for each in lease_standings(log.read(), lease.taken_ms) if each.lease.id == lease.id]
    if not standings:
        raise StateNotKeptError(f"lease {lease.id} was ended by somebody else", "take another one")
    standing = standings[0]
    if standing.state is LeaseState.REFUSED:
        reasons = "; ".join(f"pipeline {name!r}: {reason}" for name, reason in standing.refusals.items())
        raise StateNotKeptError(
            f"commit {lease.position} cannot be held: {reasons}",
            "read these views at level `committed`, or without those that cannot be held",
        )
    if standing.state is LeaseState.HELD:
        return True
    return StateNotKeptError(
        f"commit {lease.position} is not held: no answer from {', '.join(map(repr, standing.waits_for))} "
        f"within {timeout.total_seconds():g} s",
        "only a pipeline that runs holds a state (`slackwater topology` shows which do); one that works off "
        "a large batch answers afterwards",
    )


def _remove_what_is_over(log: LeaseLog, now_ms: int) -> None:
    """Removes leases that ended long ago, with what was said to them: their pipelines may be gone."""
    records = log.read()
    over = {each.id for each in records if isinstance(each, Lease) and is_over(each, now_ms - _MARGIN_MS)}
    log.remove(each for each in records if (each.id if isinstance(each, Lease) else each.lease) in over)
