"""Checks what a run of a pipeline would find: servers, topics, rights, tables and the checkpoint."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined,unused-ignore]
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from slackwater.cdc.connector import unknown_properties
from slackwater.cdc.initial_snapshot import SNAPSHOT_HINT
from slackwater.cuts import CutLog, MarkerStoreUnavailableError, RedisMarkerStore, StoreFault
from slackwater.engine.state.manifest import history
from slackwater.kafka.retry import code_of, reason_of
from slackwater.outputs.sink import Waiting
from slackwater.pipeline.change_plan import check_plan
from slackwater.pipeline.checkpoint import FOLDER_HINT, Checkpoint
from slackwater.pipeline.copied_state import EarlierRevisions
from slackwater.pipeline.definition import PipelineDefinition, needed_columns, pipeline_fingerprint, rights_of
from slackwater.pipeline.folder import load_pipeline
from slackwater.pipeline.progress import RunReporter
from slackwater.pipeline.settings import RunSettings, revision_checkpoint
from slackwater.pipeline.sinks import make_sink
from slackwater.pipeline.source_check import (
    CatalogueCheck,
    ConnectorCheck,
    table_findings,
    tables_without_topic,
)
from slackwater.pipeline.spark_home import JAVA_HINT, fault_of_java
from slackwater.protocol import (
    Finding,
    KafkaSettings,
    RedisSettings,
    SlackwaterError,
    SystemClock,
    Verdict,
    format_position,
    hide,
)
from slackwater.protocol.keys import cut_log_topic
from slackwater.protocol.rights import Operation, Resource, Right

ANSWER: Final = timedelta(seconds=5)
"""The time in which each server has to answer."""
_LOG: Final = logging.getLogger(f"{__name__}.librdkafka")
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_FOREVER_MS: Final = 2**31 - 1
"""A time-out that no broker accepts. A broker rejects it after checking the rights, and before any other
effect."""


def examine_run(definition: PipelineDefinition, settings: RunSettings) -> Iterator[Finding]:
    """Yields everything that a run would find, as it is found. Nothing is written."""
    return _DryRun(definition, settings).findings()


class _DryRun:
    def __init__(self, definition: PipelineDefinition, settings: RunSettings) -> None:
        self._definition, self._settings = definition, settings
        self._source, self._servers = definition.source, settings.servers
        self._topics = definition.source_topics
        address = revision_checkpoint(settings.checkpoint, definition.revision)
        self._checkpoint = Checkpoint(address, settings.spark_conf)
        self._query_id: str | None = None
        self._connector = ConnectorCheck.of_run(definition, settings)

    def findings(self) -> Iterator[Finding]:
        kafka = self._servers.kafka
        if self._settings.plan is not None:
            yield from _each("plan", self._of_plan(self._settings.plan))
        yield from _each("checkpoint", self._of_checkpoint())
        if fault := fault_of_java():
            yield Finding("java", Verdict.PROBLEM, fault, JAVA_HINT)
        if self._settings.copy_state_of:
            yield from _each("copied state", self._of_copied_state(self._settings.copy_state_of))
        yield from _each("redis", self._of_redis(self._servers.redis))
        yield from self._of_connector()
        yield from _each("source database", self._of_catalogue(self._settings.source_database))
        admin = AdminClient({**kafka.client_config}, logger=_LOG)
        try:
            known = admin.list_topics(timeout=ANSWER.total_seconds())
        except KafkaException as error:
            text = f"{kafka.bootstrap} did not answer within {ANSWER.seconds} s: {reason_of(error)}"
            hint = "check the address, the security settings and the network"
            yield Finding("brokers", Verdict.PROBLEM, text, hint)
            yield Finding("the rest", Verdict.WARNING, "not checked: source, tables, outputs, name, rights")
            return
        count = len(known.brokers)
        answers = "1 broker answers" if count == 1 else f"{count} brokers answer"
        yield Finding("brokers", Verdict.OK, answers)
        topics = frozenset(known.topics)
        yield from _each("connector", self._of_writers())
        yield from _each(f"source {self._source}", self._of_source(topics))
        yield from self._of_tables(topics)
        yield from _each("outputs", self._of_outputs())
        yield from _each("name", self._of_name())
        yield from _each("rights", self._of_rights())

    def _of_plan(self, path: Path) -> Iterator[Finding]:
        check_plan(self._definition, self._settings)
        yield Finding("plan", Verdict.OK, f"{path} holds")

    def _of_checkpoint(self) -> Iterator[Finding]:
        identity = self._checkpoint.identity()
        self._query_id = identity.query_id if identity else None
        buckets = self._definition.buckets or (identity.buckets if identity else 1)
        definition = replace(self._definition, buckets=buckets)
        self._checkpoint.check(pipeline_fingerprint(definition, self._settings.timeline))
        if fault := self._checkpoint.fault_of_folder():
            yield Finding("checkpoint", Verdict.PROBLEM, fault, FOLDER_HINT)
            return
        beginning = "starts at the beginning of the topics"
        if self._settings.copy_state_of:
            beginning = "starts with a copied state"
        what = "fits the pipeline" if identity else f"is new: the run {beginning}"
        yield Finding("checkpoint", Verdict.OK, f"{self._checkpoint.address} {what}")

    def _of_copied_state(self, folders: Sequence[Path]) -> Iterator[Finding]:
        if history(self._checkpoint.store):
            text = "not checked, because the checkpoint has a state"
        else:
            earlier = EarlierRevisions([*map(load_pipeline, folders)], self._definition, self._settings)
            at = format_position(earlier.check().lsn)
            text = f"the state of {earlier.place} has all rows that the pipeline needs, up to {at}"
        yield Finding("copied state", Verdict.OK, text)

    def _of_redis(self, redis: RedisSettings | None) -> Iterator[Finding]:
        """Asks all that a run asks Redis for; a run does without an answer, but not without the rights."""
        if redis is None:
            yield Finding("redis", Verdict.OK, "not configured: cuts are read from the cut log in Kafka")
            return
        with closing(RedisMarkerStore.connect(redis.url, password=redis.password, timeout=ANSWER)) as store:
            try:
                position = store.position(self._source)
            except MarkerStoreUnavailableError as error:
                if error.fault is StoreFault.REFUSED:
                    raise
                yield Finding("redis", Verdict.WARNING, error.problem, error.hint)
                return
        if position is None:
            text = f"it answers, but has no cut of source {self._source}"
            hint = f"check that it is the Redis of `slackwater sidecar --source {self._source}`"
            yield Finding("redis", Verdict.WARNING, text, hint)
        else:
            yield Finding("redis", Verdict.OK, "it answers")

    def _of_connector(self) -> Iterator[Finding]:
        faults = self._connector.look()
        yield from faults
        if not self._connector.is_known:
            yield unknown_properties(self._source)
        elif not faults:
            yield Finding("connector", Verdict.OK, "it writes values and rows in the expected form")

    def _of_writers(self) -> Iterator[Finding]:
        definition = self._definition
        self._connector.prove(self._servers.kafka, definition.input_topics, needed_columns(definition.plan))
        yield from ()

    def _of_catalogue(self, database: str | None) -> Iterator[Finding]:
        if database is None:
            text = "postgres.url is not set: whether the topics have all rows of the tables is not checked"
            yield Finding("source database", Verdict.OK, text)
            return
        try:
            user = self._settings.source_user
            wrong = CatalogueCheck(self._definition, database, user, self._checkpoint).first_look()
        except psycopg.Error as error:
            reason = hide(" ".join(str(error).split()), (database,))
            yield Finding("source database", Verdict.WARNING, reason, "check postgres.url")
            return
        yield from table_findings(wrong)
        if not wrong:
            text = "nothing keeps rows of the tables from their topics"
            yield Finding("source database", Verdict.OK, text)

    def _of_source(self, topics: Collection[str]) -> Iterator[Finding]:
        kafka, subject, newest = self._servers.kafka, f"source {self._source}", None
        if cut_log_topic(self._source) in topics:
            log = CutLog(self._source, kafka, timeout=ANSWER)
            with closing(log):
                newest = log.newest()
        if newest is None:
            hint = f"start `slackwater sidecar --source {self._source}`"
            yield Finding(subject, Verdict.PROBLEM, "no sidecar has published a cut", hint)
            return
        text = f"newest cut {format_position(newest.cut.lsn)} on timeline {newest.cut.timeline}"
        yield Finding(subject, Verdict.OK, text)
        for table in self._definition.tables:
            if self._topics.data(table) in newest.cut.without_snapshot:
                text = "it has had no complete snapshot, so nothing of it is shown"
                yield Finding(f"table {table}", Verdict.PROBLEM, text, SNAPSHOT_HINT)

    def _of_tables(self, known: Collection[str]) -> Iterator[Finding]:
        verdict = Verdict.WARNING if self._settings.allow_missing_tables else Verdict.PROBLEM
        missing = tables_without_topic(self._definition.tables, self._topics, known)
        for table in self._definition.tables:
            if table in missing:
                yield Finding(f"table {table}", verdict, *missing[table])
            else:
                yield Finding(f"table {table}", Verdict.OK, f"topic {self._topics.data(table)}")

    def _of_outputs(self) -> Iterator[Finding]:
        stop = threading.Event()
        enough = threading.Timer(ANSWER.total_seconds(), stop.set)
        sink = make_sink(self._definition, self._settings, waiting=Waiting(stop))
        enough.start()
        try:
            sink.check(self._query_id)
        finally:
            enough.cancel()
            sink.close()
        names = ", ".join(dict.fromkeys(output.name for output in self._definition.outputs))
        yield Finding("outputs", Verdict.OK, f"{names} in {sink.place}")

    def _of_name(self) -> Iterator[Finding]:
        definition, address = self._definition, self._checkpoint.address
        with closing(RunReporter.connect(definition, self._settings, address, SystemClock())) as reporter:
            reporter.check(self._query_id, makes_topic=False)
        yield Finding("name", Verdict.OK, f"no other checkpoint has the name {definition.name}")

    def _of_rights(self) -> Iterator[Finding]:
        """Compares the rights that the brokers give with those that a run needs."""
        missing, absent = ask_for_rights(self._servers.kafka, rights_of(self._definition), ANSWER)
        if missing:
            text = f"the brokers do not allow: {'; '.join(map(str, missing))}"
            hint = "`slackwater acl pipeline` prints the ACLs for the user of the run"
            yield Finding("rights", Verdict.PROBLEM, text, hint)
        else:
            made = f"; it creates {', '.join(absent)}" if absent else ""
            yield Finding("rights", Verdict.OK, f"the brokers allow what a run does{made}")


def _each(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yields findings; an error in the search for them is one, too, and ends it."""
    try:
        yield from findings
    except KafkaException as error:
        yield Finding(subject, Verdict.PROBLEM, reason_of(error))
    except (SlackwaterError, OSError) as error:
        hint = getattr(error, "hint", "")
        yield Finding(subject, Verdict.PROBLEM, getattr(error, "problem", "") or str(error), hint)


def ask_for_rights(
    kafka: KafkaSettings, rights: Iterable[Right], patience: timedelta
) -> tuple[list[Right], list[str]]:
    """Asks the brokers for rights without changing anything; an active run is not affected.

    For a topic that does not exist, it cannot be determined whether it may be read or written. These two
    rights are only reported as missing if both are. The rights are on names, not on prefixes; `patience` is
    the time-out of each of a few requests.

    Returns:
        The rights that they do not give, and the topics that do not exist and that may be created.

    Raises:
        KafkaException: The brokers do not answer.
    """
    admin = AdminClient({**kafka.client_config}, logger=_LOG)
    by_name: dict[Resource, dict[str, list[Right]]] = {each: {} for each in Resource}
    for right in rights:
        by_name[right.resource].setdefault(right.name, []).append(right)
    topics = _Topics(admin, by_name[Resource.TOPIC], patience)
    missing = topics.missing()
    for name, wanted in by_name[Resource.TRANSACTIONAL_ID].items():
        if not _may_write_as(kafka, name, patience):
            missing += wanted
    return sorted(missing), sorted(topics.absent)


class _Topics:
    """What brokers report about topics. If a topic is not shown, each right is requested separately."""

    def __init__(self, admin: AdminClient, wanted: Mapping[str, list[Right]], patience: timedelta) -> None:
        self._admin, self._wanted, self._seconds = admin, wanted, patience.total_seconds()
        self.absent: list[str] = []

    def missing(self) -> list[Right]:
        """Returns the rights that are not given."""
        if not self._wanted:
            return []
        shown = self._admin.describe_topics(
            TopicCollection(list(self._wanted)),
            include_authorized_operations=True,
            request_timeout=self._seconds,
        )
        found: list[Right] = []
        refused: list[Right] = []
        unseen: set[str] = set()
        for name, answer in shown.items():
            try:
                allowed = answer.result().authorized_operations
            except KafkaException as error:
                unseen.add(name)
                if _is_refusal(error):  # who may read or write a topic is shown it
                    refused += self._those(name, Operation.READ, Operation.WRITE, Operation.DESCRIBE)
                elif code_of(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                elif self._those(name, Operation.CREATE):
                    self.absent.append(name)
                continue
            if allowed is not None:
                found += [
                    right
                    for right in self._wanted[name]
                    if right.operation is not Operation.CREATE
                    and AclOperation[right.operation.name] not in allowed
                ]
        return found + refused + self._of_unseen(sorted(unseen))

    def _those(self, name: str, *operations: Operation) -> list[Right]:
        return [right for right in self._wanted[name] if right.operation in operations]

    def _of_unseen(self, names: Sequence[str]) -> list[Right]:
        """Requests what would be refused; nothing is created or changed."""
        admin, seconds = self._admin, self._seconds
        entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)

        def topic(name: str, *changes: ConfigEntry) -> ConfigResource:
            return ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(changes))

        found = []
        asks: dict[Operation, Callable[[list[str]], Mapping[Any, Future[Any]]]] = {
            Operation.CREATE: lambda names: admin.create_topics(
                [NewTopic(name, 1, -1) for name in names], validate_only=True, request_timeout=seconds
            ),
            Operation.DESCRIBE_CONFIGS: lambda names: admin.describe_configs(
                list(map(topic, names)), request_timeout=seconds
            ),
            Operation.ALTER_CONFIGS: lambda names: admin.incremental_alter_configs(
                [topic(name, entry) for name in names], validate_only=True, request_timeout=seconds
            ),
        }
        for operation, ask in asks.items():
            rights = [right for name in names for right in self._those(name, operation)]
            if rights:
                answers = ask([right.name for right in rights])
                refused = {getattr(key, "name", key) for key, answer in answers.items() if _refuses(answer)}
                found += [right for right in rights if right.name in refused]
        return found


def _may_write_as(kafka: KafkaSettings, transactional_id: str, patience: timedelta) -> bool:
    producer = Producer(
        {**kafka.client_config, "transactional.id": transactional_id, "transaction.timeout.ms": _FOREVER_MS},
        logger=_LOG,
    )
    try:
        producer.init_transactions(patience.total_seconds())
    except KafkaException as error:
        if code_of(error) == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return True
        if _is_refusal(error):
            return False
        raise
    return True


def _refuses(answer: "Future[Any]") -> bool:
    """Returns whether a right is missing. Other errors will appear when the right is used."""
    try:
        answer.result()
    except KafkaException as error:
        return _is_refusal(error)
    return False


def _is_refusal(error: KafkaException) -> bool:
    return code_of(error) in _REFUSED
