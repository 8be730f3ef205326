"""``slackwater run``, what it will do (``plan``), and ``archive-classes``, which lets it start faster."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from prometheus_client import CollectorRegistry

from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import read_topology
from slackwater.command.connect_rest import ConnectRest
from slackwater.command.invocation import kafka_settings, required, servers, setting
from slackwater.command.listening import HttpSettings, http_settings, serving
from slackwater.command.output import Output, json_option, show_findings
from slackwater.control import PipelineNode
from slackwater.cuts import LeaseLog
from slackwater.observe.stopping import stop_on_signals
from slackwater.observe.telemetry import make_registry, sending_telemetry
from slackwater.protocol import InputError, Lease, format_position, user_cache
from slackwater.protocol.log_fields import set_log_fields
from slackwater.protocol.metrics import RUN_METRICS
from slackwater.settings.model import RunOptions, Settings

if TYPE_CHECKING:  # Spark's libraries take a second to import; the help text does not need them
    from starlette.routing import Route

    from slackwater.pipeline import BatchProgress, RunMonitor, RunSettings
    from slackwater.pipeline.change_plan import Known

_ANSWER = timedelta(seconds=5)
SHOWN_SECONDS = 0.001
"""A part of a batch that took less is not in its line."""
_COPY_STATE_OF = click.option(
    "--copy-state-of",
    metavar="DIR",
    multiple=True,
    help="Start from a copy of the state of an earlier revision, given by its folder, instead of reading the "
    "topics from the beginning; may be repeated.",
)


@settings_command()
@click.argument("pipeline", metavar="DIR")
@setting("kafka.bootstrap", "The brokers of source and output.")
@setting("redis.url", "redis://host:port, where the sidecar publishes.")
@setting("postgres.url", "The source database, to watch its catalogue; secret.")
@setting("run.checkpoint", "Location of the state: a folder, or s3://…")
@setting("connect.url", "Kafka Connect, where the connector runs: a wrong configuration is refused.")
@setting("run.available_now", "Process what exists now, then stop.", "--available-now", is_flag=True)
@setting(
    "run.master", "Spark master.  [default: Spark's configuration, else local[*]]", "--master", metavar="URL"
)
@setting(
    "run.max_events_per_batch",
    "Size at which a batch is closed, in change events; no transaction is split.  [default: 400000]",
    "--max-events-per-batch",
    type=int,
    metavar="N",
)
@setting(
    "run.accept_changed_output",
    "Continue with outputs that lost documents or were changed; see docs/runbooks.md#output-changed.",
    "--accept-changed-output",
    is_flag=True,
)
@setting(
    "run.allow_missing_tables",
    "Treat declared tables without a topic as empty, instead of refusing to run.",
    "--allow-missing-tables",
    is_flag=True,
)
@setting("run.http", "Serve /metrics, /healthz and /readyz.", "--http", metavar="HOST:PORT")
@_COPY_STATE_OF
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Do only what this file of `slackwater plan` says.",
)
@click.option("--dry-run", is_flag=True, help="Check whether the pipeline can run, without writing anything.")
def run(
    settings: Settings, pipeline: str, copy_state_of: tuple[str, ...], plan_file: Path | None, dry_run: bool
) -> int:
    """Run the pipeline in DIR and publish its views to Kafka, PostgreSQL, a lake or an index, exactly once.

    \b
    DIR contains
      pipeline.toml    name, source, output topics or tables, and which states are published
      schema.sql       CREATE TABLE statements of the tables (`slackwater schema pull` generates them)
      views/*.sql      one view per file: SELECT TRANSACTIONALLY ...

    Instead of a folder, DIR can be NAME or NAME==VERSION of a pipeline that is installed as a package.

    Runs until SIGTERM or Ctrl-C or, with --available-now, until everything that existed at the start has been
    processed. When started again with the same checkpoint, it resumes where it stopped. Only one run of a
    pipeline is active: a second run with the same checkpoint takes over from the first.

    \b
    Examples:
      slackwater run pipelines/orders --bootstrap localhost:9092 --redis-url redis://localhost:6379 \\
          --checkpoint /var/lib/slackwater/orders
      slackwater run pipelines/orders --available-now        the rest from slackwater.toml
      slackwater run revenue==1.2.0                          an installed package, in exactly this version
      slackwater run pipelines/orders --copy-state-of old/orders    a revision, from another one's state

    Passwords and TLS are settings under kafka. and redis. (see `slackwater config`). The locations of outputs
    are postgres.output_url for kind postgres, delta.location for kind delta, iceberg.catalog for iceberg and
    opensearch.url for kind opensearch. For details see docs/views.md (the SQL of a view), docs/outputs.md
    (the content of outputs), docs/observability.md (the metrics of a run), docs/revisions.md (how a revision
    starts) and docs/runbooks.md#ended (what to do when a run ends).
    """
    from slackwater.pipeline import RunMonitor, batch_spans, run_folder
    from slackwater.pipeline.toml_table import read_labels

    own, output = _run_settings(settings, copy_state_of), Output()
    own, folder = replace(own, plan=plan_file), pipeline_folder(pipeline)
    if dry_run:
        return _examine(folder, own, output)
    labels = read_labels(folder)
    set_log_fields(pipeline=labels.full_name, source=labels.source)
    monitor, run = RunMonitor(labels.full_name, labels.source), settings.run
    with (
        stop_on_signals(f"the run of {folder}") as stop,
        answering(http_settings("run.http", run.http, settings.http), monitor, run.silent_after),
        sending_telemetry(settings.telemetry, "run") as telemetry,
    ):
        if telemetry is not None:
            telemetry.send_metrics(run_registry(monitor))

        def tell(batch: "BatchProgress") -> None:
            monitor.record_batch(batch)
            if telemetry is not None:
                for span in batch_spans(batch, telemetry.trace_ratio):
                    telemetry.send(span)
            output.progress(batch_line(batch))

        def announce(step: str) -> None:
            monitor.record_turn()
            output.progress(step)

        try:
            run_folder(folder, own, tell, stop=stop.event, on_step=announce, on_turn=monitor.record_turn)
        finally:
            output.end_progress()
    return stop.exit_code


def _examine(folder: Path, settings: "RunSettings", output: Output) -> int:
    """Lists what a run would find; returns the exit code."""
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.dry_run import examine_run

    return show_findings(examine_run(load_pipeline(folder), settings), output, "a run can begin")


def batch_line(batch: "BatchProgress") -> str:
    """Describes a batch that has become visible in one line."""
    delay_ms = batch.delay.total_seconds() * 1000
    return (
        f"{batch.pipeline}: batch {batch.batch_id} at {format_position(batch.commit_lsn)}: "
        f"{batch.events:,} events, {batch.documents:,} documents, "
        f"visible {delay_ms:,.0f} ms after its newest commit{_parts(batch.seconds)}"
    )


def _parts(seconds: Mapping[str, float]) -> str:
    """Names the parts of a batch one after the other; empty when nothing is known."""
    shown = [f"{name} {value:.3f} s" for name, value in seconds.items() if value >= SHOWN_SECONDS]
    return f" ({', '.join(shown)})" if shown else ""


def _run_settings(settings: Settings, copy_state_of: tuple[str, ...]) -> "RunSettings":
    """Returns what a run of a pipeline needs."""
    from slackwater.pipeline import RunSettings, default_class_archives
    from slackwater.sql.limits import StatementLimits

    run, connect_url = settings.run, settings.connect.url
    options = {each.name: getattr(run, each.name) for each in fields(RunOptions)}
    required(run.checkpoint, "run.checkpoint", "where the state is kept")
    return RunSettings(
        **options,
        servers=servers(settings, "where source and output are"),
        source_database=settings.postgres.url,
        source_user=settings.connect.database_user,
        ask_connect=ConnectRest(connect_url, _ANSWER).properties_of if connect_url else None,
        connector_properties=settings.connect.properties,
        timeline=settings.timeline,
        limits=StatementLimits(run.statement_memory, run.statement_seconds),
        local_index_root=default_index_root(os.environ),
        class_archives=default_class_archives(os.environ) if run.class_archive else None,
        replication_factor=settings.kafka.replication_factor,
        keep=settings.kafka.keep,
        copy_state_of=tuple(map(pipeline_folder, copy_state_of)),
    )


def default_index_root(environment: Mapping[str, str]) -> Path | None:
    """Returns where indexes outlive a run on this machine, so that the next one need not rebuild them.

    The user's cache folder if it can be written; else None.
    """
    cache = user_cache(environment)
    if cache is not None:
        with suppress(OSError):
            root = cache / "indexes"
            root.mkdir(parents=True, exist_ok=True)
            return root if os.access(root, os.W_OK) else None
    return None


def run_registry(monitor: "RunMonitor") -> CollectorRegistry:
    """Returns a registry with the metrics of a run; any thread may ask it."""
    return make_registry(RUN_METRICS, monitor.read)


def run_routes(monitor: "RunMonitor", silent_after: timedelta) -> "list[Route]":
    """Returns the pages of a run, which is not healthy when it has taken no step for longer than this."""
    from slackwater.command.http_server import service_routes

    return service_routes(
        run_registry(monitor),
        silent=lambda: {monitor.pipeline: monitor.silent_seconds},
        blocked_after=silent_after,
        not_ready=lambda: {monitor.pipeline: monitor.not_ready()},
    )


@contextmanager
def answering(
    http: HttpSettings | None, monitor: "RunMonitor", silent_after: timedelta
) -> Iterator[str | None]:
    """Answers while the block lasts, and counts what is logged meanwhile.

    A run that has taken no step for longer than `silent_after` is not healthy. Without settings, nobody is
    answered, and there is no address.

    Raises:
        ConfigError: the address is malformed, in use or not this machine's, or a certificate cannot be
            used.
    """
    if http is None:
        yield None
        return
    counting = _Counting(monitor)
    with serving(http, lambda: run_routes(monitor, silent_after)) as address:
        logging.getLogger().addHandler(counting)
        try:
            yield address
        finally:
            logging.getLogger().removeHandler(counting)


class _Counting(logging.Handler):
    def __init__(self, monitor: "RunMonitor") -> None:
        super().__init__(logging.WARNING)
        self._monitor = monitor

    def emit(self, record: logging.LogRecord) -> None:
        self._monitor.count_log_record(record)


@settings_command()
@click.argument("pipeline", metavar="DIR")
@setting("kafka.bootstrap", "The brokers of source and output.")
@setting("redis.url", "redis://host:port, where the sidecar publishes.")
@setting("postgres.url", "The source database, to look at its catalogue; secret.")
@setting("run.checkpoint", "Location of the state: a folder, or s3://…")
@setting("connect.url", "Kafka Connect, where the connector runs.")
@_COPY_STATE_OF
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to this file, for `slackwater run --plan`.",
)
@json_option("one JSON object")
def plan(
    settings: Settings, pipeline: str, copy_state_of: tuple[str, ...], out: Path | None, as_json: bool
) -> int:
    """Show what a run of the pipeline in DIR will do, before it does it.

    Shows whether the run continues with its state, copies the rows of another revision, reads the topics from
    the beginning or is refused; what becomes of each stage and output, with the readers that are known; how
    much there is to read, and how long that takes at the rate of the newest batch; the command to run; and
    the problems that the run would find (as with --dry-run). Only the file of --out is written.

    A run with `--plan FILE` is refused, before it writes anything, if the folder, the checkpoint, the copied
    state, an output or the beginning of a topic has changed since. The exit code is 1 if a run is refused.

    \b
    Examples:
      slackwater plan pipelines/shop
      slackwater plan pipelines/shop --copy-state-of old/shop --out shop.plan
      slackwater run pipelines/shop --copy-state-of old/shop --plan shop.plan

    For details see docs/changing-a-pipeline.md.
    """
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.change_plan import Begins, plan_change, plan_lines
    from slackwater.pipeline.dry_run import examine_run

    own, output = _run_settings(settings, copy_state_of), Output()
    definition = load_pipeline(pipeline_folder(pipeline))
    known = _known(settings, definition.base_name)
    problems = [found for found in examine_run(definition, own) if found.verdict.is_problem]
    found = replace(
        plan_change(definition, own, known, pipeline),
        problems=tuple(f"{each.subject}: {each.text}" for each in problems),
    )
    output.report(found, plan_lines(found), as_json=as_json)
    if problems and not as_json:
        show_findings(problems, output, "")
    is_refused = found.begins is Begins.REFUSED
    if out is not None and not is_refused:
        out.write_bytes(msgspec.json.encode(found))
    return 1 if is_refused or problems else 0


def _known(settings: Settings, base_name: str) -> "Known":
    """Returns what the revisions of a pipeline, and the readers of their outputs, have registered."""
    from slackwater.client.topic_views import TopicReaders
    from slackwater.pipeline.change_plan import Change, Known, PlannedOutput

    kafka, topology = kafka_settings(settings, "where pipelines register"), read_topology(settings)
    revisions = sorted(
        (each for each in topology.pipelines if each.base_name == base_name), key=lambda each: each.revision
    )
    if not revisions:
        return Known()
    with closing(LeaseLog(kafka)) as log:
        leases = [each for each in log.read() if isinstance(each, Lease)]
    switch = TopicReaders(kafka, base_name).newest_switch()

    def readers(of: PipelineNode, view: str) -> Iterator[str]:
        yield from (
            f"pipeline {e.read_by}" for e in topology.links if (e.pipeline, e.view) == (of.name, view)
        )
        yield from (f"lease {each.id} of {each.holder}" for each in leases if of.name in each.pipelines)
        if switch is not None and switch.pipeline == of.name:
            yield "the readers that were switched to it"

    outputs = (
        PlannedOutput(Change.LEFT, each.name, view.kind, view.output, tuple(readers(each, view.name)))
        for each in revisions
        for view in each.views
    )
    batch = revisions[-1].batch
    seconds = sum(batch.parts_us.values()) / 1_000_000 if batch else 0
    return Known(
        stages={each.identity: each.why for each in revisions[-1].stages},
        outputs=tuple(outputs),
        events_per_second=batch.events / seconds if batch and batch.events and seconds else None,
    )


@settings_command("archive-classes")
def archive_classes(settings: Settings) -> None:
    """Halve the CPU time that pipelines on this machine need to start.

    Starts Spark once and stores the classes that Java loaded (180 MB) in slackwater/spark in the user's cache
    folder. This takes up to a minute. From then on, `slackwater run` with a local master uses them until
    Spark or Java is replaced. Then run this command again. It does nothing if the classes are already stored.
    Set `run.class_archive = false` to run without them.

    \b
    Example, when you build an image: run it as the user that will run the pipeline
      slackwater archive-classes
    """
    from slackwater.pipeline import default_class_archives, make_class_archive

    archives = default_class_archives(os.environ)
    if archives is None:
        problem = "this account has no home folder, and neither SLACKWATER_CACHE nor XDG_CACHE_HOME is set"
        raise InputError(f"the archive of Spark's classes could not be created: {problem}")
    Output().line(str(make_class_archive(archives)))
