"""The settings of one run of a pipeline, besides its definition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from slackwater.protocol import Servers
from slackwater.settings.model import RunOptions
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(RunOptions):
    """Servers, checkpoint and size of one run."""

    servers: Servers
    """The servers of source and output. Without Redis, cuts are read from the cut log in Kafka."""
    checkpoint: str
    """Where the state is kept: a folder of this machine, or an address that ``pyarrow.fs`` supports, such as
    ``s3://bucket/folder``; one per pipeline. Later revisions are kept beside it."""
    source_database: str | None = field(default=None, repr=False)
    """The address of the source's database, to compare its catalogue with what the topics can have; None not
    to ask it."""
    source_user: str = ""
    """The connector's user in that database; empty if it is not known."""
    ask_connect: Callable[[str], Mapping[str, str] | None] | None = field(default=None, repr=False)
    """Returns the configuration of the connector that writes a source; None to ask the sidecar's Redis."""
    connector_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The configuration that counts if nobody can be asked; empty if it is not known."""
    copy_state_of: tuple[Path, ...] = ()
    """The folders of earlier revisions, as they run. Unless the pipeline has already begun, it begins with a
    copy of their states. Empty to begin at the beginning of the source's topics."""
    plan: Path | None = None
    """The file of a plan; a run that would do anything else is refused. None to do what the folder says."""
    timeline: int = 1
    """The timeline of the source that is read."""
    limits: StatementLimits = DEFAULT_LIMITS
    """The limits of one statement of a view."""
    local_index_root: Path | None = None
    """The same for executors on this machine, where indexes may outlive a run; used if `index_root` is
    None."""
    class_archives: Path | None = None
    """The folder of :func:`make_class_archive`; None to start Spark without an archive of its classes."""
    output_partitions: int | None = None
    """Overrides the definition's numbers of partitions of the output topics."""
    replication_factor: int = -1
    """The replication factor of topics that have to be created; -1 is the broker's default."""
    keep: timedelta = timedelta(minutes=10)
    """The minimum time for which topics of ``latest`` that have to be created keep documents that were
    replaced."""


def revision_name(name: str, revision: int) -> str:
    """Returns the name of what belongs to one revision; from revision 2 on it ends in ``.v<revision>``."""
    return name if revision == 1 else f"{name}.v{revision}"


def revision_checkpoint(first: str, revision: int) -> str:
    """Returns where a revision keeps its state, if the first revision keeps it in `first`."""
    folder, mark, query = first.partition("?")
    return revision_name(folder.rstrip("/"), revision) + mark + query
