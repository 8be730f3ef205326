"""The table of faults: what is done, why, for how long, and what must be up again afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from slackwater.outputs.contract import SinkKind, SinkStep
from slackwater_lab.chaos.consumers import APPLIED, SESSION_SECONDS
from slackwater_lab.chaos.disturber import Disturber

Disturb = Callable[[Disturber], None]
"""Begins or ends a fault."""

_BLOW = (0.0, 0.0)
"""Over as soon as it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    reason: str
    """What could break."""
    how: str
    seconds: tuple[float, float] = _BLOW
    """Least and greatest time that it lasts."""
    back: str
    """What must be up again before its end counts."""
    begin: Disturb
    end: Disturb | None = None
    """Ends what lasts; None for a blow, which the supervisor heals."""
    stops_pipeline: bool = False
    """Whether Spark has to start again: some 20 seconds in which other faults cost no time."""
    needs_executors: bool = False
    """Whether it makes sense only with executors apart from the driver."""
    is_in_short: bool = True
    """Whether it is part of every short schedule, which has five minutes for everything."""
    outputs: frozenset[SinkKind] = frozenset(SinkKind)
    """The kinds of outputs to which it can happen."""
    needs_consumers: bool = False
    """Whether it happens to consumers."""


_KAFKA = frozenset({SinkKind.KAFKA})
_OF_POSTGRES: dict[str, Any] = {"target": "output", "outputs": frozenset({SinkKind.POSTGRES})}
_OF_CONSUMERS: dict[str, Any] = {"outputs": _KAFKA, "needs_consumers": True}
_BEYOND_SESSION = (SESSION_SECONDS + 2, SESSION_SECONDS + 8)

_DECISIVE = (SinkStep.PROGRESS, SinkStep.COMMITTED)
"""Just before and just after the commit."""


def _kill(
    name: str,
    reason: str,
    to: str = "the process and its children",
    back: str = "",
    *,
    target: str = "",
    **more: Any,
) -> Fault:
    return Fault(
        name=f"{name} killed",
        reason=reason,
        how=f"SIGKILL to {to}",
        back=back or f"{name}, started by the supervisor",
        begin=lambda it: it.kill(target or name),
        **more,
    )


def _pause(
    name: str,
    reason: str,
    seconds: tuple[float, float] = (2.0, 15.0),
    to: str = "the process and its children",
    back: str = "",
    *,
    target: str = "",
    **more: Any,
) -> Fault:
    return Fault(
        name=f"{name} paused",
        reason=reason,
        how=f"SIGSTOP, later SIGCONT, to {to}",
        seconds=seconds,
        back=back or f"{name}, with its old connections",
        begin=lambda it: it.pause(target or name),
        end=lambda it: it.resume(target or name),
        **more,
    )


def _sink(step: SinkStep, reason: str, outputs: frozenset[SinkKind] = frozenset(SinkKind)) -> Fault:
    return Fault(
        name=f"sink killed: {step.replace('_', ' ')}",
        reason=reason,
        how="the driver sends SIGKILL to itself when its sink reaches the step",
        back="pipeline, started by the supervisor with the same checkpoint",
        begin=lambda it: it.kill_at(step),
        stops_pipeline=True,
        is_in_short=step in _DECISIVE,
        outputs=outputs,
    )


def _network(
    name: str, route: str, reason: str, seconds: tuple[float, float] = (2.0, 15.0), **more: Any
) -> Fault:
    return Fault(
        name=f"network paused: {name}",
        reason=reason,
        how="a proxy holds back all bytes; connections stay",
        seconds=seconds,
        back="the route; nothing was lost",
        begin=lambda it: it.network(lambda proxy: proxy.pause(), route),
        end=lambda it: it.network(lambda proxy: proxy.resume(), route),
        **more,
    )


def _cut(name: str, route: str, reason: str, **more: Any) -> Fault:
    return Fault(
        name=f"network cut: {name}",
        reason=reason,
        how="a proxy resets all connections; new ones are accepted at once",
        back="the clients, connected again",
        begin=lambda it: it.network(lambda proxy: proxy.cut(), route),
        **more,
    )


def _clock(name: str, offset: timedelta) -> Fault:
    return Fault(
        name=f"clock {name}",
        reason="a deadline or an order that goes by the wall clock",
        how=f"{offset.total_seconds() / 3600:+.0f} hours for sidecars and the pipeline's driver, then back",
        seconds=(2.0, 10.0),
        back="right clocks",
        begin=lambda it: it.move_clocks(offset),
        end=lambda it: it.move_clocks(timedelta()),
    )


def _delay(milliseconds: int, disturber: Disturber) -> None:
    later = timedelta(milliseconds=milliseconds)
    disturber.network(lambda proxy: proxy.delay(later), "sidecar", "pipeline")


_SERVERS = (
    _kill("broker", "a batch whose commit is undecided; rows acknowledged but not yet seen; end offsets"),
    _pause("broker", "requests that time out although they are executed later", (2.0, 20.0)),
    _kill("connect", "rows, BEGIN and END come again, orders may be numbered again"),
    _pause("connect", "a transaction stays half in Kafka for a while", (2.0, 20.0)),
    _kill("postgres", "the connector starts over in the middle of transactions"),
    _pause("postgres", "the connector hangs between two rows of a transaction"),
    _kill("redis", "it comes back empty: cuts and markers are gone"),
    _pause("redis", "calls to it hang instead of failing"),
    Fault(
        name="redis flushed",
        reason="a batch that was planned needs cuts that are not there any more",
        how="FLUSHALL",
        back="Redis's content, put back by a sidecar",
        begin=lambda it: it.flush_redis(),
    ),
)

_SIDECARS = (
    _kill("sidecar-1", "the other one must continue, cuts of both must agree"),
    _pause("sidecar-1", "a sidecar that comes back late publishes what is long known", (2.0, 20.0)),
    _kill(
        "both sidecars", "evidence kept in memory is gone; replays must still be recognised", "both at once"
    ),
    _pause("both sidecars", "no cuts for a while, then many at once", (2.0, 20.0), "both", "both sidecars"),
)

_SPARK = (
    _kill(
        "pipeline", "a batch is planned, or half computed, or its state is half written", stops_pipeline=True
    ),
    _pause("pipeline", "its transaction may outlive the time-out at the broker"),
    _kill(
        "python worker",
        "a bucket's index is ahead of its state when the task is repeated",
        "one of the pipeline's Python workers",
        "the task, repeated by Spark",
    ),
    _pause(
        "python worker",
        "one task of a batch is much later than the others",
        to="one of the pipeline's Python workers",
        back="the worker",
    ),
    _kill(
        "python daemon",
        "all workers of a batch are lost at once, with what they had prepared",
        "the process that the pipeline's Python workers are forked from",
        "the tasks, repeated by Spark in new workers",
        is_in_short=False,
    ),
    _kill(
        "executor",
        "its buckets move to another executor without their index",
        "one of two executor JVMs (local-cluster)",
        "an executor, started by Spark",
        needs_executors=True,
    ),
    _pause(
        "executor",
        "a task may be computed twice; both attempts have one index folder or two",
        to="one of two executor JVMs (local-cluster)",
        back="the executor",
        needs_executors=True,
    ),
)

SINK_FAULTS = (
    _sink(SinkStep.COLLECTED, "the state is written, nothing of the output is"),
    _sink(SinkStep.BEGUN, "an open transaction without records"),
    _sink(SinkStep.PRODUCED, "records on their way, an open transaction, or some tables changed"),
    _sink(SinkStep.FLUSHED, "all documents are written, none is committed"),
    _sink(SinkStep.COMMIT_RECORDS, "commit records are in the log, none is committed", _KAFKA),
    _sink(SinkStep.PROGRESS, "everything is written, the commit has not been asked for"),
    _sink(SinkStep.COMMITTED, "all is visible, the run has not noted it: the next continues after it"),
)

_SURROUNDINGS = (
    Fault(
        name="disk full",
        reason="half written state or index",
        how="the pipeline's disk (checkpoint, index, Spark's local files) has no byte left, later it has",
        seconds=(9.0, 20.0),
        back="room on the disk, the pipeline started by the supervisor",
        begin=lambda it: it.disk("pipeline").fill(),
        end=lambda it: it.disk("pipeline").free(),
        stops_pipeline=True,
    ),
    _clock("forward", timedelta(hours=7)),
    _clock("back", timedelta(hours=-7)),
    Fault(
        name="slow partition",
        reason="rows of one partition come seconds after all others of their transaction",
        how="a proxy holds back what Connect writes to the broker that leads one partition of each table",
        seconds=(3.0, 15.0),
        back="the route; the rows arrive late",
        begin=lambda it: it.network(lambda proxy: proxy.pause(), "partition"),
        end=lambda it: it.network(lambda proxy: proxy.resume(), "partition"),
    ),
    _network("Connect to Kafka", "connect", "rows arrive late and in one burst"),
    _network("sidecars to Kafka", "sidecar", "a cut is in the log although its writer got no answer"),
    _network("pipeline to Kafka", "pipeline", "a commit is executed although its answer never came"),
    _network("clients to Redis", "redis", "calls hang"),
    _cut("sidecars to Kafka", "sidecar", "an append to the cut log fails after it was executed"),
    _cut("pipeline to Kafka", "pipeline", "a commit is undecided: it must not be tried again blindly"),
    _cut("clients to Redis", "redis", "a connection in use breaks"),
    Fault(
        name="slow network",
        reason="answers cross: what is asked for later is known earlier",
        how="proxies delay every byte by 200 ms between pipeline, sidecars and Kafka",
        seconds=(3.0, 15.0),
        back="the routes",
        begin=partial(_delay, 200),
        end=partial(_delay, 0),
    ),
)


_OUTPUTS = (
    _kill(
        "output's server",
        "a transaction whose commit is undecided",
        "the PostgreSQL with the output's tables and its children",
        "the server, started by the supervisor",
        **_OF_POSTGRES,
    ),
    Fault(
        name="output's server away",
        reason="a run that gives up, or commits twice when the server is back",
        how="SIGKILL to the PostgreSQL with the output's tables, started again later",
        seconds=(30.0, 60.0),
        back="the server",
        begin=lambda it: it.take_away("output"),
        end=lambda it: it.bring_back("output"),
        outputs=frozenset({SinkKind.POSTGRES}),
    ),
    _pause(
        "output's server",
        "a commit whose answer comes when nobody waits for it any more",
        (20.0, 60.0),
        "the PostgreSQL with the output's tables and its children",
        "the server, with its old connections",
        **_OF_POSTGRES,
    ),
    Fault(
        name="lake's disk full",
        reason="half a file, or a commit of which half is written",
        how="the disk with the lake's tables has no byte left, later it has",
        seconds=(20.0, 60.0),
        back="room on the disk",
        begin=lambda it: it.disk("lake").fill(),
        end=lambda it: it.disk("lake").free(),
        outputs=frozenset({SinkKind.DELTA, SinkKind.ICEBERG}),
    ),
)


def _of_members(number: int, which: str) -> tuple[Fault, Fault]:
    return (
        _kill(
            f"{which} consumers",
            "a transaction whose effect is there and whose position is not",
            f"member {number} of each group that has this many",
            "the members, started by the supervisor",
            **_OF_CONSUMERS,
        ),
        _pause(
            f"{which} consumers",
            "they come back with a transaction that another member has had meanwhile",
            _BEYOND_SESSION,
            f"member {number} of each group, for longer than its session",
            "the members, or new ones in their place",
            **_OF_CONSUMERS,
        ),
    )


_CONSUMERS = (
    *_of_members(1, "first"),
    *_of_members(2, "second"),
    Fault(
        name="consumer killed: applied",
        reason="the effect is there and the position is not",
        how="a member sends SIGKILL to itself when it has done the work and not stored the position",
        back="the member, started by the supervisor",
        begin=lambda it: it.kill_at(APPLIED, "consumer"),
        **_OF_CONSUMERS,
    ),
    _network(
        "consumers to Kafka",
        "consumers",
        "all members are thrown out at once",
        _BEYOND_SESSION,
        **_OF_CONSUMERS,
    ),
    _cut(
        "consumers to Kafka",
        "consumers",
        "a commit of positions whose answer never came",
        **_OF_CONSUMERS,
    ),
)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (*_SERVERS, *_SIDECARS, *_SPARK, *SINK_FAULTS, *_SURROUNDINGS, *_OUTPUTS, *_CONSUMERS)
}
"""All of them, by name, in the order of the result table."""


def faults_of(output: SinkKind, *, has_consumers: bool = False) -> list[Fault]:
    """Lists the faults that can happen to a system with such an output, in the order of the table."""
    return [
        fault
        for fault in FAULTS.values()
        if output in fault.outputs and (has_consumers or not fault.needs_consumers)
    ]
