"""Start: from the start of the command to the first visible document."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient

from slackwater.protocol.keys import commit_topic
from slackwater_bench.bed import ORDERS_PIPELINE, SOURCE, Bed, output_of
from slackwater_bench.scenario import Measured, Parameters, RunContext
from slackwater_bench.traffic import SteadyOrders, TransactionAppender
from slackwater_bench.usage import cpu_between, cpu_use
from slackwater_lab.errors import RunFailedError
from slackwater_lab.watching import CommitWatcher
from slackwater_lab.workloads.workload import copy_pipeline

ORDERS = 100
ARCHIVE_SECONDS = 180.0
CUT_SECONDS = 60.0
START_SECONDS = 120.0
ASK_SECONDS = 10.0
LOADING = "loading"
"""The phase before the command says its first step."""
_STEP = re.compile(r"(?P<pipeline>[\w.-]+): (?!batch \d)(?P<step>[^,]+)")
_ADDRESS = re.compile(r" at \S+")


@dataclass(frozen=True, slots=True)
class Started:
    """What a start took."""

    seconds: float
    """Until the first commit record is visible."""
    phases: Mapping[str, float]
    """Seconds by what the run said that it does; the first is :data:`LOADING`."""
    cpu: Mapping[str, float]


@dataclass(slots=True)
class StepWatch:
    """Notes when a run says its steps."""

    pipeline: str
    steps: list[tuple[str, float]] = field(default_factory=list)
    """What it said, in order and without addresses, and when it was seen."""

    def look(self, output: str, at: float) -> None:
        """Takes what the run has said until now; called with more of the same output each time."""
        said = list(self._steps_of(output))
        self.steps += [(step, at) for step in said[len(self.steps) :]]

    def phases(self, began: float, ended: float) -> dict[str, float]:
        """The seconds from each step to the next; those of steps that were said several times added up."""
        moments = [(LOADING, began), *self.steps]
        ends = [*(at for _, at in self.steps), ended]
        found: dict[str, float] = {}
        for (name, since), until in zip(moments, ends, strict=True):
            found[name] = found.get(name, 0.0) + until - since
        return found

    def _steps_of(self, output: str) -> Iterator[str]:
        complete = output[: output.rfind("\n") + 1]
        for line in complete.splitlines():
            found = _STEP.match(line)
            if found and found["pipeline"] == self.pipeline:
                yield _ADDRESS.sub("", found["step"])


def run_start(parameters: Parameters, context: RunContext) -> Measured:
    """One run: a pipeline that has never run, and the same one once more, several times."""
    orders, clock = SteadyOrders(ORDERS), context.clock
    first: list[Started] = []
    again: list[Started] = []
    with Bed(context) as bed:
        if parameters.get("archive") == "none":
            (bed.folder / "slackwater.toml").write_text("[run]\nclass_archive = false\n")
        else:
            _make_archive(bed, context)
        appender = TransactionAppender(bed.bootstrap, SOURCE, 4)
        last = appender.append_all(map(orders.changes_of, range(ORDERS)), clock)
        bed.start_sidecar()
        for number in range(int(parameters["starts"])):
            pipeline = with_own_names(ORDERS_PIPELINE, bed.folder / "pipelines", number)
            for starts in (first, again):
                bed.wait_for_cut(last, CUT_SECONDS)
                starts.append(_start(pipeline, last, bed, context))
                context.say(f"{pipeline.name}: {starts[-1].seconds:.1f} s")
                last = appender.append_all([orders.changes_of(ORDERS + number)], clock)
    return start_measured(first, again)


def _make_archive(bed: Bed, context: RunContext) -> None:
    """Makes the archive of Spark's classes; it stays in the user's cache folder.

    Raises:
        RunFailedError: it could not be made.
    """
    context.say("making the archive of Spark's classes, unless it is there")
    program = bed.start("archive", context.environment.command("archive-classes"))
    if program.wait(ARCHIVE_SECONDS) != 0:
        raise RunFailedError("slackwater archive-classes", program.last_words())
    bed.stop("archive")


def _start(pipeline: Path, lsn: int, bed: Bed, context: RunContext) -> Started:
    """Starts a pipeline, waits until a commit is visible, and stops it."""
    clock, output, log = context.clock, output_of(pipeline), bed.folder / "pipeline.log"
    watch, before = StepWatch(pipeline.name), len(log.read_text()) if log.exists() else 0
    used, began = cpu_use(bed.roles()), clock.monotonic()
    program = bed.start_pipeline(pipeline, "--checkpoint", str(bed.folder / "checkpoints" / pipeline.name))

    def look() -> None:
        bed.check()
        watch.look(program.output()[before:], clock.monotonic())

    _wait_for_topic(commit_topic(output), bed, look)
    with closing(CommitWatcher(bed.bootstrap, output, clock, look)) as watcher:
        visible = watcher.until(lsn, START_SECONDS).at
    cpu = cpu_between(used, cpu_use(bed.roles()))
    bed.stop("pipeline")
    return Started(visible - began, watch.phases(began, visible), cpu)


def _wait_for_topic(topic: str, bed: Bed, look: Callable[[], None]) -> None:
    """Waits until a topic exists: a consumer that was there before notices it half a second late.

    Raises:
        RunFailedError: it is not made in time.
    """
    admin = AdminClient({"bootstrap.servers": bed.bootstrap, "log_level": 0})

    def exists() -> bool:
        look()
        return topic in admin.list_topics(timeout=ASK_SECONDS).topics

    if not bed.wait_until(exists, START_SECONDS):
        raise RunFailedError("the pipeline", f"made no topic {topic} within {START_SECONDS:g} s")


def with_own_names(pipeline: Path, folder: Path, number: int) -> Path:
    """A copy of a pipeline with one output, below `folder`, whose name and topic are of this number only."""
    name = f"{pipeline.name}-{number}"

    def edit(text: str) -> str:
        text = re.sub(r'(?m)^name = "[^"]*"', f'name = "{name}"', text)
        return re.sub(r'(?m)^topic = "([^"]*)"', rf'topic = "\g<1>_{number}"', text)

    return copy_pipeline(pipeline, folder / name, edit)


def start_measured(first: Sequence[Started], again: Sequence[Started]) -> Measured:
    """Medians over the starts."""
    return Measured(
        round(median(start.seconds for start in first), 2),
        {
            "again_seconds": round(median(start.seconds for start in again), 2),
            "all_seconds": [round(start.seconds, 2) for start in first],
            "all_again_seconds": [round(start.seconds, 2) for start in again],
            "phase_seconds": _medians([start.phases for start in first]),
            "again_phase_seconds": _medians([start.phases for start in again]),
            "cpu_seconds": _medians([start.cpu for start in first]),
            "again_cpu_seconds": _medians([start.cpu for start in again]),
        },
    )


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each name; a name that is missing counts as nothing there."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: round(median(each.get(name, 0.0) for each in found), 2) for name in names}
