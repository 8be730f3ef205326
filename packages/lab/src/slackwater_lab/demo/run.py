"""Runs the demo from start to verdict: stack, connector, sidecar, pipeline, consumer, writers, comparison.

Its last screen is what the control plane says of the pipeline and its next revision.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from slackwater.cli.commands.explain import sharing_lines
from slackwater.cli.commands.topology import delay_lines, snapshot_lines
from slackwater.cli.pipelines import read_snapshots, read_topology, topology_lines
from slackwater.client import ComparedView, TopicOutput, compare_views
from slackwater.command.output import Output
from slackwater.control import find_equal_stages, measure_delays
from slackwater.cuts import MarkerStoreUnavailableError, RedisMarkerStore
from slackwater.dev import DevStack, DevStackSettings
from slackwater.dev.processes import Lifetime
from slackwater.pipeline import load_pipeline
from slackwater.protocol import Clock, InputError, KafkaSettings, SlackwaterError, epoch_ms, format_position
from slackwater.protocol.keys import data_topic
from slackwater.settings.model import KafkaSection, Settings
from slackwater_lab.database.statements import create_tables, write_first, write_last
from slackwater_lab.database.writers import Writers
from slackwater_lab.demo.consumer import ConsumerReport
from slackwater_lab.demo.naive import ORDER_LINES, ORDERS, NaiveReader
from slackwater_lab.demo.verdict import DemoReport, count_orders, demo_specification, judge
from slackwater_lab.errors import RunFailedError
from slackwater_lab.programs import Product, Program, slackwater_command
from slackwater_lab.watching import SeenCommit, Visibility, wait_until
from slackwater_lab.workloads.huge import MixedWorkload
from slackwater_lab.workloads.workload import copy_pipeline

SOURCE = "inv"
TABLES = (ORDERS, ORDER_LINES)
FIRST_ORDERS = 300
"""The number of orders before the connector starts."""
START_TIMEOUT = timedelta(seconds=240)
VISIBLE_TIMEOUT = timedelta(seconds=60)
REPORT_SECONDS = 2.0
_CONTROL_PLANE = "control plane: "
"""What precedes its address where the sidecar prints it."""


def write_next_revision(pipeline: Path, folder: Path, topic: str) -> Path:
    """Copies a pipeline's folder and makes it the next revision, which publishes beside the first one.

    The copy must not exist; returns its folder.
    """

    def edit(text: str) -> str:
        head, _, rest = re.sub(r"(?m)^\s*(revision|topic)\s*=.*\n", "", text).partition("[output]\n")
        return f'revision = 2\n{head}[output]\ntopic = "{topic}"\n{rest}'

    return copy_pipeline(pipeline, folder, edit)


def newest_lsn(kafka: KafkaSettings, pipeline: str) -> int:
    """Returns the newest commit in a pipeline's topics; 0: there is none yet, or the topics are not there."""
    with closing(TopicOutput(kafka, pipeline)) as output:
        try:
            newest = output.newest()
        except SlackwaterError:  # nobody has made the topics yet
            return 0
    return 0 if newest is None else newest.position.lsn


def answers(kafka: KafkaSettings, old: tuple[str, str], new: tuple[str, str]) -> Iterator[str]:
    """Yields the lines of the last screen."""
    settings = Settings(kafka=KafkaSection(bootstrap=kafka.bootstrap))
    topology = read_topology(settings)
    yield from _titled("How is everything connected?  (slackwater topology)", topology_lines(topology))
    snapshots = snapshot_lines(read_snapshots(settings, topology))
    yield from _titled("What does a consistent query see?  (slackwater snapshots)", snapshots)
    delays = delay_lines(measure_delays(topology))
    yield from _titled("How late is each view, and which component delays it?  (slackwater delay)", delays)
    compared = [_compared(kafka, old, new)]
    yield from _titled("How is data revised?  (slackwater revise compare)", compared)
    twice = list(sharing_lines(find_equal_stages(topology)))
    yield from _titled("What is computed more than once?  (slackwater explain --sharing)", twice)


def _compared(kafka: KafkaSettings, old: tuple[str, str], new: tuple[str, str]) -> str:
    with ExitStack() as opened:
        here, there = (
            ComparedView(opened.enter_context(closing(TopicOutput(kafka, pipeline))), topic)
            for pipeline, topic in (old, new)
        )
        at, found = compare_views(here, there)
    return (
        f"{old[0]} and {new[0]} at {at}: {found.equal:,} documents equal, {found.different:,} different, "
        f"{found.only_old + found.only_new:,} only in one of them"
    )


def _titled(title: str, lines: list[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (f"  {line}".rstrip() for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of one run of the demo."""

    pipeline: Path
    """Folder of the pipeline: a view of whole orders."""
    folder: Path
    """Data and logs; must not exist yet."""
    seconds: float = 45.0
    """How long the writers write."""
    seed: int = 1
    writers: int = 4
    changes_per_second: float = 2_000.0
    keep: bool = False
    """Whether everything stays up afterwards."""

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


class Demo:
    """Runs the demo once.

    A context manager: nothing stays behind however it ends, unless ``keep`` and done.
    """

    def __init__(self, settings: DemoSettings, output: Output, clock: Clock) -> None:
        self.settings = settings
        self.is_kept = False
        """Whether leaving will stop nothing; set once the run is complete and was asked to keep."""
        self.control_plane = ""
        """Where the page is; known once the pipeline runs."""
        self.answers: list[str] = []
        """What the control plane says in the end, of the pipeline and the next revision of it."""
        self.topic = output_topic(settings.pipeline)
        """The pipeline's output topic."""
        self._specification = demo_specification(settings.pipeline, self.topic)
        self._output = output
        self._clock = clock
        lifetime = Lifetime.DETACHED if settings.keep else Lifetime.EMBEDDED
        stack = DevStackSettings(
            folder=settings.folder, prefix=SOURCE, tables=TABLES, keep_data=settings.keep
        )
        self.stack = DevStack(stack, lifetime, self._output.progress)
        self.product = Product(
            self.stack,
            settings.folder.absolute(),
            clock=clock,
            command=_command,
            lifetime=lifetime,
            logs=settings.logs.absolute(),
        )
        self._observers: list[Visibility | NaiveReader] = []
        self._workload = MixedWorkload(settings.seed, FIRST_ORDERS, pipeline=settings.pipeline)

    def __enter__(self) -> "Demo":
        self.product.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._output.end_progress()
        for observer in self._observers:
            observer.stop()
        if self.is_kept:
            self.stack.release()
            return
        self._output.progress("stopping")
        self.product.__exit__(*error)
        self.stack.stop()
        self._output.end_progress()

    def run(self) -> DemoReport:
        """Runs everything; returns what was found.

        Raises:
            TestingError: a part failed, so nothing could be judged.
            SlackwaterError: the stack could not be started.
        """
        self._start_stack()
        visible, naive = self._start_pipeline()
        self._start_consumer()
        writers, started_ms, seconds = self._write(visible)
        consumed = self._await_last_commit(visible)
        self._output.progress("comparing every document, every commit and the final state")
        for observer in self._observers:
            observer.stop()
            observer.raise_failure()
        certificate = judge(
            self._specification,
            bootstrap=self.bootstrap,
            dsn=self.dsn,
            arrivals={seen.commit_lsn: int(seen.wall_ms) for seen in visible.seen},
            since_ms=started_ms,
            on_progress=self._output.progress,
        )
        self._revise()
        self.is_kept = self.settings.keep
        return DemoReport(
            seed=self.settings.seed,
            seconds=seconds,
            writes=writers.counts(),
            orders=count_orders(self.dsn),
            naive_published=naive.join.published,
            naive_torn=naive.join.torn,
            consumed=consumed,
            commit_records=sum(seen.documents > 0 for seen in visible.seen),
            certificate=certificate,
        )

    @property
    def bootstrap(self) -> str:
        return self.stack.kafka.bootstrap

    @property
    def dsn(self) -> str:
        return self.stack.postgres.dsn()

    def _start_stack(self) -> None:
        self._output.progress("starting PostgreSQL, Kafka and Redis")
        self.stack.start()
        create_tables(self.dsn, self._workload)
        write_first(self.dsn, self._workload)
        self._output.progress("starting Connect with Debezium: snapshot of the existing rows")
        self.stack.start_connector(TABLES)
        self.stack.wait_until_streaming()

    def _start_pipeline(self) -> tuple[Visibility, NaiveReader]:
        """Starts both programs and both readers; returns when the snapshot is visible in the output."""
        sidecar = self._started(self.product.start_sidecar("--control", "127.0.0.1:0"))
        self._started(self.product.start_pipeline(self.settings.pipeline.absolute()))
        visible = Visibility(self.bootstrap, self.topic, self._clock)
        naive = NaiveReader(self.bootstrap, [data_topic(SOURCE, table) for table in TABLES])
        self._observers += [visible, naive]
        for observer in self._observers:
            observer.start()
        self._output.progress("waiting until the initial snapshot is visible in the output")
        self._await("initial snapshot", 1, START_TIMEOUT, lambda: visible.newest_lsn)
        self.control_plane = _told(sidecar, _CONTROL_PLANE)
        self._output.line(f"{_CONTROL_PLANE}{self.control_plane}")
        return visible, naive

    def _start_consumer(self) -> None:
        """Starts a service that reads whole transactions; returns when it has the snapshot."""
        module = (sys.executable, "-m", "slackwater_lab.demo.consumer")
        arguments = (self.bootstrap, SOURCE, self.topic, str(self._report))
        self._started(self.product.start("consumer", (*module, *arguments)))
        self._await_consumer("initial snapshot", 1, 1, START_TIMEOUT)

    def _await_consumer(self, what: str, changes: int, output: int, timeout: timedelta) -> ConsumerReport:
        """Waits until the consumer has read both inputs up to an LSN of each; returns what it has read."""
        read = partial(ConsumerReport.read, self._report)
        self._await(what, changes, timeout, lambda: read().changes.lsn, "the consumer of the topics")
        self._await(what, output, timeout, lambda: read().output.lsn, "the consumer of the output")
        return read()

    @property
    def _report(self) -> Path:
        """Where the consumer writes what it has read."""
        return self.settings.folder.absolute() / "consumer.json"

    def _started(self, program: Program) -> Program:
        self._output.progress(f"starting: {' '.join(program.command[2:])}")
        return program

    def _write(self, visible: Visibility) -> tuple[Writers, int, float]:
        """Writes for the time that was asked for; returns the writers, when they started and for how long."""
        settings = self.settings
        writers = Writers(
            self.dsn,
            self._workload,
            count=settings.writers,
            changes_per_second=settings.changes_per_second,
            clock=self._clock,
        )
        started, started_ms = self._clock.monotonic(), epoch_ms(self._clock.now())
        with closing(RedisMarkerStore.connect(self.stack.redis.url)) as store:
            writers.start()
            try:
                while (elapsed := self._clock.monotonic() - started) < settings.seconds:
                    self._check()
                    writers.raise_failure()
                    self._output.progress(
                        _progress(elapsed, writers, _frontier(store), recent(visible, started_ms))
                    )
                    threading.Event().wait(min(REPORT_SECONDS, settings.seconds - elapsed))
            finally:
                writers.stop()
        return writers, started_ms, self._clock.monotonic() - started

    def _revise(self) -> None:
        """Builds the next revision beside the pipeline, and asks what there is to know of both."""
        definition, kafka = load_pipeline(self.settings.pipeline), KafkaSettings(self.bootstrap)
        topic = f"{self.topic}_v2"
        folder = write_next_revision(self.settings.pipeline, self.settings.folder / "next_revision", topic)
        name = load_pipeline(folder).name
        self._started(self.product.start_pipeline(folder.absolute(), name="next-revision"))
        self._output.progress("waiting until the next revision shows what the pipeline shows")
        shown = newest_lsn(kafka, definition.name)
        self._await("last commit", shown, START_TIMEOUT, lambda: newest_lsn(kafka, name), "the next revision")
        self._output.progress("querying the control plane")
        self.answers = list(answers(kafka, (definition.name, self.topic), (name, topic)))

    def _await_last_commit(self, visible: Visibility) -> ConsumerReport:
        """Commits one last change, waits until it is visible: by commit order, so is all before it.

        Returns:
            What the consumer has read up to there. It has ended.
        """
        last = write_last(self.dsn, ORDERS)
        self._output.progress("writers stopped; waiting until their last commit is visible")
        self._await("last commit", last + 1, VISIBLE_TIMEOUT, lambda: visible.newest_lsn)
        # The last commit changes no document, and commits without documents are not handed out.
        published = max(seen.commit_lsn for seen in visible.seen if seen.documents)
        consumed = self._await_consumer("last commit", last + 1, published, VISIBLE_TIMEOUT)
        self.product.stop("consumer")
        return consumed

    def _await(
        self, what: str, lsn: int, timeout: timedelta, newest: Callable[[], int], where: str = "the output"
    ) -> None:
        """Waits until something has come to an LSN."""
        seconds = timeout.total_seconds()
        if not wait_until(lambda: newest() >= lsn, seconds, check=self._check, clock=self._clock):
            raise RunFailedError(
                where,
                f"the {what} was not there after {seconds:.0f} s; the newest commit is at "
                f"{format_position(newest())}. Logs of all parts: {self.settings.logs}",
            )

    def _check(self) -> None:
        self.product.check()
        for observer in self._observers:
            observer.raise_failure()


def _command(*arguments: str) -> Sequence[str]:
    """A command that knows nothing but the servers of the stack."""
    return slackwater_command("--config", os.devnull, *arguments)


def _told(program: Program, what: str) -> str:
    """Returns the rest of a line that a program has printed; empty if it has not."""
    lines = (line for line in program.output().splitlines() if line.startswith(what))
    return next(lines, "").removeprefix(what)


def output_topic(folder: Path) -> str:
    """Returns the output topic of a pipeline that this demo can judge.

    Raises:
        InputError: it reads another source or other tables.
        SlackwaterError: it cannot be loaded.
    """
    definition = load_pipeline(folder)
    if definition.source != SOURCE or set(definition.tables) != set(TABLES):
        needs = f"source {SOURCE!r} and a view over {' and '.join(TABLES)}"
        problem = f"the pipeline in {folder} does not fit the demo, which needs {needs}"
        raise InputError(problem, "take pipelines/orders or a copy of it")
    return definition.outputs[0].name


def _frontier(store: RedisMarkerStore) -> str:
    """Says where the frontier is."""
    try:
        cut = store.newest(SOURCE, 1)
    except MarkerStoreUnavailableError as error:
        return f"unknown ({type(error).__name__})"
    return f"{format_position(cut.cut.lsn)}, {cut.cut.event_count:,} events" if cut else "none yet"


def recent(visible: Visibility, since_ms: int) -> list[SeenCommit]:
    """Returns the commit records whose newest transaction was committed since then."""
    return [commit for commit in visible.seen if commit.record.commit_ts_ms >= since_ms]


def _progress(elapsed: float, writers: Writers, frontier: str, commits: list[SeenCommit]) -> str:
    committed = writers.counts().committed
    delay = f"{commits[-1].delay_ms:,.0f} ms" if commits else "-"
    documents = sum(commit.documents for commit in commits)
    return (
        f"{elapsed:4.0f} s  transactions {committed:>6,}  frontier {frontier}  delay {delay}  "
        f"documents {documents:,}"
    )
