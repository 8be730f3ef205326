"""Makes the settings of each library of the one settings model; a run's are made by its command."""

from typing import TYPE_CHECKING

from slackwater.errors import CommandConfigError
from slackwater.invocation import required
from slackwater.settings import Settings, SourceSection
from slackwater_protocol import (
    KafkaSettings,
    RedisSettings,
    RegistrySettings,
    Servers,
    ServersConfigError,
    SourceTopics,
)

if TYPE_CHECKING:  # only one command needs the sidecar, which takes a while to import
    from slackwater_sidecar import SidecarSettings

QUIET = "2"
"""librdkafka writes to standard error by itself: only what is critical, unless everything is to be seen."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Returns the librdkafka settings of every client. Holds secrets."""
    level = {} if settings.log.level == "debug" else {"log_level": QUIET}
    return level | settings.kafka.client_options()


def kafka_settings(settings: Settings, purpose: str) -> KafkaSettings:
    """Returns how to reach Kafka.

    Raises:
        CommandConfigError: brokers were not given.
    """
    brokers = required(settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", purpose)
    return KafkaSettings(brokers, kafka_options(settings))


def redis_settings(settings: Settings, purpose: str) -> RedisSettings:
    """Returns how to reach Redis.

    Raises:
        CommandConfigError: its address was not given.
    """
    return required(settings.redis.server(), "redis.url", "--redis-url", purpose)


def servers(settings: Settings, purpose: str) -> Servers:
    """Returns the servers of a sidecar or a run.

    Raises:
        CommandConfigError: brokers were not given, or an address cannot be used.
    """
    return Servers(
        kafka_settings(settings, purpose),
        settings.redis.server(),
        _registry_settings(settings),
        settings.postgres.output(),
        settings.delta.lake(),
        settings.iceberg.lake(),
    )


def _registry_settings(settings: Settings) -> RegistrySettings | None:
    sidecar = settings.sidecar
    if sidecar.schema_registry is None:
        return None
    secret = sidecar.schema_registry_password
    try:
        return RegistrySettings(
            url=sidecar.schema_registry,
            user=sidecar.schema_registry_user,
            password=secret.get_secret_value() if secret else None,
        )
    except ServersConfigError as error:
        problem = f"setting sidecar.schema_registry {error.problem}"
        raise CommandConfigError(problem, error.hint) from error


def sources_of(settings: Settings) -> tuple[str, ...]:
    """Returns the sources that were named, each once.

    Raises:
        CommandConfigError: none was.
    """
    return settings.sources or (required(settings.source, "source", "--source", "which connector to follow"),)


def sidecar_settings(settings: Settings, source: str) -> "SidecarSettings":
    """Returns what a sidecar needs for one source.

    Raises:
        CommandConfigError: brokers were not given.
    """
    from slackwater_sidecar import SidecarSettings

    sidecar = settings.sidecar
    own = sidecar.of.get(source, SourceSection())
    return SidecarSettings(
        source=source,
        servers=servers(settings, "where its topics are"),
        tables=own.tables or sidecar.tables,
        topics=_source_topics(settings, source),
        evidence=sidecar.evidence if own.evidence is None else own.evidence,
        timeline=own.timeline or settings.timeline,
        replication_factor=settings.kafka.replication_factor,
        publish_interval=sidecar.publish_interval,
        barrier_interval=sidecar.barrier_interval,
        open_after=sidecar.open_after if own.open_after is None else own.open_after,
        restored_cuts=sidecar.restored_cuts,
        workers=own.workers or sidecar.workers,
    )


def _source_topics(settings: Settings, source: str) -> SourceTopics:
    """Returns the names of a source's topics."""
    sidecar = settings.sidecar
    own = sidecar.of.get(source, SourceSection())
    return SourceTopics(
        source,
        sidecar.topics if own.topics is None else own.topics,
        own.transaction_topic or sidecar.transaction_topic,
        own.notification_topic or sidecar.notification_topic,
    )
