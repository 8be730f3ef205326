"""Watches the connector of a source from outside its records: Kafka Connect, heartbeats, the slot."""

import logging
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # public in confluent_kafka.admin, but not typed so
from confluent_kafka.admin._resource import ResourceType

from slackwater.cdc.catalogue import source_findings
from slackwater.cdc.connector import property_findings, replication_name
from slackwater.command.connect_rest import ConnectRest
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import ABSENT_CODES, is_transient
from slackwater.observe.repeating import Repeating
from slackwater.protocol import (
    HIDDEN,
    Clock,
    ConnectorReport,
    Finding,
    KafkaSettings,
    SlackwaterError,
    SlotReport,
    SystemClock,
    TaskReport,
    Verdict,
    epoch_ms,
    hide,
    secret_options,
)
from slackwater_sidecar.reader import admin_config, data_topics
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 2.0
_NEWS_INTERVAL_SECONDS = 1.0
"""The interval while something has just changed: it may pass, or is to be named soon."""
_NEWS_MS = 4_000
_TIMEOUT = timedelta(seconds=2)
"""The longest time that one question may take: a stop waits for it, and faults are named within ten s."""
_SIGN_OF_LIFE_SECONDS = 1.5
"""The longest time for the first question to the database, which needs no table. A server that hangs is named
after the next look, whose connection fails."""
_LONGEST_LOOK_SECONDS = 3.0
"""The longest time for all other questions to the database."""
_LOOKS_PER_FINDING = 5
_LOOKS_THAT_COUNT = 3
"""What is the same in this many checks does not pass by itself."""
_MOST_LOOKS = 10
_HEARTBEATS = 6
"""The number of newest heartbeats whose median distance is taken as the interval."""
_ENOUGH = 3
"""Fewer distances say nothing: a connector that starts writes one heartbeat sooner."""

_DELETE_ONLY = (
    "set cleanup.policy=delete (topic.creation.*.cleanup.policy in the connector's configuration), then take "
    "a new snapshot into new topics (a connector with another topic.prefix)"
)

Watched = Mapping[str, Any]
"""Some fields of a :class:`~slackwater.protocol.ConnectorReport`."""


class Witness(ABC):
    """Observes one aspect of a connector. Used by one thread; may block for two seconds; never raises."""

    _was_refused = False

    @abstractmethod
    def look(self, report: ConnectorReport) -> Watched:
        """Returns what it has seen now, given what others have seen in the same look."""

    def close(self) -> None:  # noqa: B027 - most have none
        """Frees connections."""

    def _note_refusal(self, what: str, error: KafkaError, right: str, topic: str) -> None:
        """Logs once that a right is missing."""
        if not self._was_refused:
            self._was_refused = True
            hint = "`slackwater acl sidecar` prints all rights"
            logger.warning("%s: %s. Grant %s on topic %s (%s)", what, error.str(), right, topic, hint)


class ConnectorWatch(Repeating):
    """Looks at a connector every two seconds, and every second after a change; keeps the newest report.

    Witnesses are asked in their order.
    """

    def __init__(self, source: str, witnesses: Sequence[Witness], clock: Clock) -> None:
        super().__init__(f"slackwater-watch-{source}", self.look, _INTERVAL_SECONDS, is_prompt=True)
        self.report: ConnectorReport | None = None
        """What was seen last, replaced as a whole; None before the first look."""
        self._witnesses = witnesses
        self._clock = clock
        self._began = clock.monotonic()

    def run(self) -> None:
        """Looks until :meth:`close` is called."""
        super().run()
        self.end()

    def settled(self, is_wrong: Callable[[ConnectorReport], bool]) -> ConnectorReport:
        """Looks until nothing is wrong, or the same is wrong at three looks; for callers without its thread.

        What counts as wrong only after a while is checked again until then, at most ten times.
        """
        report, looks, same = self.look(), 1, 1
        while looks < _MOST_LOOKS and (same < _LOOKS_THAT_COUNT or not is_wrong(report)):
            if not is_wrong(replace(report, since_ms=0)):
                break
            self._over.wait(self.pause_seconds())
            before, report = report, self.look()
            looks, same = looks + 1, same + 1 if before.trouble == report.trouble else 1
        return report

    def pause_seconds(self) -> float:
        """Returns how long to wait for the next look, which follows at once if the last one took longer."""
        is_new = self.report is not None and self.report.read_ms - self.report.since_ms < _NEWS_MS
        interval = _NEWS_INTERVAL_SECONDS if is_new else _INTERVAL_SECONDS
        return max(0.0, interval - (self._clock.monotonic() - self._began))

    def end(self) -> None:
        """Frees connections; for the thread that looks."""
        for witness in self._witnesses:
            witness.close()

    def look(self) -> ConnectorReport:
        """Asks every witness once, and returns their findings."""
        now_ms, self._began = epoch_ms(self._clock.now()), self._clock.monotonic()
        seen = ConnectorReport(read_ms=now_ms, since_ms=now_ms)
        for witness in self._witnesses:
            seen = replace(seen, **witness.look(seen))
        before = self.report
        if before is not None and before.trouble == seen.trouble:
            # The clock may be set back. What was the same for the whole of this look has lasted until now.
            since_ms = min(before.since_ms, now_ms)
            seen = replace(seen, since_ms=since_ms, read_ms=max(now_ms, epoch_ms(self._clock.now())))
        self.report = seen
        return seen

    def close(self, patience_seconds: float | None = 0.0) -> None:
        """Ends the watch without waiting, because a look may take seconds."""
        super().close(patience_seconds)


class ConnectWitness(Witness):
    """Observes what Kafka Connect reports of the connector."""

    def __init__(self, source: str, rest: ConnectRest) -> None:
        self._source = source
        self._rest = rest
        self._name: str | None = None
        self._was_seen = False

    def look(self, report: ConnectorReport) -> Watched:
        """See the base; without Kafka, a cluster of Kafka Connect may not answer either."""
        if report.kafka_error:
            return {}
        try:
            return self._ask(has_heartbeats=report.heartbeat_ms is not None)
        except SlackwaterError as error:
            return {"connect_error": error.problem}

    def _ask(self, *, has_heartbeats: bool) -> Watched:
        self._name = self._name or self._rest.name_of(self._source)
        status = None if self._name is None else self._rest.status(self._name)
        properties = None if self._name is None else self._rest.properties(self._name)
        if self._name is None or status is None or properties is None:
            self._name = None
            return {"state": "ABSENT"} if self._was_seen or has_heartbeats else {}
        self._was_seen = True
        secrets = secret_options(properties)
        return {
            "name": self._name,
            "state": status["connector"]["state"],
            "error": _first_line(status["connector"], secrets),
            "tasks": tuple(
                TaskReport(number=task["id"], state=task["state"], error=_first_line(task, secrets))
                for task in status["tasks"]
            ),
            "properties": {
                name: HIDDEN if value in secrets else hide(value, secrets)
                for name, value in properties.items()
            },
            "findings": tuple(property_findings(properties)),
        }


class HeartbeatWitness(Witness):
    """Observes whether Kafka answers, and when the connector wrote its newest heartbeat."""

    def __init__(self, source: str, reader: TopicReader, clock: Clock) -> None:
        self._topic = f"__debezium-heartbeat.{source}"
        self._reader = reader
        self._clock = clock
        self._newest: int | None = None
        """The offset of the newest heartbeat that was seen."""
        self._seen: dict[str, int] = {}

    def look(self, report: ConnectorReport) -> Watched:
        """See the base."""
        try:
            self._take(self._reader.newest((self._topic, 0), _HEARTBEATS))
        except KafkaException as error:
            self._note(error.args[0])
            if is_transient(error.args[0]) and error.args[0].code() not in ABSENT_CODES:
                return {**self._seen, "kafka_error": error.args[0].str()}
        return self._seen

    def close(self) -> None:
        """See the base."""
        self._reader.close()

    def _take(self, found: Sequence[Message]) -> None:
        """Takes the newest heartbeats: one that comes while this watches was written now, by this clock."""
        if not found or found[-1].offset() == self._newest:
            return
        written_ms, now_ms = [message.timestamp()[1] for message in found], epoch_ms(self._clock.now())
        self._seen = {"heartbeat_ms": min(now_ms, written_ms[-1]) if self._newest is None else now_ms}
        self._newest = found[-1].offset()
        distances = [later - earlier for earlier, later in pairwise(written_ms)]
        if len(distances) >= _ENOUGH:
            self._seen["heartbeat_interval_ms"] = int(max(0, median(distances)))

    def _note(self, error: KafkaError) -> None:
        """Forgets the heartbeats if they may not be read: a connector is not silent because of that."""
        if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            logger.debug("heartbeats cannot be read: %s", error)
            return
        self._newest, self._seen = None, {}
        what = "the heartbeats of the connector are not watched"
        self._note_refusal(what, error, "Read", self._topic)


class HeldFindings:
    """Findings that take long to get: every fifth look searches for them, and those in between repeat them.

    After an error of ``find``, which is passed on, the next look tries again.
    """

    def __init__(self, find: Callable[..., Iterable[Finding]]) -> None:
        self._find = find
        self._until_next = 0
        self.found: tuple[Finding, ...] = ()
        """What was found last."""

    def __call__(self, *args: object) -> tuple[Finding, ...]:
        """Returns what is wrong, as of the last five looks."""
        if self._until_next == 0:
            self.found = tuple(self._find(*args))
        self._until_next = (self._until_next or _LOOKS_PER_FINDING) - 1
        return self.found


class TopicsWitness(Witness):
    """Observes which topics of the source lose records by compaction."""

    def __init__(self, is_followed: Callable[[str], bool], admin: AdminClient) -> None:
        self._is_followed = is_followed
        self._admin = admin
        self._held = HeldFindings(self._compacted)

    def look(self, report: ConnectorReport) -> Watched:
        """See the base; what was seen stays while Kafka is away."""
        if not report.kafka_error:
            try:
                self._held()
            except (KafkaException, TimeoutError) as error:
                logger.debug("the topics do not answer: %r", error)  # the heartbeats' witness says so
        return {"findings": (*report.findings, *self._held.found)}

    def _compacted(self) -> Iterator[Finding]:
        seconds = _TIMEOUT.total_seconds() / 2
        topics = sorted(filter(self._is_followed, self._admin.list_topics(timeout=seconds).topics))
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        answers = self._admin.describe_configs(resources, request_timeout=seconds) if resources else {}
        for resource, answer in answers.items():
            try:
                policy = str(answer.result(seconds)["cleanup.policy"].value)
            except KafkaException as error:
                found = error.args[0]
                if found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    what = "whether topics are compacted is not watched"
                    self._note_refusal(what, found, "DescribeConfigs", resource.name)
                elif found.code() not in ABSENT_CODES:
                    raise
                continue
            if "compact" in policy:
                text = (
                    f"cleanup.policy is {policy}, but has to be delete: compaction removes changes of "
                    "earlier transactions, so that readers see only a part of them"
                )
                yield Finding(f"topic {resource.name}", Verdict.FAULT, text, _DELETE_ONLY)


_SLOT = """
SELECT active OR EXISTS (
    SELECT FROM pg_catalog.pg_stat_activity a
    WHERE a.datname = s.database AND a.application_name LIKE 'Debezium%%' AND a.backend_xmin IS NOT NULL
), coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
    restart_lsn), 0)::bigint
FROM pg_catalog.pg_replication_slots s WHERE slot_name = %s
"""
"""A slot is not read during the snapshot that precedes: the connector then holds a transaction open."""

_UPTIME = """
SELECT (1000 * extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()))::bigint
"""
CatalogueFindings = Callable[[Any, ConnectorReport], Iterable[Finding]]
"""Returns what is wrong with the catalogue, given psycopg's connection and what is known of the connector."""


class DatabaseWitness(Witness):
    """Observes whether the database answers, the connector's replication slot, and the catalogue.

    ``findings`` returns what is wrong with the catalogue.
    """

    def __init__(self, source: str, url: str, findings: CatalogueFindings = lambda *_: ()) -> None:
        self._source = source
        self._url = url
        self._findings = findings
        self._connection: Any = None
        self._was_away = False
        self._back_ms = 0

    def look(self, report: ConnectorReport) -> Watched:
        """See the base."""
        import psycopg  # an extra

        try:
            connection = self._connected()
            with _disconnected_after(connection, _SIGN_OF_LIFE_SECONDS):
                since_ms = self._since(connection, report)
            with _disconnected_after(connection, _LONGEST_LOOK_SECONDS):
                return {
                    "database_since_ms": since_ms,
                    "slot": self._slot(connection, report),
                    "findings": (*report.findings, *self._findings(connection, report)),
                }
        except psycopg.Error as error:
            self.close()
            self._was_away = True
            return {"database_error": hide(" ".join(str(error).split()), [self._url])}

    def close(self) -> None:
        """See the base."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Any:
        import psycopg

        if self._connection is None:
            seconds = int(_TIMEOUT.total_seconds())
            options = f"-c statement_timeout={1000 * seconds}"
            self._connection = psycopg.connect(
                self._url, connect_timeout=seconds, autocommit=True, options=options, tcp_user_timeout=4000
            )
        return self._connection

    def _since(self, connection: Any, report: ConnectorReport) -> int:
        """Returns since when the database has answered, as far as it and this witness know."""
        if self._was_away:
            self._was_away, self._back_ms = False, report.read_ms
        (uptime_ms,) = connection.execute(_UPTIME).fetchone()
        return int(max(self._back_ms, report.read_ms - uptime_ms))

    def _slot(self, connection: Any, report: ConnectorReport) -> SlotReport:
        name = report.properties.get("slot.name") or replication_name(self._source)
        found = connection.execute(_SLOT, [name]).fetchone()
        if found is None:
            return SlotReport(name=name, exists=False)
        active, wal_status, retained = found
        return SlotReport(
            name=name, exists=True, is_active=active, wal_status=wal_status, retained_bytes=max(0, retained)
        )


@contextmanager
def _disconnected_after(connection: Any, seconds: float) -> Iterator[None]:
    """Ends the connection if the block takes longer, because a server that hangs keeps no time-out."""

    def end() -> None:
        with suppress(OSError):  # the server was faster
            ended.shutdown(socket.SHUT_RDWR)

    ended = socket.socket(fileno=os.dup(connection.fileno()))
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        ended.close()


def watch_connector(settings: SidecarSettings, clock: Clock) -> ConnectorWatch:
    """Returns the watch of a source's connector, as far as the settings say where to look."""
    witnesses = _asked(
        settings.source, settings.servers.kafka, settings.connect_url, settings.database_url, clock
    )
    followed, transactions = data_topics(settings), settings.source_topics.transactions
    topics = TopicsWitness(
        lambda topic: topic == transactions or followed(topic),
        AdminClient(admin_config(settings), logger=logger),
    )
    return ConnectorWatch(settings.source, [*witnesses, topics], clock)


def connector_now(
    source: str,
    kafka: KafkaSettings | None,
    connect_url: str,
    database_url: str | None,
    is_wrong: Callable[[ConnectorReport], bool],
) -> ConnectorReport:
    """Looks at the connector of a source and its slot: once if all is well, else again and again for a while.

    Kafka and the database are asked as far as they are given. ``is_wrong`` says of a report whether
    something is wrong, given since when it has been so.
    """
    clock = SystemClock()
    watch = ConnectorWatch(source, [*_asked(source, kafka, connect_url, database_url, clock)], clock)
    try:
        return watch.settled(is_wrong)
    finally:
        watch.end()


def _asked(
    source: str, kafka: KafkaSettings | None, connect_url: str | None, database_url: str | None, clock: Clock
) -> Iterator[Witness]:
    if kafka is not None:
        config: dict[str, str | int | float | bool] = {
            "group.id": "slackwater-sidecar",
            "reconnect.backoff.max.ms": 1_000,
            **kafka.client_config,
        }
        yield HeartbeatWitness(source, TopicReader(config, _TIMEOUT.total_seconds(), clock=clock), clock)
    if connect_url is not None:
        yield ConnectWitness(source, ConnectRest(connect_url, _TIMEOUT))
    if database_url is not None:
        catalogue = HeldFindings(
            lambda database, report: source_findings(database, source, report.properties)
        )
        yield DatabaseWitness(source, database_url, catalogue)


def _first_line(part: Mapping[str, Any], secrets: frozenset[str]) -> str:
    return hide(next(iter(str(part.get("trace") or "").splitlines()), ""), secrets)
