"""From the one settings model to the settings of each library."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.invocation import required
from slackwater.settings import Settings, SourceSection

if TYPE_CHECKING:
    from slackwater_protocol import SourceTopics
    from slackwater_sidecar import SidecarSettings
    from slackwater_spark.pipeline import RunSettings


QUIET = "2"
"""librdkafka writes to standard error by itself: only what is critical, unless everything is to be seen."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Librdkafka settings of every client. Holds secrets."""
    level = {} if settings.log.level == "debug" else {"log_level": QUIET}
    return level | settings.kafka.client_options()


def sources_of(settings: Settings) -> tuple[str, ...]:
    """The sources that were named, each once.

    Raises:
        MissingSettingError: none was.
    """
    return settings.sources or (required(settings.source, "source", "--source", "which connector to follow"),)


def sidecar_settings(settings: Settings, source: str) -> "SidecarSettings":
    """What a sidecar needs for one source.

    Raises:
        MissingSettingError: brokers were not given.
    """
    from slackwater_sidecar import SidecarSettings

    url, password = settings.redis.apart()
    sidecar = settings.sidecar
    secret = sidecar.schema_registry_password
    own = sidecar.of.get(source, SourceSection())
    return SidecarSettings(
        source=source,
        bootstrap=required(
            settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", "where its topics are"
        ),
        redis_url=url,
        redis_password=password,
        tables=own.tables or sidecar.tables,
        topics=source_topics(settings, source),
        evidence=sidecar.evidence if own.evidence is None else own.evidence,
        schema_registry=sidecar.schema_registry,
        schema_registry_user=sidecar.schema_registry_user,
        schema_registry_password=secret.get_secret_value() if secret else None,
        timeline=own.timeline or settings.timeline,
        kafka=kafka_options(settings),
        replication_factor=settings.kafka.replication_factor,
        publish_interval=sidecar.publish_interval,
        open_after=sidecar.open_after if own.open_after is None else own.open_after,
        restored_cuts=sidecar.restored_cuts,
        workers=own.workers or sidecar.workers,
    )


def source_topics(settings: Settings, source: str) -> "SourceTopics":
    """The names of a source's topics."""
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
    """What a run of a pipeline needs.

    Raises:
        MissingSettingError: brokers or checkpoint were not given.
    """
    from slackwater_spark.pipeline import RunSettings

    run = settings.run
    url, password = settings.redis.apart()
    secret = settings.sidecar.schema_registry_password
    from slackwater_sql.limits import StatementLimits

    checkpoint = required(
        run.checkpoint, "run.checkpoint", "--checkpoint", "where Spark keeps offsets and state"
    )
    return RunSettings(
        bootstrap=required(
            settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", "where source and output are"
        ),
        checkpoint=RunSettings.local_folder(checkpoint),
        redis_url=url,
        redis_password=password,
        kafka=kafka_options(settings),
        schema_registry=settings.sidecar.schema_registry,
        schema_registry_user=settings.sidecar.schema_registry_user,
        schema_registry_password=secret.get_secret_value() if secret else None,
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
    """Where an archive of Spark's classes may be; None if none is to be used."""
    from slackwater_spark.pipeline import default_class_archives

    return default_class_archives(environment) if settings.run.class_archive else None


def default_index_root(master: str, environment: Mapping[str, str]) -> Path | None:
    """Where indexes outlive a run, so that the next one need not rebuild them.

    The user's cache folder if the executors are on this machine and it can be written; else None.
    """
    from slackwater_spark.stage.index_folders import user_cache

    cache = user_cache(environment)
    if cache is None or not master.startswith("local"):
        return None
    root = cache / "indexes"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return root if os.access(root, os.W_OK) else None
