"""From the one settings model to the settings of each library."""

from typing import TYPE_CHECKING

from slackwater.invocation import required
from slackwater.settings import Settings

if TYPE_CHECKING:
    from slackwater_sidecar import SidecarSettings
    from slackwater_spark.pipeline import RunSettings


QUIET = "2"
"""librdkafka writes to standard error by itself: only what is critical, unless everything is to be seen."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Librdkafka settings of every client. Holds secrets."""
    level = {} if settings.log.level == "debug" else {"log_level": QUIET}
    return level | settings.kafka.client_options()


def sidecar_settings(settings: Settings) -> "SidecarSettings":
    """What a sidecar needs.

    Raises:
        MissingSettingError: source or brokers were not given.
    """
    from slackwater_sidecar import SidecarSettings

    url, password = settings.redis.apart()
    return SidecarSettings(
        source=required(settings.source, "source", "--source", "which connector to follow"),
        bootstrap=required(
            settings.kafka.bootstrap, "kafka.bootstrap", "--bootstrap", "where its topics are"
        ),
        redis_url=url,
        redis_password=password,
        tables=settings.sidecar.tables,
        timeline=settings.timeline,
        kafka=kafka_options(settings),
        replication_factor=settings.kafka.replication_factor,
        publish_interval=settings.sidecar.publish_interval,
        open_after=settings.sidecar.open_after,
        restored_cuts=settings.sidecar.restored_cuts,
    )


def run_settings(settings: Settings) -> "RunSettings":
    """What a run of a pipeline needs.

    Raises:
        MissingSettingError: brokers or checkpoint were not given.
    """
    from slackwater_spark.pipeline import RunSettings

    run = settings.run
    url, password = settings.redis.apart()
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
        timeline=settings.timeline,
        available_now=run.available_now,
        master=run.master,
        driver_memory=run.driver_memory,
        parallelism=run.parallelism,
        shuffle_partitions=run.shuffle_partitions,
        max_events_per_batch=run.max_events_per_batch,
        index_root=run.index_root,
        replication_factor=settings.kafka.replication_factor,
        spark_log=run.spark_log,
        spark_conf=run.spark_conf,
    )
