"""Writes the commit records of a source in Avro: one for each cut of its log, in order, each once."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import zip_longest

from confluent_kafka import KafkaException

from slackwater.cdc.avro import HEADER_BYTES
from slackwater.cdc.commit_avro import decode_commit_avro, encode_commit_avro
from slackwater.cuts import CutLog
from slackwater.kafka.registry import Schema, SchemaKind, SchemaRegistry, subject, wire_header
from slackwater.kafka.retry import NeededRights
from slackwater.kafka.topic import LogTopic
from slackwater.kafka.transactions import KafkaTransactions, is_fenced
from slackwater.protocol import (
    CommitRecord,
    ConfigError,
    Cut,
    OffsetRange,
    OvertakenError,
    PublishedCut,
    SchemaLanguage,
    SlackwaterError,
    SourceTopics,
    StateError,
    UnavailableError,
    commit_schema,
    hide,
)
from slackwater.protocol.keys import (
    HEADER_COMMIT_LSN,
    HEADER_CUT,
    HEADER_PIPELINE,
    avro_commit_topic,
    commit_writer_id,
)
from slackwater_sidecar.settings import SidecarSettings

logger = logging.getLogger(__name__)

PATIENCE = timedelta(seconds=10)
"""A sidecar that was fenced takes over again when a cut has had no record for this long, at least."""
_LOOK_SECONDS = 1.0
_TIMEOUT = timedelta(seconds=30)
_MOST_CUTS = 500
"""The most cuts whose records are written in one Kafka transaction."""
_TOPIC_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_KEEP_ALL = (
    "keep this topic and the cut log forever; if the topic is deleted, it is written again from the log"
)


class SourceCommits(threading.Thread):
    """Follows the cut log in a thread of its own, so that neither a registry nor this topic holds up cuts.

    Each record is written in a Kafka transaction and names the offset of its cut, where the next writer
    continues. All sidecars of a source have the same transactional id: the one that began last writes, and
    the others wait until nothing more is written.
    """

    def __init__(self, settings: SidecarSettings) -> None:
        super().__init__(name=f"commits-{settings.source}", daemon=True)
        self._settings, self._name = settings, avro_commit_topic(settings.source)
        self._stop_event = threading.Event()
        self.trouble = ""
        """Why records cannot be written at present; empty if they can."""
        self.news = threading.Event()
        """Set it when the log has a new cut; otherwise the thread reads the log once a second."""
        self.error: BaseException | None = None
        """The error that has ended the thread, which does not pass by itself."""

    def run(self) -> None:
        """Writes until it is closed."""
        begin = b""
        try:
            while not self._stop_event.is_set():
                try:
                    begin = begin or self._registered()
                    self._write(begin)
                except UnavailableError as error:
                    self._note(f"commit records are not written: {error}")
                    self._stop_event.wait(_LOOK_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised by the thread of the source
            self.error = error

    def close(self) -> None:
        """Asks the thread to end, and waits for a moment. What was not written is written by the next one."""
        self._stop_event.set()
        self.news.set()
        self.join(_LOOK_SECONDS / 2)

    def _note(self, trouble: str) -> None:
        trouble = hide(trouble, self._settings.servers.secrets)
        if trouble and trouble != self.trouble:
            logger.warning("%s", trouble, extra={"source": self._settings.source})
        self.trouble = trouble

    def _registered(self) -> bytes:
        """Registers the schema; returns the beginning of values."""
        registry = self._settings.servers.registry
        if registry is None:
            problem = f"topic {self._name!r} needs a schema registry, but none is configured"
            raise ConfigError(problem, "set registry.url (SLACKWATER_REGISTRY_URL)")
        schema = Schema(SchemaKind.AVRO, commit_schema(SchemaLanguage.AVRO))
        return wire_header(SchemaRegistry(registry).register(subject(self._name, of_keys=False), schema))

    def _write(self, begin: bytes) -> None:
        """Fences earlier writers and writes until it is fenced and may take over again."""
        settings, kafka = self._settings, self._settings.servers.kafka
        seconds = _TIMEOUT.total_seconds()
        topic = LogTopic(self._name, kafka.client_config, seconds, reading={}, writing={})
        with closing(topic), closing(CutLog(settings.source, kafka, timeout=_TIMEOUT)) as log:
            topic.create(settings.replication_factor, _TOPIC_CONFIG)
            topic.reader.expected.add(self._name)
            writer = _Writer(settings)
            try:
                writer.open()
                self._follow(log, writer, _resumed(log, topic), begin)
            except OvertakenError:
                logger.info("another sidecar writes commit records", extra={"source": settings.source})
                self._stand_by(log, topic)
            finally:
                writer.discard()

    def _follow(self, log: CutLog, writer: "_Writer", newest: PublishedCut | None, begin: bytes) -> None:
        """Writes the records of all cuts after the newest one that has one."""
        log_offset, before = (-1, None) if newest is None else (newest.log_offset, newest.cut)
        while not self._stop_event.is_set():
            self._note("")
            self.news.clear()
            found = log.tail(log_offset, limit=_MOST_CUTS)
            before = writer.write(found, before, begin)
            if found:
                log_offset = found[-1].log_offset
            else:
                self.news.wait(_LOOK_SECONDS)

    def _stand_by(self, log: CutLog, topic: LogTopic) -> None:
        """Waits until a cut has had no record for a while: the sidecar that wrote them is gone."""
        seen = _resumed(log, topic)
        while not self._stop_event.wait(PATIENCE.total_seconds()):
            before, seen, newest = seen, _resumed(log, topic), log.newest()
            is_behind = newest is not None and (seen is None or seen.cut.position < newest.cut.position)
            if is_behind and seen == before:
                return


class _Writer(KafkaTransactions):
    """Writes commit records, those of several cuts in one Kafka transaction."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._id, self._topics = commit_writer_id(settings.source), settings.source_topics
        kafka = settings.servers.kafka
        super().__init__(kafka, self._id, transaction_timeout=2 * _TIMEOUT, request_timeout=_TIMEOUT)

    def write(self, found: Sequence[PublishedCut], before: Cut | None, begin: bytes) -> Cut | None:
        """Writes the records of cuts that follow another one; returns the last cut that has a record.

        Cuts that another sidecar has written again are left out.

        Raises:
            StateError: A cut in between is missing.
        """
        records = []
        for published in found:
            cut = published.cut
            if before is None or cut.position > before.position:
                records.append((published.log_offset, *commit_of_cut(cut, before, self._topics)))
                before = cut
        if records:
            self.begin()
            for log_offset, record, count in records:
                headers = [
                    (HEADER_COMMIT_LSN, str(record.commit_lsn).encode()),
                    (HEADER_PIPELINE, record.pipeline.encode()),
                    (HEADER_CUT, str(log_offset).encode()),
                ]
                value = begin + encode_commit_avro(record, count)
                self.produce(avro_commit_topic(record.source), None, value, [*headers], None)
            self.commit()
        return before

    def _meaning(self, what: str, error: KafkaException) -> SlackwaterError:
        reason, topic = error.args[0], avro_commit_topic(self._topics.source)
        problem = f"{what} for topic {topic} failed: {reason.str()} ({reason.name()})"
        if is_fenced(reason):
            return OvertakenError(problem, "another sidecar of the source writes its commit records")
        needed = NeededRights(
            user="the sidecar's user",
            on_topics=f"Create, Read and Write on topic {topic}",
            on_id=f"Write on the transactional id {self._id!r}",
        )
        return UnavailableError(problem, needed.advice(reason) or "check that the brokers can be reached")


def commit_of_cut(cut: Cut, before: Cut | None, topics: SourceTopics) -> tuple[CommitRecord, int]:
    """Returns the commit record of a cut, given the cut before, and the number of its change events.

    In each partition, it begins at the end offset of the cut before.

    Raises:
        StateError: A cut in between is missing.
    """
    if before is not None and cut.timeline == before.timeline and cut.previous_lsn > before.lsn:
        problem = f"the cut log of source {cut.source!r} has no cut between {before.position} and"
        raise StateError(f"{problem} {cut.position}, so commit records cannot continue", _KEEP_ALL)
    starts: Mapping[str, Sequence[int]] = {} if before is None else before.end_offsets
    offsets = {}
    for topic, ends in cut.end_offsets.items():
        spans = enumerate(zip_longest(starts.get(topic, ()), ends, fillvalue=0))
        offsets[topic] = {n: OffsetRange(0, start, end - 1) for n, (start, end) in spans if start < end}
    tables: dict[str, tuple[str, ...]] = {}
    for table, topic in topics.routed.items():
        tables[topic] = (*tables.get(topic, ()), f"{topics.source}.{table}.Envelope")
    record = CommitRecord(
        pipeline=cut.source,
        source=cut.source,
        timeline=cut.timeline,
        commit_lsn=cut.lsn,
        previous_lsn=cut.previous_lsn,
        xid=None,
        commit_ts_ms=cut.commit_ts_ms,
        offsets={topic: ranges for topic, ranges in offsets.items() if ranges},
        schemas={topic: tables.get(topic, (f"{topic}.Envelope",)) for topic in offsets},
    )
    return record, cut.event_count - (0 if before is None else before.event_count)


def _resumed(log: CutLog, topic: LogTopic) -> PublishedCut | None:
    """Returns the cut of the newest commit record; None if there has never been one."""
    with topic.guarded("read"):
        found = topic.reader.newest(topic.place)
    if not found:
        if topic.bounds(may_vanish=False)[0] or log.begin():
            raise StateError(f"topic {topic.name!r} or the cut log has lost records", _KEEP_ALL)
        return None
    offset = dict(found[0].headers() or ()).get(HEADER_CUT)
    if offset is not None:
        _, position = decode_commit_avro((found[0].value() or b"")[HEADER_BYTES:])
        for published in log.read_range(int(offset), int(offset) + 1):
            if published.cut.position == position:
                return published
    problem = (
        f"topic {topic.name!r}: the newest record, at offset {found[0].offset()}, is not of a cut of the log"
    )
    raise StateError(problem, _KEEP_ALL)
