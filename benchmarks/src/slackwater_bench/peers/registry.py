"""The peers: what each is, and the settings that it runs with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater_testing.errors import RunFailedError

PROGRAMS = Path(__file__).parents[3] / "peers"
SLACKWATER = "slackwater"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A stream processor that maintains the orders view.

    Its folder has ``program.py``, ``requirements.lock`` with hashes, and, when it needs jars, ``ivy.xml``
    with their coordinates and ``jars.sha256`` with their checksums.
    """

    name: str
    title: str
    settings: str
    """For people: what was set, beside the defaults."""
    environment: Mapping[str, str] = field(default_factory=dict)
    has_jars: bool = False

    @property
    def folder(self) -> Path:
        """The folder of its program."""
        return PROGRAMS / self.name


PEERS: tuple[Peer, ...] = (
    Peer(
        name=SLACKWATER,
        title="Slackwater",
        settings="`pipelines/orders` as it stands: 64 buckets, `emit = latest`, Spark `local[2]`",
    ),
    Peer(
        name="pyspark",
        title="PySpark 4.3, `transformWithState` per order",
        settings="`local[2]`, 2 shuffle partitions, RocksDB with changelog checkpoints, batches of up"
        " to 100,000 records; Spark's own Kafka connector, 4.2.0 (there is no release for 4.3)",
        has_jars=True,
    ),
    Peer(
        name="flink",
        title="Flink SQL 2.2",
        settings="parallelism 2, mini-batch 200 ms / 5,000 rows, `debezium-json`, `upsert-kafka` with a"
        " sink buffer of 200 ms / 5,000 rows, heap state"
        " of 3 GiB, parallel collector",
        has_jars=True,
    ),
    Peer(
        name="pathway",
        title="Pathway",
        settings="2 threads, Debezium reader over copies of the topics with keys and values below `payload`,"
        " commit every 100 ms, one document per order and commit",
        environment={"PATHWAY_THREADS": "2"},
    ),
    Peer(
        name="quix",
        title="Quix Streams",
        settings="one process, both topics grouped by order, RocksDB state with changelog, commit every 5 s",
    ),
    Peer(
        name="fold",
        title="hand-written fold",
        settings="one Python thread, dictionaries, polls of up to 10,000 records, a document per order and"
        " poll",
    ),
)


def peers_named(names: Sequence[str]) -> tuple[Peer, ...]:
    """These peers in the order of the names; all of them for none.

    Raises:
        RunFailedError: there is no such peer.
    """
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            raise RunFailedError(f"no peer {name!r}", f"there are {', '.join(known)}")
    return tuple(known[name] for name in names) or PEERS
