"""The table of faults: what is done, why, for how long, and what must be up again afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

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
    seconds: tuple[float, float]
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
_POSTGRES = frozenset({SinkKind.POSTGRES})
_LAKES = frozenset({SinkKind.DELTA, SinkKind.ICEBERG})

_DECISIVE = (SinkStep.PROGRESS, SinkStep.COMMITTED)
"""Just before and just after the commit."""


def _kill(part: str, reason: str, *, stops_pipeline: bool = False) -> Fault:
    return Fault(
        name=f"{part} killed",
        reason=reason,
        how="SIGKILL to the process and its children",
        seconds=_BLOW,
        back=f"{part}, started by the supervisor",
        begin=lambda it: it.kill(part),
        stops_pipeline=stops_pipeline,
    )


def _pause(part: str, reason: str, longest: float) -> Fault:
    return Fault(
        name=f"{part} paused",
        reason=reason,
        how="SIGSTOP, later SIGCONT, to the process and its children",
        seconds=(2.0, longest),
        back=f"{part}, with its old connections",
        begin=lambda it: it.pause(part),
        end=lambda it: it.resume(part),
    )


def _both(disturb: Callable[[Disturber, str], None], disturber: Disturber) -> None:
    for part in ("sidecar-1", "sidecar-2"):
        disturb(disturber, part)


def _sink(step: SinkStep, reason: str, outputs: frozenset[SinkKind] = frozenset(SinkKind)) -> Fault:
    return Fault(
        name=f"sink killed: {step.replace('_', ' ')}",
        reason=reason,
        how="the driver sends SIGKILL to itself when its sink reaches the step",
        seconds=_BLOW,
        back="pipeline, started by the supervisor with the same checkpoint",
        begin=lambda it: it.kill_sink_at(step),
        stops_pipeline=True,
        is_in_short=step in _DECISIVE,
        outputs=outputs,
    )


def _network(name: str, route: str, reason: str, longest: float) -> Fault:
    return Fault(
        name=f"network paused: {name}",
        reason=reason,
        how="a proxy holds back all bytes; connections stay",
        seconds=(2.0, longest),
        back="the route; nothing was lost",
        begin=lambda it: it.pause_network(route),
        end=lambda it: it.resume_network(route),
    )


def _cut(name: str, route: str, reason: str) -> Fault:
    return Fault(
        name=f"network cut: {name}",
        reason=reason,
        how="a proxy resets all connections; new ones are accepted at once",
        seconds=_BLOW,
        back="the clients, connected again",
        begin=lambda it: it.cut_network(route),
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


_SERVERS = (
    _kill("broker", "a batch whose commit is undecided; rows acknowledged but not yet seen; end offsets"),
    _pause("broker", "requests that time out although they are executed later", 20.0),
    _kill("connect", "rows, BEGIN and END come again, orders may be numbered again"),
    _pause("connect", "a transaction stays half in Kafka for a while", 20.0),
    _kill("postgres", "the connector starts over in the middle of transactions"),
    _pause("postgres", "the connector hangs between two rows of a transaction", 15.0),
    _kill("redis", "it comes back empty: cuts and markers are gone"),
    _pause("redis", "calls to it hang instead of failing", 15.0),
    Fault(
        name="redis flushed",
        reason="a batch that was planned needs cuts that are not there any more",
        how="FLUSHALL",
        seconds=_BLOW,
        back="Redis's content, put back by a sidecar",
        begin=lambda it: it.flush_redis(),
    ),
)

_SIDECARS = (
    _kill("sidecar-1", "the other one must continue, cuts of both must agree"),
    _pause("sidecar-1", "a sidecar that comes back late publishes what is long known", 20.0),
    Fault(
        name="both sidecars killed",
        reason="evidence kept in memory is gone; replays must still be recognised",
        how="SIGKILL to both at once",
        seconds=_BLOW,
        back="both sidecars, started by the supervisor",
        begin=partial(_both, lambda it, part: it.kill(part)),
    ),
    Fault(
        name="both sidecars paused",
        reason="no cuts for a while, then many at once",
        how="SIGSTOP, later SIGCONT, to both",
        seconds=(2.0, 20.0),
        back="both sidecars",
        begin=partial(_both, lambda it, part: it.pause(part)),
        end=partial(_both, lambda it, part: it.resume(part)),
    ),
)

_SPARK = (
    _kill(
        "pipeline", "a batch is planned, or half computed, or its state is half written", stops_pipeline=True
    ),
    _pause("pipeline", "its transaction may outlive the time-out at the broker", 15.0),
    Fault(
        name="python worker killed",
        reason="a bucket's index is ahead of its state when the task is repeated",
        how="SIGKILL to one of the pipeline's Python workers",
        seconds=_BLOW,
        back="the task, repeated by Spark",
        begin=lambda it: it.kill_one("worker"),
    ),
    Fault(
        name="python worker paused",
        reason="one task of a batch is much later than the others",
        how="SIGSTOP, later SIGCONT, to one of the pipeline's Python workers",
        seconds=(2.0, 15.0),
        back="the worker",
        begin=lambda it: it.pause_one("worker"),
        end=lambda it: it.resume_one("worker"),
    ),
    Fault(
        name="python daemon killed",
        reason="all workers of a batch are lost at once, with what they had prepared",
        how="SIGKILL to the process that the pipeline's Python workers are forked from",
        seconds=_BLOW,
        back="the tasks, repeated by Spark in new workers",
        begin=lambda it: it.kill_one("daemon"),
        is_in_short=False,
    ),
    Fault(
        name="executor killed",
        reason="its buckets move to another executor without their index",
        how="SIGKILL to one of two executor JVMs (local-cluster)",
        seconds=_BLOW,
        back="an executor, started by Spark",
        begin=lambda it: it.kill_one("executor"),
        needs_executors=True,
    ),
    Fault(
        name="executor paused",
        reason="a task may be computed twice; both attempts have one index folder or two",
        how="SIGSTOP, later SIGCONT, to one of two executor JVMs (local-cluster)",
        seconds=(2.0, 15.0),
        back="the executor",
        begin=lambda it: it.pause_one("executor"),
        end=lambda it: it.resume_one("executor"),
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
        begin=lambda it: it.fill_disk(),
        end=lambda it: it.free_disk(),
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
        begin=lambda it: it.pause_network("partition"),
        end=lambda it: it.resume_network("partition"),
    ),
    _network("Connect to Kafka", "connect", "rows arrive late and in one burst", 15.0),
    _network("sidecars to Kafka", "sidecar", "a cut is in the log although its writer got no answer", 15.0),
    _network("pipeline to Kafka", "pipeline", "a commit is executed although its answer never came", 15.0),
    _network("clients to Redis", "redis", "calls hang", 15.0),
    _cut("sidecars to Kafka", "sidecar", "an append to the cut log fails after it was executed"),
    _cut("pipeline to Kafka", "pipeline", "a commit is undecided: it must not be tried again blindly"),
    _cut("clients to Redis", "redis", "a connection in use breaks"),
    Fault(
        name="slow network",
        reason="answers cross: what is asked for later is known earlier",
        how="proxies delay every byte by 200 ms between pipeline, sidecars and Kafka",
        seconds=(3.0, 15.0),
        back="the routes",
        begin=lambda it: _delay(it, timedelta(milliseconds=200)),
        end=lambda it: _delay(it, timedelta()),
    ),
)


_OUTPUTS = (
    Fault(
        name="output's server killed",
        reason="a transaction whose commit is undecided",
        how="SIGKILL to the PostgreSQL with the output's tables and its children",
        seconds=_BLOW,
        back="the server, started by the supervisor",
        begin=lambda it: it.kill("output"),
        outputs=_POSTGRES,
    ),
    Fault(
        name="output's server away",
        reason="a run that gives up, or commits twice when the server is back",
        how="SIGKILL to the PostgreSQL with the output's tables, started again later",
        seconds=(30.0, 60.0),
        back="the server",
        begin=lambda it: it.take_away("output"),
        end=lambda it: it.bring_back("output"),
        outputs=_POSTGRES,
    ),
    Fault(
        name="output's server paused",
        reason="a commit whose answer comes when nobody waits for it any more",
        how="SIGSTOP, later SIGCONT, to the PostgreSQL with the output's tables and its children",
        seconds=(20.0, 60.0),
        back="the server, with its old connections",
        begin=lambda it: it.pause("output"),
        end=lambda it: it.resume("output"),
        outputs=_POSTGRES,
    ),
    Fault(
        name="lake's disk full",
        reason="half a file, or a commit of which half is written",
        how="the disk with the lake's tables has no byte left, later it has",
        seconds=(20.0, 60.0),
        back="room on the disk",
        begin=lambda it: it.fill_lake(),
        end=lambda it: it.free_lake(),
        outputs=_LAKES,
    ),
)


def _kill_consumers(number: int, which: str) -> Fault:
    return Fault(
        name=f"{which} consumers killed",
        reason="a transaction whose effect is there and whose position is not",
        how=f"SIGKILL to member {number} of each group that has this many",
        seconds=_BLOW,
        back="the members, started by the supervisor",
        begin=lambda it: it.kill_consumers(number),
        outputs=_KAFKA,
        needs_consumers=True,
    )


def _pause_consumers(number: int, which: str) -> Fault:
    return Fault(
        name=f"{which} consumers paused",
        reason="they come back with a transaction that another member has had meanwhile",
        how=f"SIGSTOP, later SIGCONT, to member {number} of each group, for longer than its session",
        seconds=(SESSION_SECONDS + 2, SESSION_SECONDS + 8),
        back="the members, or new ones in their place",
        begin=lambda it: it.pause_consumers(number),
        end=lambda it: it.resume_consumers(number),
        outputs=_KAFKA,
        needs_consumers=True,
    )


_CONSUMERS = (
    _kill_consumers(1, "first"),
    _kill_consumers(2, "second"),
    Fault(
        name="consumer killed: applied",
        reason="the effect is there and the position is not",
        how="a member sends SIGKILL to itself when it has done the work and not stored the position",
        seconds=_BLOW,
        back="the member, started by the supervisor",
        begin=lambda it: it.kill_consumer_at(APPLIED),
        outputs=_KAFKA,
        needs_consumers=True,
    ),
    _pause_consumers(1, "first"),
    _pause_consumers(2, "second"),
    replace(
        _network("consumers to Kafka", "consumers", "all members are thrown out at once", 15.0),
        seconds=(SESSION_SECONDS + 2, SESSION_SECONDS + 8),
        outputs=_KAFKA,
        needs_consumers=True,
    ),
    replace(
        _cut("consumers to Kafka", "consumers", "a commit of positions whose answer never came"),
        outputs=_KAFKA,
        needs_consumers=True,
    ),
)


def _delay(disturber: Disturber, duration: timedelta) -> None:
    for route in ("sidecar", "pipeline"):
        disturber.delay_network(route, duration)


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
