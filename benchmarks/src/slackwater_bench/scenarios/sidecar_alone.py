"""The sidecar on full topics, with no pipeline beside it."""

from slackwater_bench.backlog.steady_load import SteadyLoad
from slackwater_bench.backlog.steady_orders import SteadyOrders
from slackwater_bench.errors import RunFailedError
from slackwater_bench.runs.bed import SOURCE, Bed
from slackwater_bench.runs.processes import cpu_seconds
from slackwater_bench.scenario import Direction, Measured, Parameters, RunContext, Scenario
from slackwater_markers import KafkaCutLog
from slackwater_protocol import PublishedCut

DEADLINE_SECONDS = 300.0


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    with Bed(context) as bed:
        events = int(parameters["events"])
        load = SteadyLoad(bed.bootstrap, SteadyOrders(10_000), rows=4, events=events, clock=context.clock)
        context.say("writing topics")
        load.prepare()
        last_lsn = load.backlog()[1]
        started = context.clock.monotonic()
        bed.start_sidecar()
        newest = _wait_for_cut(bed, last_lsn, context)
        seconds = context.clock.monotonic() - started
        cpu = cpu_seconds({"sidecar": bed.roles()["sidecar"]})["sidecar"]
    return Measured(
        round(newest.cut.event_count / cpu),
        {
            "events": newest.cut.event_count,
            "seconds": round(seconds, 2),
            "cpu_seconds": cpu,
            "events_per_second": round(newest.cut.event_count / seconds),
            "cuts": newest.log_offset + 1,
        },
    )


def _wait_for_cut(bed: Bed, lsn: int, context: RunContext) -> PublishedCut:
    log = KafkaCutLog(SOURCE, bed.bootstrap)
    deadline = context.clock.monotonic() + DEADLINE_SECONDS
    position = -1
    try:
        while context.clock.monotonic() < deadline:
            bed.check()
            for cut in log.tail(position):
                position = cut.log_offset
                if cut.cut.lsn >= lsn:
                    return cut
    finally:
        log.close()
    raise RunFailedError("the sidecar", f"published no cut at {lsn} within {DEADLINE_SECONDS:g} s")


SIDECAR_ALONE = Scenario(
    name="sidecar-alone",
    version=1,
    unit="change events per CPU second",
    direction=Direction.HIGHER,
    measures="Change events that the sidecar takes up from full topics (4 partitions, transactions of four"
    " rows) per second of its CPU time, its start included.",
    why="The sidecar is one process: this is the most that one source can have per core.",
    points=({"events": 2_000_000},),
    quick_points=({"events": 300_000},),
    run=run,
    columns=("events_per_second", "cpu_seconds", "cuts"),
)
