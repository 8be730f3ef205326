"""Spark homes: what Spark's scripts and its JVM take for the installation."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SparkHome:
    """What a JVM is started from."""

    folder: Path
    java_options: tuple[str, ...] = ()
    """Beside those of the session's configuration."""


def link_spark_home(folder: Path) -> Path:
    """A Spark home that is the installed PySpark, with a work folder of its own, empty, and without archives.

    Masters ``local-cluster[...]`` start executors in ``work`` of the Spark home, which for PySpark is
    among the installed packages: maybe not writable, and never cleared. And the Python processes that Spark
    starts search ``python/lib/pyspark.zip`` of the home before the installed PySpark, but an archive keeps no
    byte code: it costs each of them a second, and Spark waits no longer than ten for the one that plans.
    """
    import pyspark

    shutil.rmtree(folder, ignore_errors=True)  # links, and logs of the executors of the run before
    (folder / "work").mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("work", "python"):
            (folder / entry.name).symlink_to(entry)
    return folder


@contextmanager
def started_from(home: SparkHome | None) -> Iterator[None]:
    """Has a JVM that is launched within the block take this home; None: the one PySpark finds."""
    if home is None:
        yield
        return
    options = [*map(shlex.quote, home.java_options), os.environ.get("SPARK_SUBMIT_OPTS", "")]
    own = {"SPARK_HOME": str(home.folder), "SPARK_SUBMIT_OPTS": " ".join(options).strip()}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
