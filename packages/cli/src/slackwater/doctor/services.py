"""Connections that examining and deciding need."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from slackwater.conversion import kafka_options, sidecar_settings, source_topics
from slackwater.doctor.examination import Sources
from slackwater.doctor.kafka import KafkaProbe
from slackwater.invocation import required
from slackwater.settings import Settings
from slackwater_markers import KafkaCutLog, RedisMarkerStore
from slackwater_protocol import SourceTopics, SystemClock
from slackwater_protocol.keys import cut_log_topic

_TIMEOUT = timedelta(seconds=5)


@contextmanager
def open_sources(settings: Settings, source: str) -> Iterator[Sources]:
    """Where the facts about a source come from; nothing is asked yet.

    Raises:
        MissingSettingError: brokers or Redis were not given.
    """
    url = required(settings.redis.full_url(), "redis.url", "--redis-url", "where the sidecar publishes")
    followed = sidecar_settings(settings, source)
    kafka = kafka_options(settings)
    store = RedisMarkerStore.connect(url, timeout=_TIMEOUT)
    log = KafkaCutLog(source, followed.bootstrap, kafka=kafka, timeout=_TIMEOUT)
    topics = source_topics(settings, source)
    try:
        yield Sources(
            topics=topics,
            evidence=followed.evidence,
            tables=followed.tables or frozenset(),
            store=store,
            log=log,
            probe=lambda: KafkaProbe(
                followed.bootstrap, kafka, topics, _data_topics(topics, followed.tables)
            ),
            clock=SystemClock(),
        )
    finally:
        log.close()
        store.close()


def _data_topics(topics: SourceTopics, tables: frozenset[str] | None) -> Callable[[str], bool]:
    """Which topics hold rows: those of the tables, or everything named like one."""
    if tables is not None:
        return frozenset(map(topics.data, tables)).__contains__
    others = {topics.transactions, topics.notifications, cut_log_topic(topics.source)}
    routed = frozenset(topics.routed.values())
    named = re.compile(re.escape(topics.source) + r"\.[^.]+\.[^.]+").fullmatch
    return lambda topic: topic in routed or (topic not in others and named(topic) is not None)
