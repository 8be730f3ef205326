"""Checks what a run of a pipeline would find: servers, topics, rights, tables and the checkpoint."""

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from slackwater.cdc.connector import unknown_properties
from slackwater.cdc.table_snapshots import SNAPSHOT_HINT
from slackwater.cuts import (
    KafkaCutLog,
    MarkerStoreUnavailableError,
    RedisMarkerStore,
    StoreFault,
)
from slackwater.engine.state.manifest import history
from slackwater.kafka.retry import reason_of
from slackwater.outputs.waiting import Waiting
from slackwater.pipeline.catalogue_check import CatalogueCheck
from slackwater.pipeline.checkpoint import FOLDER_HINT, Checkpoint, CheckpointIdentity
from slackwater.pipeline.connector_check import (
    ConnectorCheck,
    may_have_connector,
    refuse_unknown_connector,
)
from slackwater.pipeline.copied_state import EarlierRevision
from slackwater.pipeline.definition import PipelineDefinition, needed_columns, used_columns
from slackwater.pipeline.fingerprint import PipelineFingerprint
from slackwater.pipeline.folder import load_pipeline
from slackwater.pipeline.progress import RunReporter
from slackwater.pipeline.rights import ask_for_rights, rights_of
from slackwater.pipeline.runner import missing_table, tables_without_topic
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.sinks import make_sink
from slackwater.pipeline.spark_home import JAVA_HINT, fault_of_java
from slackwater.protocol import (
    Cut,
    Finding,
    RedisSettings,
    SlackwaterError,
    SourceTopics,
    SystemClock,
    Verdict,
    format_position,
    hide,
)
from slackwater.protocol.keys import cut_log_topic

ANSWER: Final = timedelta(seconds=5)
"""The time in which each server has to answer."""


_LOG: Final = logging.getLogger(f"{__name__}.librdkafka")


def examine_run(definition: PipelineDefinition, settings: RunSettings) -> Iterator[Finding]:
    """Yields everything that a run would find, as it is found. Nothing is written.

    Args:
        definition: The pipeline.
        settings: The settings of the run.
    """
    address = revision_checkpoint(settings.checkpoint, definition.revision)
    checkpoint = Checkpoint(address, settings.spark_conf)
    query_id = None
    with _found("checkpoint") as found:
        identity = checkpoint.identity()
        query_id = identity.query_id if identity else None
        found.append(_checkpoint(checkpoint, identity, definition, settings))
    yield from found
    if fault := fault_of_java():
        yield Finding("java", Verdict.PROBLEM, fault, JAVA_HINT)
    if settings.copy_state_of is not None:
        yield from _copied_state(checkpoint, definition, settings, settings.copy_state_of)
    yield from _redis(settings.servers.redis, definition.source)
    connector = ConnectorCheck(
        definition.source,
        settings.ask_connect,
        settings.servers.redis,
        used_columns(definition.plan),
        settings.connector_properties,
    )
    yield from _connector(connector, definition)
    yield from _catalogue(definition, settings, checkpoint)
    admin = AdminClient({**settings.servers.kafka.client_config}, logger=_LOG)
    try:
        known = admin.list_topics(timeout=ANSWER.total_seconds())
    except KafkaException as error:
        text = (
            f"{settings.servers.kafka.bootstrap} did not answer within {ANSWER.seconds} s: {reason_of(error)}"
        )
        yield Finding(
            "brokers", Verdict.PROBLEM, text, "check the address, the security settings and the network"
        )
        yield Finding("the rest", Verdict.WARNING, "not checked: source, tables, outputs, name, rights")
        return
    count = len(known.brokers)
    answers = "1 broker answers" if count == 1 else f"{count} brokers answer"
    yield Finding("brokers", Verdict.OK, answers)
    topics = frozenset(known.topics)
    if not connector.is_known:
        yield from _unknown_connector(definition, settings)
    yield from _source(definition, settings, topics)
    yield from _tables(definition, topics, is_allowed=settings.allow_missing_tables)
    yield from _outputs(definition, settings, query_id)
    yield from _name(definition, settings, checkpoint, query_id)
    yield from _rights(definition, settings)


def _checkpoint(
    checkpoint: Checkpoint,
    identity: CheckpointIdentity | None,
    definition: PipelineDefinition,
    settings: RunSettings,
) -> Finding:
    buckets = definition.buckets or (identity.buckets if identity else 1)
    checkpoint.check(PipelineFingerprint.take(replace(definition, buckets=buckets), settings.timeline))
    if fault := checkpoint.fault_of_folder():
        return Finding("checkpoint", Verdict.PROBLEM, fault, FOLDER_HINT)
    beginning = "starts at the beginning of the topics"
    if settings.copy_state_of is not None:
        beginning = "starts with a copied state"
    what = "fits the pipeline" if identity else f"is new: the run {beginning}"
    return Finding("checkpoint", Verdict.OK, f"{checkpoint.address} {what}")


def _connector(check: ConnectorCheck, definition: PipelineDefinition) -> Iterator[Finding]:
    faults = check.look()
    yield from faults
    if not check.is_known:
        yield unknown_properties(definition.source)
    elif not faults:
        yield Finding("connector", Verdict.OK, "it writes values and rows in the expected form")


def _unknown_connector(definition: PipelineDefinition, settings: RunSettings) -> Iterator[Finding]:
    with _found("connector") as found:
        if may_have_connector(settings.servers.kafka, definition.input_topics):
            refuse_unknown_connector(needed_columns(definition.plan))
    yield from found


def _catalogue(
    definition: PipelineDefinition, settings: RunSettings, checkpoint: Checkpoint
) -> Iterator[Finding]:
    if settings.source_database is None:
        text = "postgres.url is not set: whether the topics have all rows of the tables is not checked"
        yield Finding("source database", Verdict.OK, text)
        return
    with _found("source database") as found:
        check = CatalogueCheck(definition, settings.source_database, settings.source_user, checkpoint)
        try:
            wrong = check.first_look()
        except psycopg.Error as error:
            reason = hide(" ".join(str(error).split()), (settings.source_database,))
            found.append(Finding("source database", Verdict.WARNING, reason, "check postgres.url"))
        else:
            found += [Finding(f"table {w.table}", Verdict.PROBLEM, w.text, w.hint) for w in wrong]
            if not wrong:
                text = "nothing keeps rows of the tables from their topics"
                found.append(Finding("source database", Verdict.OK, text))
    yield from found


def _copied_state(
    checkpoint: Checkpoint, definition: PipelineDefinition, settings: RunSettings, folder: Path
) -> Iterator[Finding]:
    with _found("copied state") as found:
        if history(checkpoint.store):
            text = "not checked, because the checkpoint has a state"
        else:
            earlier = EarlierRevision(load_pipeline(folder), definition, settings)
            at = format_position(earlier.check().lsn)
            text = f"the state of {earlier.place} has all rows that the pipeline needs, up to {at}"
        found.append(Finding("copied state", Verdict.OK, text))
    yield from found


def _redis(redis: RedisSettings | None, source: str) -> Iterator[Finding]:
    if redis is None:
        yield Finding("redis", Verdict.OK, "not configured: cuts are read from the cut log in Kafka")
        return
    with _found("redis") as found:
        store = RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWER)
        with closing(store):
            found.append(_answer_of(store, source))
    yield from found


def _answer_of(store: RedisMarkerStore, source: str) -> Finding:
    """Asks all that a run asks Redis for; a run does without an answer, but not without the rights.

    Raises:
        MarkerStoreUnavailableError: the user may not ask.
    """
    try:
        position = store.position(source)
    except MarkerStoreUnavailableError as error:
        if error.fault is StoreFault.REFUSED:
            raise
        return Finding("redis", Verdict.WARNING, error.problem, error.hint)
    if position is None:
        text = f"it answers, but has no cut of source {source}"
        hint = f"check that it is the Redis of `slackwater sidecar --source {source}`"
        return Finding("redis", Verdict.WARNING, text, hint)
    return Finding("redis", Verdict.OK, "it answers")


def _source(
    definition: PipelineDefinition, settings: RunSettings, topics: Collection[str]
) -> Iterator[Finding]:
    source = definition.source
    kafka = settings.servers.kafka
    with _found(f"source {source}") as found:
        newest = None
        if cut_log_topic(source) in topics:
            log = KafkaCutLog(source, kafka.bootstrap, kafka=kafka.options, timeout=ANSWER)
            with closing(log):
                newest = log.newest()
        if newest is None:
            text, hint = "no sidecar has published a cut", f"start `slackwater sidecar --source {source}`"
            found.append(Finding(f"source {source}", Verdict.PROBLEM, text, hint))
        else:
            text = f"newest cut {format_position(newest.cut.lsn)} on timeline {newest.cut.timeline}"
            found.append(Finding(f"source {source}", Verdict.OK, text))
            found.extend(_withheld(definition, newest.cut))
    yield from found


def _withheld(definition: PipelineDefinition, cut: Cut) -> Iterator[Finding]:
    topics = SourceTopics(definition.source, definition.topics)
    for table in definition.tables:
        if topics.data(table) in cut.without_snapshot:
            text = "it has had no complete snapshot, so nothing of it is shown"
            yield Finding(f"table {table}", Verdict.PROBLEM, text, SNAPSHOT_HINT)


def _tables(definition: PipelineDefinition, known: Collection[str], *, is_allowed: bool) -> Iterator[Finding]:
    topics = SourceTopics(definition.source, definition.topics)
    missing = dict(tables_without_topic(definition.tables, topics, known))
    for table in definition.tables:
        if table in missing:
            verdict = Verdict.WARNING if is_allowed else Verdict.PROBLEM
            text, hint = missing_table(topics.data(table), missing[table])
            yield Finding(f"table {table}", verdict, text, hint)
        else:
            yield Finding(f"table {table}", Verdict.OK, f"topic {topics.data(table)}")


def _outputs(
    definition: PipelineDefinition, settings: RunSettings, query_id: str | None
) -> Iterator[Finding]:
    stop = threading.Event()
    enough = threading.Timer(ANSWER.total_seconds(), stop.set)
    with _found("outputs") as found:
        sink = make_sink(definition, settings, waiting=Waiting(stop))
        enough.start()
        try:
            sink.check(query_id)
        finally:
            enough.cancel()
            sink.close()
        names = ", ".join(output.name for output in definition.outputs)
        found.append(Finding("outputs", Verdict.OK, f"{names} in {sink.place}"))
    yield from found


def _name(
    definition: PipelineDefinition, settings: RunSettings, checkpoint: Checkpoint, query_id: str | None
) -> Iterator[Finding]:
    with _found("name") as found:
        with closing(
            RunReporter.connect(definition, settings, checkpoint.address, SystemClock())
        ) as reporter:
            reporter.check(query_id, makes_topic=False)
        found.append(Finding("name", Verdict.OK, f"no other checkpoint has the name {definition.name}"))
    yield from found


def _rights(definition: PipelineDefinition, settings: RunSettings) -> Iterator[Finding]:
    """Compares the rights that the brokers give with those that a run needs."""
    with _found("rights") as found:
        given = ask_for_rights(settings.servers.kafka, rights_of(definition), ANSWER)
        if given.missing:
            text = f"the brokers do not allow: {'; '.join(map(str, given.missing))}"
            hint = "`slackwater acl pipeline` prints the ACLs for the user of the run"
            found.append(Finding("rights", Verdict.PROBLEM, text, hint))
        else:
            made = f"; it creates {', '.join(given.absent)}" if given.absent else ""
            found.append(Finding("rights", Verdict.OK, f"the brokers allow what a run does{made}"))
    yield from found


@contextmanager
def _found(subject: str) -> Iterator[list[Finding]]:
    """Collects findings. An error that is raised within the block becomes a finding, and ends the block."""
    found: list[Finding] = []
    try:
        yield found
    except KafkaException as error:
        found.append(Finding(subject, Verdict.PROBLEM, reason_of(error)))
    except (SlackwaterError, OSError) as error:
        hint = getattr(error, "hint", "")
        found.append(Finding(subject, Verdict.PROBLEM, getattr(error, "problem", "") or str(error), hint))
