"""Which checkpoint ``slackwater state`` is about, and how its rows are read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from slackwater.conversion import class_archives
from slackwater.errors import StateUnreadableError
from slackwater.invocation import required
from slackwater.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater_sql.stages import EnginePlan


@dataclass(frozen=True, slots=True)
class StateTarget:
    """A checkpoint and what is known of its pipeline."""

    name: str
    checkpoint: Path
    buckets: int | None
    plan: "EnginePlan | None"
    """None if only the checkpoint was named."""
    driver_memory: str
    class_archives: Path | None = None
    """Where an archive of Spark's classes may be."""

    def known_buckets(self) -> int:
        """How many buckets each stage has.

        Raises:
            StateUnreadableError: nobody has said.
        """
        if self.buckets is None:
            problem = "it does not say how many buckets its stages have; name the pipeline's folder"
            raise StateUnreadableError(str(self.checkpoint), problem)
        return self.buckets

    def known_plan(self) -> "EnginePlan":
        """What the rows mean.

        Raises:
            StateUnreadableError: only the checkpoint was named.
        """
        if self.plan is None:
            problem = "only the pipeline's views say what its rows mean; name the pipeline's folder"
            raise StateUnreadableError(str(self.checkpoint), problem)
        return self.plan

    def key(self, text: str) -> dict[str, Any]:
        """A key as a person writes it.

        Raises:
            StateUnreadableError: it is no JSON object.
        """
        try:
            key = json.loads(text)
        except ValueError:
            key = None
        if not isinstance(key, dict):
            problem = f"""--key is {text!r}, expected a JSON object such as '{{"id": 5}}'"""
            raise StateUnreadableError(str(self.checkpoint), problem)
        return key

    @contextmanager
    def session(self) -> Iterator["SparkSession"]:
        """A Spark on this machine that can read the state."""
        from slackwater_spark.pipeline import RunSettings
        from slackwater_spark.pipeline.session import spark_session

        settings = RunSettings(
            bootstrap="",
            checkpoint=self.checkpoint,
            driver_memory=self.driver_memory,
            shuffle_partitions=8,
            class_archives=self.class_archives,
        )
        with (
            TemporaryDirectory(prefix="slackwater-state-") as logs,
            spark_session(f"state of {self.name}", settings, Path(logs) / "spark.log") as session,
        ):
            yield session


def state_target(place: Path, settings: Settings) -> StateTarget:
    """What a folder given to the command stands for: a checkpoint or a pipeline.

    Raises:
        MissingSettingError: it is a pipeline, and its checkpoint was not given.
        PipelineError: it is neither.
    """
    from slackwater_spark.pipeline import RunSettings, load_pipeline
    from slackwater_spark.state import is_checkpoint

    memory, archives = settings.run.driver_memory, class_archives(settings, os.environ)
    if is_checkpoint(place):
        name, buckets = _written_in(place)
        return StateTarget(name or place.name, place, buckets, None, memory, archives)
    definition = load_pipeline(place)
    folder = required(settings.run.checkpoint, "run.checkpoint", "--checkpoint", "where its state is")
    checkpoint = definition.checkpoint(RunSettings.local_folder(folder))
    return StateTarget(definition.name, checkpoint, definition.buckets, definition.plan, memory, archives)


def _written_in(checkpoint: Path) -> tuple[str | None, int | None]:
    """Name and buckets of the pipeline, as its first run noted them."""
    from slackwater_spark.pipeline.checkpoint import FINGERPRINT_FILE

    try:
        noted = json.loads((checkpoint / FINGERPRINT_FILE).read_text(encoding="utf-8"))
        return str(noted["name"]), int(noted["buckets"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
