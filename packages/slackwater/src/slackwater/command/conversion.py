"""Makes the settings of servers of the one settings model; what only one command needs is made by it."""

from slackwater.command.invocation import required
from slackwater.protocol import (
    InputError,
    KafkaSettings,
    MalformedRecordError,
    RedisSettings,
    Servers,
    parse_position,
)
from slackwater.settings.model import Settings

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
        settings.registry if settings.registry.url else None,
        settings.postgres.output(),
        settings.delta if settings.delta.place else None,
        settings.iceberg if settings.iceberg.place else None,
    )


def sources_of(settings: Settings) -> tuple[str, ...]:
    """Returns the sources that were named, each once.

    Raises:
        CommandConfigError: none was.
    """
    return settings.sources or (required(settings.source, "source", "--source", "which connector to follow"),)


def lsn_of(text: str, option: str) -> int:
    """Reads an LSN that was given with an option.

    Raises:
        InputError: It is none.
    """
    try:
        return parse_position(text)
    except MalformedRecordError as error:
        hint = f"{option} takes the LSN of a commit, as PostgreSQL writes it (0/153D218) or as a number"
        raise InputError(f"{option} {text!r} is no LSN", hint) from error
