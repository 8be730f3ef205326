"""The control plane of a large cluster: how fast it answers, and what that costs."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from itertools import cycle
from typing import Final

from slackwater.cuts import CutLog, PipelineLog
from slackwater.protocol import Clock, KafkaSettings, PipelineRegistration, PipelineReport, epoch_ms
from slackwater_bench.bed import SOURCE, Bed
from slackwater_bench.latencies import summary
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.usage import MemoryWatch, cpu_seconds
from slackwater_lab.errors import RunFailedError
from slackwater_lab.fakes.topics import REGISTRATION, make_cut
from slackwater_lab.watching import Background

VIEWS: Final = 5
"""Of each pipeline."""
PATHS: Final = (
    "/",
    "/app.js",
    "/api/v1/topology",
    "/api/v1/delays",
    "/api/v1/pipelines",
    "/api/v1/pipelines/p7",
)
POLL_SECONDS: Final = 1.0
START_SECONDS: Final = 60.0
CONTROL_PLANE_LINE: Final = "control plane: http://"


def run(parameters: Parameters, context: RunContext) -> Measured:
    """One run."""
    sources, pipelines = int(parameters["sources"]), int(parameters["pipelines"])
    people, seconds = int(parameters["people"]), float(parameters["seconds"])
    with Bed(context) as bed, ExitStack() as ending:
        names = [SOURCE, *(f"s{number}" for number in range(1, sources))]
        for name in names:
            _publish_cut(bed.bootstrap, name, context.clock)
        started_ms = epoch_ms(context.clock.now())
        told = [_registration(n, names[n % sources], started_ms) for n in range(pipelines)]
        context.say(f"{pipelines} pipelines of {VIEWS} views over {sources} sources register")
        ending.enter_context(_reporting(bed.bootstrap, told, context.clock))
        sidecar = bed.start_sidecar("--control", "127.0.0.1:0")
        if not bed.wait_until(lambda: CONTROL_PLANE_LINE in sidecar.output(), START_SECONDS):
            raise RunFailedError("the sidecar", f"has no control plane; {sidecar.last_words()}")
        address = sidecar.output().partition(CONTROL_PLANE_LINE)[2].split()[0]
        roots = {"sidecar": sidecar.pid or 0}
        bed.rest(3.0)
        idle = _cpu_percent(bed, roots, seconds / 2)
        visitors = [
            _Visitor(address, path, context.clock) for path, _ in zip(cycle(PATHS), range(people * 3))
        ]
        context.say(f"{people} people look at it for {seconds:g} s")
        with MemoryWatch(dict(roots)) as memory:
            for visitor in visitors:
                visitor.start()
            busy = _cpu_percent(bed, roots, seconds)
            for visitor in visitors:
                visitor.stop()
                visitor.raise_failure()
    times = {path: [ms for v in visitors if v.path == path for ms in v.times_ms] for path in PATHS}
    every = [ms for found in times.values() for ms in found]
    if any(visitor.failures for visitor in visitors) or not every:
        raise RunFailedError("the control plane", f"{sum(v.failures for v in visitors)} requests failed")
    return Measured(
        summary(every)["p99"],
        {
            "answers_ms": summary(every),
            "answers_ms_by_path": {path: summary(found) for path, found in times.items() if found},
            "cpu_percent": busy,
            "cpu_percent_unseen": idle,
            "memory_mib": memory.peaks,
            "views": pipelines * VIEWS,
        },
    )


def _cpu_percent(bed: Bed, roots: dict[str, int], seconds: float) -> dict[str, float]:
    """Returns the use of a core over a while; that of the control plane is called ``sidecar workers``."""
    before = cpu_seconds(roots)
    bed.rest(seconds)
    after = cpu_seconds(roots)
    return {name: round(100 * (after[name] - before.get(name, 0.0)) / seconds, 2) for name in after}


def _publish_cut(bootstrap: str, source: str, clock: Clock) -> None:
    log = CutLog(source, KafkaSettings(bootstrap))
    try:
        log.ensure_topic()
        log.append([make_cut(source, 0x600, epoch_ms(clock.now()))])
    finally:
        log.close()


def _registration(number: int, source: str, started_ms: int) -> PipelineRegistration:
    """Describes a pipeline of two tables, two stages and several views."""
    name = f"p{number}"
    view = replace(REGISTRATION.views[0], format="json", output_source="", tables=tuple(REGISTRATION.tables))
    return replace(
        REGISTRATION,
        pipeline=name,
        base_name=name,
        owner=f"team {number % 20}",
        source=source,
        emit="latest",
        tables={table: f"{source}.{table}" for table in REGISTRATION.tables},
        views=tuple(replace(view, name=f"{name}_v{n}", output=f"{name}_v{n}") for n in range(VIEWS)),
        query_id=name,
        checkpoint=f"/var/lib/slackwater/{name}",
        run=name,
        host=f"host-{number % 30}",
        pid=number,
        started_ms=started_ms,
    )


@contextmanager
def _reporting(bootstrap: str, told: list[PipelineRegistration], clock: Clock) -> Iterator[None]:
    """Registers pipelines; each of them reports once a second during the block."""
    log, stop = PipelineLog(KafkaSettings(bootstrap)), threading.Event()
    log.ensure()
    for each in told:
        log.register(each)

    def report() -> None:
        batch = 0
        while not stop.wait(POLL_SECONDS):
            batch += 1
            now_ms = epoch_ms(clock.now())
            for each in told:
                log.report(
                    PipelineReport(
                        pipeline=each.pipeline,
                        run=each.run,
                        batch_id=batch,
                        timeline=1,
                        commit_lsn=0x600,
                        commit_ts_ms=now_ms - 100,
                        visible_ms=now_ms,
                        parts_us=dict.fromkeys(
                            ("plan", "read", "evaluate", "schedule", "state", "commit"), 1
                        ),
                        events=10,
                        documents=5,
                        run_events=10 * batch,
                        run_documents=5 * batch,
                    )
                )

    reporter = threading.Thread(target=report, name="reports", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        stop.set()
        reporter.join()
        log.close()


class _Visitor(Background):
    """Asks for one path once a second, as the page does; counts from the moment at which it meant to ask."""

    def __init__(self, address: str, path: str, clock: Clock) -> None:
        super().__init__(f"visitor of {path}")
        self.path = path
        self.times_ms: list[float] = []
        self.failures = 0
        self._address = address
        self._clock = clock

    def _work(self) -> None:
        connection = HTTPConnection(self._address, timeout=START_SECONDS)
        due = self._clock.monotonic()
        while not self._stop.wait(max(0.0, due - self._clock.monotonic())):
            connection.request("GET", self.path)
            answer = connection.getresponse()
            answer.read()
            self.failures += answer.status != 200
            self.times_ms.append((self._clock.monotonic() - due) * 1000)
            due += POLL_SECONDS
        connection.close()
