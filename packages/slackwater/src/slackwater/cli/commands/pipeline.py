"""``slackwater pipeline``: lists pipelines, and removes them or lets them start over.

Every command that removes part of a pipeline uses this module.
"""

import os
import socket
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from slackwater.cli.given_pipelines import INDEXES, open_cluster, tables_url
from slackwater.cli.main import settings_group
from slackwater.cli.pipelines import OF_ONE_SOURCE, open_pipeline_log, read_topology, remarks_on
from slackwater.cli.revisions import readers_of
from slackwater.cli.topics import known_topics
from slackwater.client import open_leases
from slackwater.command.invocation import YES, kafka_settings, setting
from slackwater.command.output import Output, ago, aligned, json_option
from slackwater.control import KnownRun, PipelineNode, Topology, is_over, known_runs, make_topology
from slackwater.cuts import PipelineLog
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    Lease,
    LeaseRecord,
    PipelineRegistration,
    StateError,
    SystemClock,
    UnavailableError,
    epoch_ms,
)
from slackwater.protocol.keys import (
    avro_commit_topic,
    commit_topic,
    cut_log_topic,
    notification_topic,
    progress_topic,
    search_ledger,
    transaction_topic,
)
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # Spark's libraries take a second to import, and need not be installed
    from slackwater.pipeline.checkpoint import Checkpoint

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What belongs only to one pipeline."""

    topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """In PostgreSQL, ``schema.name``."""
    indexes: tuple[str, ...] = ()
    checkpoint: "Checkpoint | None" = None
    """None: it is not there, or cannot be reached from here."""
    by_hand: tuple[str, ...] = ()
    """What only you can remove: a sentence each."""

    def lines(self) -> Iterator[str]:
        """Yields a line for each of them, for people."""
        yield from (f"topic       {name}" for name in self.topics)
        yield from (f"table       {name}" for name in self.tables)
        yield from (f"index       {name}" for name in self.indexes)
        if self.checkpoint is not None:
            yield f"checkpoint  {self.checkpoint.store.address}"
        yield from (f"by hand     {text}" for text in self.by_hand)


def _runs_of(log: PipelineLog, pipeline: str) -> list[KnownRun]:
    """Returns every run of a pipeline that is known, in the order in which they began."""
    known = known_runs(log.read())
    found = [each for each in known if each.registration.pipeline == pipeline]
    if not found:
        names = (run.registration.pipeline for run in known)
        raise unknown("pipeline", pipeline, names, "the name includes the revision, as in orders.v2")
    return sorted(found, key=lambda run: run.offset)


def _check_not_running(runs: Sequence[KnownRun], now_ms: int) -> None:
    """Refuses a pipeline with a run that may still be active."""
    for each in runs:
        if each.holds_name(now_ms):
            run = each.registration
            raise InputError(
                f"pipeline {run.pipeline!r} is running on {run.host} (process {run.pid}), last report "
                f"{ago(each.heard_ms, now_ms)}; nothing was removed",
                "stop it first; if it was killed, try again after a minute",
            )


def _check_not_a_source(pipeline: str, topology: Topology) -> None:
    """Refuses a pipeline whose output other pipelines read."""
    readers = sorted({link.read_by for link in topology.links if link.pipeline == pipeline})
    if readers:
        raise InputError(
            f"{pipeline!r} is read by {', '.join(readers)}; nothing was removed",
            f"start at the end of the chain: slackwater pipeline delete {readers[0]}",
        )


def check_unread(pipeline: str, read: Collection[str], leases: Iterable[LeaseRecord], now_ms: int) -> None:
    """Refuses a pipeline whose outputs readers need, as far as that is known.

    Raises:
        InputError: They do; nothing was removed.
    """
    if pipeline in read:
        raise InputError(
            f"readers are switched to {pipeline!r}; nothing was removed",
            "switch them to another revision first: slackwater revise switch",
        )
    for lease in leases:
        if isinstance(lease, Lease) and pipeline in lease.pipelines and not is_over(lease, now_ms):
            raise InputError(
                f"lease {lease.id} of {lease.holder or 'unknown'} needs the state of {pipeline!r} "
                "for another "
                f"{(lease.expires_ms - now_ms) / 1000:,.0f} s; nothing was removed",
                f"wait, or end it: slackwater lease end {lease.id}",
            )


def remove_pipeline(
    settings: Settings, log: PipelineLog, pipeline: str, output: Output, *, done: str, yes: bool
) -> None:
    """Removes all that a pipeline has made, and its place in the picture; shows it and asks before.

    At the end it says that the pipeline was `done` so. If nobody can be asked, nothing is removed.

    Raises:
        InputError: It runs, or somebody needs what it publishes; nothing was removed.
        CommandConfigError: Nothing says where its outputs are.
    """
    kafka, now_ms = kafka_settings(settings, "where pipelines register"), epoch_ms(SystemClock().now())
    runs = _runs_of(log, pipeline)
    _check_not_running(runs, now_ms)
    topology = make_topology(log.read(), {}, now_ms)
    _check_not_a_source(pipeline, topology)
    registration = runs[-1].registration
    names = (registration.base_name, *registration.revision_of)
    read = [each for name in names for each in readers_of(settings, topology, name).values()]
    with open_leases(kafka) as leases:
        check_unread(pipeline, read, leases.read(), now_ms)
    remains = find_remains(settings, runs)
    output.lines(remains.lines())
    if not yes:
        if not sys.stdin.isatty():
            output.line(f"nothing was removed; --yes removes what is left of {pipeline}")
            return
        click.confirm("remove all of this? It cannot be undone", abort=True)
    with taking_name(log, runs, now_ms):
        remove(settings, registration, remains)
    output.line(f"{done}: {pipeline}")


def check_retirable(found: Mapping[int, KnownRun], number: int, now_ms: int, age: timedelta) -> KnownRun:
    """Returns the last run of a revision that another one has replaced.

    The age is the least time since the last run of the revision reported.

    Raises:
        InputError: None has, or it was heard of since; nothing was removed.
    """
    if number not in found:
        known = ", ".join(map(str, found))
        raise InputError(f"there is no revision {number}; registered: {known}", "nothing was removed")
    run = found[number]
    name = run.registration.pipeline
    if len(found) == 1:
        raise InputError(
            f"{name!r} is the only revision of its pipeline",
            f"what another revision has replaced is removed here; else: slackwater pipeline delete {name}",
        )
    _check_not_running([run], now_ms)
    silent = timedelta(milliseconds=now_ms - run.heard_ms)
    if silent < age:
        raise InputError(
            f"{name!r} was last heard of {silent.total_seconds():,.0f} s ago, and is kept for "
            f"{age.total_seconds():,.0f} s",
            "wait, or give a shorter --keep-for",
        )
    return run


def find_remains(settings: Settings, runs: Sequence[KnownRun]) -> Remains:
    """Finds what is left of a pipeline; what was removed before is not in it.

    The checkpoint is that of ``run.checkpoint``, else where the pipeline had it. One with another id is
    another pipeline's and not touched.

    Raises:
        CommandConfigError: Nothing says where its outputs are.
    """
    registration = runs[-1].registration
    kinds = {view.kind for view in registration.views}
    checkpoint = _found_checkpoint(settings, runs)
    gone = f"the checkpoint {registration.checkpoint}, which is not found from here"
    by_hand = [] if checkpoint else [gone]
    sources = _output_sources(registration)
    by_hand += [f"the sidecar of source {each} and its topic {cut_log_topic(each)}" for each in sources]
    for view in registration.views:
        if view.kind in ("delta", "iceberg"):
            by_hand.append(f"table {view.output} of the lake ({view.kind})")
        elif view.kind == "function":
            done = f"what the function of {view.name} has done"
            by_hand.append(f"{done}: a new checkpoint gives it all documents again")
    topics = list[str]()
    if "kafka" in kinds:
        known = known_topics(kafka_settings(settings, "where the output is"))
        topics = [name for name in dict.fromkeys(_topics_of(registration)) if name in known]
    tables = _existing_tables(settings, registration) if "postgres" in kinds else ()
    indexes = _of_indexes(settings, registration, "GET") if INDEXES in kinds else ()
    return Remains(tuple(topics), tuple(tables), tuple(indexes), checkpoint, tuple(by_hand))


@contextmanager
def taking_name(log: PipelineLog, runs: Sequence[KnownRun], now_ms: int) -> Iterator[None]:
    """Holds the name of a pipeline during the block, as a run does, so that no run begins meanwhile.

    At the end of the block the pipeline is registered no more. If the block fails, or this process ends
    before, the name is free after a minute, and the pipeline is still known.

    Raises:
        InputError: A run has begun.
        TopicUnavailableError: The topic of pipelines cannot be read or written.
    """
    last = runs[-1].registration
    own = replace(
        last,
        run=uuid.uuid4().hex,
        query_id=str(uuid.uuid4()),
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ms=now_ms,
    )
    log.ensure()
    offset = log.register(own)
    others = [each for each in _runs_of(log, last.pipeline) if each.registration.run != own.run]
    try:
        _check_not_running([each for each in others if each.offset < offset], epoch_ms(SystemClock().now()))
    except InputError:
        log.forget(own.pipeline, own.run)
        raise
    yield
    for run in [*(each.registration.run for each in others), own.run]:
        log.forget(own.pipeline, run)


def remove(settings: Settings, registration: PipelineRegistration, remains: Remains) -> None:
    """Removes topics, tables, indexes, and at last the checkpoint; what is gone already is passed over.

    In any order of these a run that finds only part of them gone is refused.

    Raises:
        InputError: PostgreSQL refuses, since something depends on a table; no table was removed then.
        KafkaException: Kafka refuses or does not answer; part of the topics may be gone. Ask again.
        UnavailableError: The store of the checkpoint does not answer. Ask again.
    """
    if remains.topics:
        _delete_topics(kafka_settings(settings, "where the output is"), remains.topics)
    if remains.tables:
        _drop_tables(settings, registration, remains.tables)
    if remains.indexes:
        _of_indexes(settings, registration, "DELETE")
    if remains.checkpoint is not None:
        remains.checkpoint.remove()


def _delete_topics(kafka: KafkaSettings, topics: Sequence[str]) -> None:
    """Deletes topics, and waits until no broker lists them, because a run may begin at once."""
    from confluent_kafka.admin import AdminClient

    admin, clock = AdminClient({**kafka.client_config}), SystemClock()
    for answer in admin.delete_topics([*topics], request_timeout=_SECONDS).values():
        answer.result(_SECONDS)
    deadline = clock.monotonic() + _SECONDS
    while set(topics) & admin.list_topics(timeout=_SECONDS).topics.keys() and clock.monotonic() < deadline:
        time.sleep(0.05)


def _found_checkpoint(settings: Settings, runs: Sequence[KnownRun]) -> "Checkpoint | None":
    """Returns the pipeline's checkpoint if it can be reached from here, and is the pipeline's."""
    try:
        from slackwater.pipeline.checkpoint import Checkpoint
        from slackwater.pipeline.settings import revision_checkpoint
    except ModuleNotFoundError:  # without slackwater[spark] there are no checkpoints here
        return None
    last, given = runs[-1].registration, settings.run.checkpoint
    known = {each.registration.query_id for each in runs}
    for address in (revision_checkpoint(given, last.revision) if given else None, last.checkpoint):
        with suppress(StateError, UnavailableError):
            checkpoint = Checkpoint(address, settings.run.spark_conf) if address else None
            if checkpoint and (identity := checkpoint.identity()) and identity.query_id in known:
                return checkpoint
    return None


def _topics_of(registration: PipelineRegistration) -> Iterator[str]:
    for view in registration.views:
        if view.kind == "kafka":
            yield from (view.output, commit_topic(view.output), avro_commit_topic(view.output))
    for source in _output_sources(registration):
        yield from (transaction_topic(source), notification_topic(source))
    yield progress_topic(registration.pipeline)


def _output_sources(registration: PipelineRegistration) -> list[str]:
    return sorted({view.output_source for view in registration.views if view.output_source})


def _existing_tables(settings: Settings, registration: PipelineRegistration) -> Iterator[str]:
    import psycopg

    query = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    with psycopg.connect(tables_url(settings, registration.pipeline)) as database:
        for view in registration.views:
            for name in (view.output, f"{view.output}_history"):
                schema, _, table = name.rpartition(".")
                if database.execute(query, (schema, table)).fetchone():
                    yield name


def _of_indexes(settings: Settings, registration: PipelineRegistration, method: str) -> list[str]:
    """Returns the existing indexes of a pipeline, with that of its ledger; or deletes them, all at once."""
    from slackwater.client.search_views import answered
    from slackwater.outputs.search.ledger import index_of

    aliases = [*(view.output for view in registration.views), search_ledger(registration.pipeline)]
    with answered(cluster := open_cluster(settings, registration.pipeline)):
        names = ",".join(map(index_of, aliases))
        return sorted(cluster.ask(method, f"/{names}?ignore_unavailable=true"))


def _drop_tables(settings: Settings, registration: PipelineRegistration, tables: Sequence[str]) -> None:
    """Drops all tables, and the pipeline's rows in the ledger, in one transaction."""
    import psycopg
    from psycopg import sql

    from slackwater.outputs.postgres import ledger

    try:
        with psycopg.connect(tables_url(settings, registration.pipeline)) as database:
            for name in tables:
                schema, _, table = name.rpartition(".")
                database.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table)))
            ledger.forget(database, registration.pipeline)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise InputError(
            f"PostgreSQL keeps the tables: {error.diag.message_detail or error.diag.message_primary}",
            "remove or change what reads them; no table was removed",
        ) from error


_BROKERS = setting("kafka.bootstrap", "The brokers of the pipelines.")


_CHECKPOINT = setting("run.checkpoint", "Location of its state, if it is not the registered one.")


@settings_group()
def pipeline() -> None:
    """List pipelines, reset a pipeline to start over, or delete it.

    \b
    Examples:
      slackwater pipeline list --bootstrap localhost:9092
      slackwater pipeline reset orders
      slackwater pipeline delete orders.v2 --outputs

    For details see docs/control-plane.md.
    """


@pipeline.command("list")
@_BROKERS
@OF_ONE_SOURCE
@json_option("one JSON array")
def list_pipelines(settings: Settings, source: str | None, as_json: bool) -> None:
    """List all registered pipelines, including those that are not running.

    `slackwater topology --help` explains the states. The JSON output is that of /api/v1/pipelines of the
    control plane.

    \b
    Examples:
      slackwater pipeline list --bootstrap localhost:9092
      slackwater pipeline list --json | jq -r '.[] | select(.state != "running") | [.name, .owner] | @tsv'
    """
    topology = read_topology(settings, source)
    found, now_ms = topology.pipelines, topology.made_ms
    nothing = ["no pipeline has registered yet; `slackwater run` registers its pipeline"]
    Output().report(found, aligned(pipeline_rows(found, now_ms)) if found else nothing, as_json=as_json)


def pipeline_rows(pipelines: Sequence[PipelineNode], now_ms: int) -> list[Sequence[str]]:
    """Writes a row for each pipeline, below a heading."""
    state = "pipeline", "owner", "source", "revision", "state"
    rows: list[Sequence[str]] = [(*state, "shows", "last batch", "began", "checkpoint", "")]
    for each in pipelines:
        visible_ms = None if each.batch is None else each.batch.visible_ms
        named = each.name, each.owner or "-", each.source, str(each.revision), each.state
        shown = "-" if each.batch is None else each.batch.commit_lsn
        last = "-" if visible_ms is None else ago(visible_ms, now_ms)
        remarks = ", ".join(remarks_on(each))
        rows.append((*named, shown, last, ago(each.started_ms, now_ms), each.checkpoint, remarks))
    return rows


@pipeline.command()
@_BROKERS
@_CHECKPOINT
@click.argument("name", metavar="NAME")
@YES
def reset(settings: Settings, name: str, yes: bool) -> None:
    """Reset a pipeline to start over: remove its state, its outputs, commit records and progress.

    NAME includes the revision, as in orders.v2. The next `slackwater run` creates the topics and tables
    again, and reads the source's topics from the beginning. For consumers these are different topics: a
    consumer with stored offsets has to start over, too. If readers should not be interrupted, build the views
    beside the old ones instead, with a higher revision (docs/revisions.md).

    The state is never removed without the outputs, because the output would keep documents that the views no
    longer contain. The command is refused while the pipeline runs, while other pipelines read its output,
    while readers are switched to it, and while a lease needs its state. It first shows what will be removed.
    If it is killed halfway, run it again: until it has finished, runs are refused, and none continues from a
    wrong state. Lake tables, and checkpoints that cannot be reached from here, are listed. Remove them
    yourself before the pipeline can start over.

    \b
    Examples:
      slackwater pipeline reset orders --bootstrap localhost:9092
      slackwater pipeline reset orders --checkpoint s3://bucket/orders --yes
    """
    with open_pipeline_log(settings) as log:
        remove_pipeline(settings, log, name, Output(), done="starts over", yes=yes)


@pipeline.command()
@_BROKERS
@_CHECKPOINT
@click.argument("name", metavar="NAME")
@click.option("--outputs", is_flag=True, help="Also remove its topics and tables, progress and state.")
@YES
def delete(settings: Settings, name: str, outputs: bool, yes: bool) -> None:
    """Remove a pipeline that will never run again from the topology, and free its name.

    NAME includes the revision, as in orders.v2. Without --outputs, neither the checkpoint nor the outputs are
    removed, and you are not asked for confirmation. The command is refused while the pipeline runs, and while
    other pipelines read its output; with --outputs also while readers are switched to it, and while a lease
    needs its state. Readers that use its topics or tables directly cannot be detected.

    \b
    Examples:
      slackwater pipeline delete orders --bootstrap localhost:9092
      slackwater pipeline delete orders.v2 --outputs --yes
    """
    output = Output()
    with open_pipeline_log(settings) as log:
        if outputs:
            remove_pipeline(settings, log, name, output, done="deleted", yes=yes)
            return
        runs, now_ms = _runs_of(log, name), epoch_ms(SystemClock().now())
        _check_not_running(runs, now_ms)
        _check_not_a_source(name, make_topology(log.read(), {}, now_ms))
        for each in runs:
            log.forget(name, each.registration.run)
    output.line(f"deleted: {name}")
