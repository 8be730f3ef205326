"""From the one settings model to the settings of each library."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.errors import CommandConfigError
from slackwater.invocation import required
from slackwater.settings import Settings, SourceSection

if TYPE_CHECKING:
    from slackwater_protocol import KafkaSettings, RedisSettings, RegistrySettings, Servers, SourceTopics
    from slackwater_sidecar import SidecarSettings
    from slackwater_spark.pipeline import RunSettings


QUIET = "2"
"""librdkafka writes to standard error by itself: only what is critical, unless everything is to be seen."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Returns the librdkafka settings of every client. Holds secrets."""
    level = {} if settings.log.level == "debug" else {"log_level": QUIET}
    return level | settings.kafka.client_options()


def kafka_settings(settings: Settings, purpose: str) -> "KafkaSettings":
    """Returns how to reach Kafka.

    Raises:
        CommandConfigError: brokers were not given.
    """
    from slackwater_protocol import KafkaSettings

    brokers = required(settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", purpose)
    return KafkaSettings(brokers, kafka_options(settings))


def redis_settings(settings: Settings, purpose: str) -> "RedisSettings":
    """Returns how to reach Redis.

    Raises:
        CommandConfigError: its address was not given.
    """
    return required(settings.redis.server(), "redis.url", "--redis-url", purpose)


def servers(settings: Settings, purpose: str) -> "Servers":
    """Returns the servers of a sidecar or a run.

    Raises:
        CommandConfigError: brokers were not given, or an address cannot be used.
    """
    from slackwater_protocol import Servers

    return Servers(kafka_settings(settings, purpose), settings.redis.server(), _registry_settings(settings))


def _registry_settings(settings: Settings) -> "RegistrySettings | None":
    from slackwater_protocol import RegistrySettings, ServersConfigError

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
        topics=source_topics(settings, source),
        evidence=sidecar.evidence if own.evidence is None else own.evidence,
        timeline=own.timeline or settings.timeline,
        replication_factor=settings.kafka.replication_factor,
        publish_interval=sidecar.publish_interval,
        open_after=sidecar.open_after if own.open_after is None else own.open_after,
        restored_cuts=sidecar.restored_cuts,
        workers=own.workers or sidecar.workers,
    )


def source_topics(settings: Settings, source: str) -> "SourceTopics":
    """Returns the names of a source's topics."""
    from slackwater_protocol import SourceTopics

    sidecar = settings.sidecar
    own = sidecar.of.get(source, SourceSection())
    return SourceTopics(
        source,
        sidecar.topics if own.topics is None else own.topics,
        own.transaction_topic or sidecar.transaction_topic,
        own.notification_topic or sidecar.notification_topic,
    )


def run_settings(settings: Settings) -> "RunSettings":
    """Returns what a run of a pipeline needs.

    Raises:
        CommandConfigError: brokers or checkpoint were not given.
    """
    from slackwater_spark.pipeline import RunSettings
    from slackwater_sql.limits import StatementLimits

    run = settings.run
    checkpoint = required(
        run.checkpoint, "run.checkpoint", "--checkpoint", "where Spark keeps offsets and state"
    )
    return RunSettings(
        servers=servers(settings, "where source and output are"),
        checkpoint=RunSettings.local_folder(checkpoint),
        timeline=settings.timeline,
        available_now=run.available_now,
        master=run.master,
        driver_memory=run.driver_memory,
        parallelism=run.parallelism,
        shuffle_partitions=run.shuffle_partitions,
        max_events_per_batch=run.max_events_per_batch,
        limits=StatementLimits(run.statement_memory, run.statement_seconds),
        index_root=run.index_root or default_index_root(run.master, os.environ),
        class_archives=class_archives(settings, os.environ),
        replication_factor=settings.kafka.replication_factor,
        accept_changed_output=run.accept_changed_output,
        spark_log=run.spark_log,
        spark_conf=run.spark_conf,
    )


def class_archives(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Returns where an archive of Spark's classes may be; None if none is to be used."""
    from slackwater_spark.pipeline import default_class_archives

    return default_class_archives(environment) if settings.run.class_archive else None


def default_index_root(master: str, environment: Mapping[str, str]) -> Path | None:
    """Returns where indexes outlive a run, so that the next one need not rebuild them.

    The user's cache folder if the executors are on this machine and it can be written; else None.
    """
    from slackwater_protocol import user_cache

    cache = user_cache(environment)
    if cache is None or not master.startswith("local"):
        return None
    root = cache / "indexes"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return root if os.access(root, os.W_OK) else None
