"""The settings of one run of a pipeline: what it needs beside its definition."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from slackwater_protocol import Servers
from slackwater_sql.limits import DEFAULT_LIMITS, StatementLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Servers, checkpoint and size of one run."""

    servers: Servers
    """Where source and output are; without Redis cuts are read from the cut log in Kafka."""
    checkpoint: str
    """Where the state is kept: a folder of this machine, or an address that ``pyarrow.fs`` knows, such as
    ``s3://bucket/folder``; one per pipeline. Later revisions are kept beside it."""
    copy_state_of: Path | None = None
    """The folder of another revision, as it runs: the pipeline begins with a copy of its state, unless it
    has begun already. None: it begins at the beginning of the source's topics."""
    timeline: int = 1
    """Timeline of the source that is read."""
    available_now: bool = False
    """Process what is there when the run starts, then end."""
    master: str | None = None
    """Spark master; None: the one that Spark is configured with, else ``local[*]``. Without effect under
    ``spark-submit``, which has chosen one."""
    driver_memory: str | None = None
    """Heap of the driver's JVM; None: what Spark is configured with, else 768 MiB. Takes effect only if no
    JVM runs for this process yet."""
    parallelism: int | None = None
    """Tasks of a large batch, and of each of its levels; None is the number of cores Spark has."""
    max_events_per_batch: int | None = None
    """Change events of the source at which a batch is closed; None is the source's default."""
    limits: StatementLimits = DEFAULT_LIMITS
    """Limits of one statement of a view."""
    index_root: Path | None = None
    """Where tasks keep the indexes of stages, a cache; None is Spark's local folder."""
    local_index_root: Path | None = None
    """The same for executors on this machine, where indexes may outlive a run, if `index_root` is None."""
    class_archives: Path | None = None
    """Folder of :func:`make_class_archive`; None: Spark starts without an archive of its classes."""
    output_partitions: int | None = None
    """Overrides the definition's numbers of partitions of the output topics."""
    replication_factor: int = -1
    """The replication factor of topics that have to be created; -1 is the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """How long, at least, topics of ``latest`` that have to be created keep documents that were replaced."""
    longest_lease: timedelta = timedelta(days=1)
    """Leases of readers that go on for longer are refused."""
    allow_missing_tables: bool = True
    """Tables without a topic count as empty, with a warning; else the run is refused."""
    accept_changed_output: bool = False
    """Go on with output topics that are not as the pipeline left them; else they are refused."""
    spark_log: Path | None = None
    """File for the log of Spark's JVM; None: ``spark.log`` in the checkpoint, or, if that is on no disk of
    this machine, among temporary files."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; win over Spark's own files and ``spark-submit``."""


def revision_name(name: str, revision: int) -> str:
    """Returns the name of what belongs to a revision alone; it ends in ``.v<revision>`` from 2 on."""
    return name if revision == 1 else f"{name}.v{revision}"


def revision_checkpoint(first: str, revision: int) -> str:
    """Returns where a revision keeps its state, if the first one does in `first`."""
    folder, mark, query = first.partition("?")
    return revision_name(folder.rstrip("/"), revision) + mark + query
