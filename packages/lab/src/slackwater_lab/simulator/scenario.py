"""Scenarios as data: the same one always gives the same history."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

SOURCE = "sim"
_SMALL_END = 13
"""One of this many rows of the last transaction is kept when it is made small."""


class Feature(StrEnum):
    """Everything that a scenario may contain beside ordinary transactions; ``--only`` names it."""

    CRASHES = "crashes"
    """The connector is killed and continues: rows, BEGIN, END repeated, numbers continued."""
    RENUMBERED = "renumbered"
    """After a kill numbers start again: BEGIN again, END with a lower count or none."""
    TAIL = "tail"
    """The offset that the connector had stored is old: a whole tail comes again."""
    DOUBLED = "doubled"
    """The producer writes a batch twice."""
    EXACTLY_ONCE = "exactly-once"
    """The connector writes Kafka transactions: aborted ranges, gaps in the offsets."""
    NO_HEADERS = "no-headers"
    """Records do not say which run of the connector wrote them."""
    KEYLESS = "keyless"
    """A table without a key: its rows go anywhere."""
    COPY = "copy"
    """Transactions whose rows share one LSN."""
    STALLS = "stalls"
    """Partitions that become readable late."""
    NEW_PARTITIONS = "new-partitions"
    """Topics get more partitions while they are written."""
    SNAPSHOT = "snapshot"
    """An initial snapshot, maybe interrupted and repeated."""
    INCREMENTAL = "incremental"
    """Chunks of incremental snapshots between transactions."""
    BLOCKING = "blocking"
    """Ad hoc snapshots that pause the stream."""
    TRUNCATE = "truncate"
    """Transactions empty tables."""
    DROPPED = "dropped"
    """A transform drops rows of a table, which is then judged by ``overtaken``."""
    OFFSETS = "offsets"
    """With an exactly-once connector: a table is judged by ``offsets``."""
    LOST = "lost"
    """A row, an END or a BEGIN never arrives; without the first two an operator skips its transaction."""
    SKIPS = "skips"
    """Operators skip at any moment, also what would have come by itself."""
    UNANNOUNCED = "unannounced"
    """No notifications about snapshots."""
    SUBSET = "subset"
    """The sidecar follows only some of the captured tables."""
    TIMELINES = "timelines"
    """The database is restored from a backup: LSNs and transaction ids start over on a new timeline."""
    WRAP = "wrap"
    """Transaction ids pass 2**32."""
    TWO_SIDECARS = "two-sidecars"
    SIDECAR_CRASHES = "sidecar-crashes"
    """At any moment, also between the cut log and Redis."""
    REDIS = "redis"
    """Emptied, away, replaced by an older copy, written to by somebody else."""
    KAFKA_AWAY = "kafka-away"
    """The source or the cut log does not answer; what was appended may be there all the same."""
    READER_CRASHES = "reader-crashes"
    """Between planning and committing a batch, too."""
    AGGREGATE = "aggregate"
    """A second reader, in scope ``aggregate``."""
    RETENTION = "retention"
    """Kafka removes the oldest records, behind and beyond what was read."""
    AVRO = "avro"
    """Keys and values are Avro; the schema registry is away for a while."""
    SKIPPED_SNAPSHOT = "skipped-snapshot"
    """The connector fails before the first row of its snapshot and continues without one; an operator has it
    take one later."""


@dataclass(frozen=True, slots=True)
class Table:
    """A captured table."""

    name: str
    partitions: int
    is_keyless: bool = False
    is_followed: bool = True
    """Whether the sidecar and the reader want it."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change that a transaction is to make; what comes of it depends on whether there is a row by then."""

    table: str
    key: int
    wish: str
    """``put``, ``delete``, ``move`` (to another key), ``truncate`` (the whole table)."""
    lsn: int
    value: int


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """A transaction as generated. Dropping one leaves the others possible."""

    number: int
    xid: int
    commit_lsn: int
    changes: tuple[PlannedChange, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """A record that the connector loses."""

    transaction: int
    share: float
    """Which row, as a share of those of the transaction."""
    what: str
    """``row``, ``end``, ``begin``."""


@dataclass(frozen=True, slots=True)
class Restore:
    """The database continues from an earlier state."""

    kept: float
    """How much of the history the backup has, as a share of the transactions."""
    transactions: tuple[PlannedTransaction, ...]
    """What happens after it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to somebody at a step."""

    number: int
    step: int
    kind: str
    choice: float
    """In [0, 1): decides the details."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The parts that are left out of a scenario; the result of shrinking."""

    transactions: frozenset[int] = frozenset()
    incidents: frozenset[int] = frozenset()
    is_single_partition: bool = False
    is_single_sidecar: bool = False
    is_small_end: bool = False
    """Whether the last transaction has a few rows only."""
    schedule: int = 0
    """Another order of steps."""

    def arguments(self) -> str:
        """The arguments that give it to the command."""
        names = [f"t{n}" for n in sorted(self.transactions)] + [f"i{n}" for n in sorted(self.incidents)]
        names += ["partitions"] * self.is_single_partition + ["sidecars"] * self.is_single_sidecar
        names += ["end"] * self.is_small_end
        parts = [f"--without {','.join(names)}"] if names else []
        parts += [f"--schedule {self.schedule}"] if self.schedule else []
        return " ".join(parts)

    @classmethod
    def parse(cls, without: str, schedule: int) -> "Reduction":
        """Reads what :meth:`arguments` wrote.

        Raises:
            ValueError: a word that it does not write.
        """
        words = [word for word in without.split(",") if word]
        flags = {word for word in words if word in ("partitions", "sidecars", "end")}
        rest = [word for word in words if word not in flags]
        for word in rest:
            if word[0] not in "ti" or not word[1:].isdigit():
                raise ValueError(
                    f"--without: {word!r}, expected t<number>, i<number>, partitions, sidecars, end"
                )
        return cls(
            transactions=frozenset(int(word[1:]) for word in rest if word[0] == "t"),
            incidents=frozenset(int(word[1:]) for word in rest if word[0] == "i"),
            is_single_partition="partitions" in flags,
            is_single_sidecar="sidecars" in flags,
            is_small_end="end" in flags,
            schedule=schedule,
        )


NO_REDUCTION = Reduction()
"""Nothing is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides a history, but for the order of steps, which follows from seed and schedule."""

    seed: int
    features: frozenset[Feature]
    tables: tuple[Table, ...]
    transactions: tuple[PlannedTransaction, ...]
    """In commit order; the last one touches every partition and is never dropped."""
    incidents: tuple[Incident, ...]
    snapshot_after: int | None
    """The number of transactions that are only in the initial snapshot; None if there is none."""
    sidecars: int
    steps: int
    lost: Loss | None = None
    restore: Restore | None = None
    only: tuple[str, ...] = ()
    """The choice of features it was generated with."""
    reduction: Reduction = NO_REDUCTION

    def has(self, feature: Feature) -> bool:
        """Says whether it may contain something."""
        return feature in self.features

    def reduced(self, reduction: Reduction) -> "Scenario":
        """A smaller one, generated from the same seed."""
        last = self.transactions[-1]
        if reduction.is_small_end:
            last = replace(last, changes=last.changes[::_SMALL_END])
        tables = self.tables
        if reduction.is_single_partition:
            tables = tuple(replace(table, partitions=1) for table in tables)
        return replace(
            self,
            tables=tables,
            transactions=(
                *(t for t in self.transactions[:-1] if t.number not in reduction.transactions),
                last,
            ),
            snapshot_after=None
            if self.snapshot_after is None
            else self.snapshot_after - sum(n < self.snapshot_after for n in reduction.transactions),
            incidents=tuple(i for i in self.incidents if i.number not in reduction.incidents),
            sidecars=1 if reduction.is_single_sidecar else self.sidecars,
            reduction=reduction,
        )

    def command(self) -> str:
        """Repeats exactly this."""
        only = f"--only {','.join(self.only)}" if self.only else ""
        words = ["python -m slackwater_lab simulate --seeds 1", f"--from {self.seed}", only]
        return " ".join(word for word in (*words, self.reduction.arguments()) if word)


def feature_names(features: Collection[Feature]) -> str:
    """Names features for people."""
    return ", ".join(sorted(features)) or "ordinary"
