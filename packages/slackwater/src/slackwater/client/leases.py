"""Leases: views of several pipelines that stay readable at one commit for as long as a reader needs them.

A reader writes what it needs to the topic of leases, and each pipeline answers once it holds that state. A
read does not rely on these answers: with or without a lease, it checks that the state is complete.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from slackwater.client.errors import StateNotKeptError
from slackwater.client.snapshot import PipelineOutput, newest_common, repeated, views_by_output
from slackwater.control import LeaseStanding, LeaseState, is_over, lease_standings
from slackwater.cuts import LeaseLog, TopicUnavailableError
from slackwater.protocol import (
    Clock,
    ConfigError,
    Hold,
    KafkaSettings,
    Lease,
    SystemClock,
    UnavailableError,
    epoch_ms,
)

_MARGIN_MS = 60_000
"""When a lease is taken, those that expired this long ago are removed, to allow for different clocks."""


@contextmanager
def open_leases(kafka: KafkaSettings) -> Iterator[LeaseLog]:
    """Opens the topic of leases of a cluster for the duration of the block.

    Raises:
        UnavailableError: An operation in the block failed because Kafka rejected it or did not answer.
    """
    log = LeaseLog(kafka)
    try:
        yield log
    except TopicUnavailableError as error:
        raise UnavailableError(error.problem, error.hint) from error
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
    """Takes a lease on the newest commit at which the pipelines can be read, and waits until they hold it.

    Until the lease expires or is ended, the views can be read at its commit any number of times, by everybody
    who knows the commit, with ``read_views(..., at=lease)``. The outputs are one per pipeline, all of the
    same source; without ``views``, all views of them must be readable. Pipelines refuse a duration above
    their ``run.longest_lease``. ``holder`` says who needs the lease and why, for the people who see it in a
    list. ``timeout`` is how long to wait for a common commit, and then for the pipelines' answers.

    Raises:
        StateNotKeptError: There is no common commit, or a pipeline refuses or does not answer; the error says
            which one and why. No lease is left behind.
        NotVisibleError: Nothing is visible yet in one of the outputs.
        ConfigError: A view is unknown, or the outputs have different sources.
        UnavailableError: A server does not answer.
    """
    clock = clock or SystemClock()
    wanted = views_by_output(outputs, views)
    common = repeated(partial(newest_common, wanted), timeout, clock, (StateNotKeptError,))
    position = common.position
    now = clock.now()
    lease = Lease(
        id=uuid.uuid4().hex[:12],
        source=common.source,
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
        repeated(partial(_held_or_error, log, lease, timeout), timeout, clock)
        for each, names in wanted.items():
            states = each.states(names)
            if states is None or states.at_or_below(position) != position:
                raise StateNotKeptError(
                    f"pipeline {each.pipeline!r} holds commit {position}, but parts of that state had "
                    "already been removed from its output",
                    "take the lease again, at a newer commit; if this repeats, raise `kafka.keep`, or `keep` "
                    "of a lake, to at least a minute",
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
    """Changes the end of a lease, to ``duration`` from now. Returns the changed lease.

    Raises:
        ConfigError: There is no such lease, or it has expired.
        StateNotKeptError: A pipeline refuses the new end, or does not answer; the lease is unchanged.
    """
    clock = clock or SystemClock()
    now = clock.now()
    lease = find_lease(log, lease_id, epoch_ms(now)).lease
    renewed = replace(lease, expires_ms=epoch_ms(now + duration))
    log.write(renewed)
    try:
        repeated(partial(_held_or_error, log, renewed, timeout), timeout, clock)
    except StateNotKeptError:
        log.write(lease)
        raise
    return renewed


def end_lease(log: LeaseLog, lease_id: str) -> bool:
    """Ends a lease without asking its readers. Returns whether there was such a lease."""
    records = log.read()
    found = [each for each in records if isinstance(each, Lease) and each.id == lease_id]
    log.remove([*found, *(each for each in records if isinstance(each, Hold) and each.lease == lease_id)])
    return bool(found)


def find_lease(log: LeaseLog, lease_id: str, now_ms: int) -> LeaseStanding:
    """Returns a lease that has not expired, with the answers of its pipelines.

    Raises:
        ConfigError: There is no lease with this id.
    """
    known = lease_standings(log.read(), now_ms)
    for lease in known:
        if lease.lease.id == lease_id and lease.state is not LeaseState.OVER:
            return lease
    ids = ", ".join(each.lease.id for each in known if each.state is not LeaseState.OVER)
    raise ConfigError(
        f"there is no lease {lease_id!r}: it has expired, was ended, or never existed",
        f"current leases: {ids}"
        if ids
        else "there are no leases; `slackwater read --level repeatable` takes one",
    )


def _held_or_error(log: LeaseLog, lease: Lease, timeout: timedelta) -> bool | StateNotKeptError:
    """Returns True if all pipelines hold a lease, and otherwise the error to raise unless that changes."""
    standings = [each for each in lease_standings(log.read(), lease.taken_ms) if each.lease.id == lease.id]
    if not standings:
        raise StateNotKeptError(f"lease {lease.id} was ended by another process", "take a new one")
    answered = standings[0]
    if answered.state is LeaseState.REFUSED:
        reasons = "; ".join(f"pipeline {name!r}: {reason}" for name, reason in answered.refusals.items())
        raise StateNotKeptError(
            f"commit {lease.position} cannot be held: {reasons}",
            "read these views at level `committed`, or leave out the views that cannot be held",
        )
    if answered.state is LeaseState.HELD:
        return True
    return StateNotKeptError(
        f"commit {lease.position} is not held: {', '.join(map(repr, answered.waits_for))} did not answer "
        f"within {timeout.total_seconds():g} s",
        "check that the pipelines are running (`slackwater topology`), because only a running pipeline can "
        "hold a state; one that is processing a large batch answers afterwards",
    )


def _remove_what_is_over(log: LeaseLog, now_ms: int) -> None:
    """Removes leases that expired long ago, with their answers, because their pipelines may no longer run."""
    records = log.read()
    over = {each.id for each in records if isinstance(each, Lease) and is_over(each, now_ms - _MARGIN_MS)}
    log.remove(each for each in records if (each.id if isinstance(each, Lease) else each.lease) in over)
