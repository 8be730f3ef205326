"""A new timeline, with a real broker and a real Redis: decided once, obeyed by every sidecar."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest

from slackwater.cuts import FrontierState, FrontierStatus
from slackwater.dev import KafkaBroker, RedisServer
from slackwater.protocol import Cut, KafkaSettings, RedisSettings, Servers, TimelineDecision
from slackwater_lab.fakes.sources import SyntheticSource
from slackwater_sidecar import SidecarSettings, run_sidecar

pytestmark = pytest.mark.integration

Wait = Callable[[Callable[[], object]], None]


@pytest.fixture
def source(kafka_broker: KafkaBroker, redis_server: RedisServer) -> Iterator[SyntheticSource]:
    result = SyntheticSource(kafka_broker.bootstrap, redis_server.url)
    result.create_all()
    yield result
    result.close()


@contextmanager
def a_sidecar(source: SyntheticSource, name: str) -> Iterator[None]:
    stop = threading.Event()
    settings = SidecarSettings(
        source=source.name,
        servers=Servers(KafkaSettings(source.bootstrap), RedisSettings(source.redis_url)),
        status_interval=timedelta(milliseconds=100),
        sidecar_id=name,
        complete_tables=frozenset(source.tables),
    )
    thread = threading.Thread(target=run_sidecar, args=(settings, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(300)


def status_of(source: SyntheticSource) -> FrontierStatus:
    status = source.store.status(source.name)
    return status or FrontierStatus(state=FrontierState.WAITING, wall_ms=0, sidecar="")


def is_published(source: SyntheticSource, timeline: int) -> bool:
    held = source.store.position(source.name)
    return held is not None and (held.position.timeline, held.position.lsn) == (timeline, source.newest_lsn)


def cuts_of(source: SyntheticSource, timeline: int) -> list[Cut]:
    return [cut for cut in source.logged() if cut.timeline == timeline]


@pytest.mark.full
def test_a_timeline_begins_at_one_place_for_all_sidecars_and_goes_on_after_a_restart(
    source: SyntheticSource, wait_until: Wait
) -> None:
    with ExitStack() as both:
        for name in ("one", "other"):
            both.enter_context(a_sidecar(source, name))
        source.commit(1, 100)
        wait_until(lambda: is_published(source, 1))

        source.start_lsns_over(next_xid=100)
        source.commit(100, 150)
        wait_until(lambda: status_of(source).state is FrontierState.REGRESSED)
        regression = status_of(source).regression
        assert regression is not None
        decision = TimelineDecision(
            source=source.name,
            timeline=2,
            transaction_offset=regression.transaction_offset,
            wall_ms=1,
            decided_by="ann",
        )
        source.log.append_records([decision])
        wait_until(lambda: is_published(source, 2))
        wait_until(lambda: status_of(source).timeline == 2)
        source.commit(150, 160)
        wait_until(lambda: is_published(source, 2))
    with a_sidecar(source, "a late one"):
        source.commit(160, 170)
        wait_until(lambda: is_published(source, 2))

    assert source.oracle.complaints(cuts_of(source, 2)) == []
    assert cuts_of(source, 1)[-1].lsn == 9_903
