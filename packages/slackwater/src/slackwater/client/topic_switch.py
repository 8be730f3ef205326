"""Switches the readers of output topics from one revision of a pipeline to another.

A switch consists of one record in the topic of the pipeline's readers; the newest record counts. It is
written in one Kafka transaction under a transactional id that only switches use, so if two processes switch
at once, the second one fences the first. A process that is killed has written the record or not.
"""

from contextlib import ExitStack, closing
from datetime import timedelta

from slackwater.client.broker import Broker, ProducerSettings
from slackwater.client.followed import never_switched, switch_log
from slackwater.client.kafka import KafkaBroker
from slackwater.client.snapshot import repeated
from slackwater.client.switched import Switch, Switched, Views, base_name
from slackwater.client.topic_views import TopicOutput
from slackwater.protocol import (
    Clock,
    KafkaSettings,
    ReaderSwitch,
    SystemClock,
    encode_reader_switch,
)
from slackwater.protocol.keys import readers_topic

_MAX_BYTES = 64 << 20
_TRANSACTION = timedelta(seconds=10)
"""How long a switch that was killed halfway delays readers and other switches."""


def switch_topics(
    kafka: KafkaSettings | Broker,
    pipeline: str,
    revision: int,
    views: Views,
    *,
    accept_earlier: bool = False,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
) -> Switched:
    """Switches the readers of a pipeline to the topics of a revision, from one commit on.

    It waits until the revision has caught up with the one that is read now, and both have ended a batch at
    one commit. Repeating the call changes nothing.

    Args:
        kafka: The brokers; in tests any :class:`~slackwater.client.broker.Broker`.
        pipeline: The name with the revision.
        revision: The number of the revision.
        views: The topic of each view.
        accept_earlier: Also switch to a revision that is behind; readers then wait until it has caught up.
        source: The source at the beginning of a chain, if the revisions read different revisions of an output
            and both have the commits of that source. None: both read the same source.
        timeout: How long to wait.

    Raises:
        ConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source.
        NotVisibleError: The revision was still behind at the end; nothing was changed.
        StateNotKeptError: The revisions have no commit in common at which both ended a batch; nothing was
            changed.
        OvertakenError: Another process switches at the same time; nothing was changed.
        UnavailableError: Kafka does not answer, or rejects a request.
        OutcomeUnknownError: It is not known whether the switch was committed; call again.
    """
    switch = Switch(
        pipeline=pipeline, revision=revision, views=views, accept_earlier=accept_earlier, source=source
    )
    clock, base = SystemClock(), base_name(pipeline)
    broker = _broker(kafka, base)
    topic = readers_topic(base)
    broker.ensure_topic(topic, 1, exactly=True)
    with ExitStack() as opened:
        writer = broker.writer(topic, ProducerSettings(transaction_timeout=_TRANSACTION))
        opened.callback(writer.discard)
        writer.open()
        before = newest_switch(broker, base, clock)
        new = opened.enter_context(closing(TopicOutput(broker, pipeline, clock)))
        old = opened.enter_context(closing(TopicOutput(broker, before.pipeline, clock))) if before else None
        done, record = repeated(lambda: switch.attempt(before, old, new, clock), timeout, clock)
        if record is None:
            return done
        writer.begin()
        writer.produce(topic, base.encode(), encode_reader_switch(record), [], None)
        writer.flush(lambda: False)
        writer.commit()
    return done


def newest_switch(
    kafka: KafkaSettings | Broker, pipeline: str, clock: Clock | None = None
) -> ReaderSwitch | None:
    """Returns the newest switch of the readers of topics to a revision.

    Args:
        kafka: The brokers.
        pipeline: The name without a revision.
        clock: Measures deadlines.

    Returns:
        None: the readers were never switched.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    broker = _broker(kafka, pipeline)
    if not broker.partitions(readers_topic(pipeline)):
        return None
    with closing(switch_log(broker, pipeline, clock or SystemClock())) as log:
        found = list(log.entries(*log.bounds()))
    return found[-1] if found else None


def topics_of_readers(
    kafka: KafkaSettings | Broker, pipeline: str, clock: Clock | None = None
) -> TopicOutput:
    """Opens the output that readers of a pipeline were switched to; read it with ``read_views``.

    Args:
        kafka: The brokers.
        pipeline: The name without a revision.
        clock: Measures deadlines.

    Raises:
        ConfigError: Readers were never switched.
        UnavailableError: Kafka does not answer.
    """
    found = newest_switch(kafka, pipeline, clock)
    if found is None:
        raise never_switched(pipeline)
    return TopicOutput(kafka, found.pipeline, clock)


def _broker(kafka: KafkaSettings | Broker, pipeline: str) -> Broker:
    return KafkaBroker(kafka, f"read-{pipeline}", _MAX_BYTES) if isinstance(kafka, KafkaSettings) else kafka
