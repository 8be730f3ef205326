"""Scenarios as data, each from a seed: the same one always gives the same history."""

import random
import re
from collections.abc import Collection, Sequence
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
class SimulatedTable:
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
    """The parts that are left out of a scenario; the result of shrinking.

    Attributes:
        parts: ``t3``: a transaction; ``i5``: an incident; ``partitions`` and ``sidecars``: all but one;
            ``end``: most rows of the last transaction.
        schedule: Another order of steps.
    """

    parts: frozenset[str] = frozenset()
    schedule: int = 0

    def arguments(self) -> str:
        """The arguments that give it to the command."""
        words = [f"--without {','.join(sorted(self.parts))}"] if self.parts else []
        return " ".join(words + [f"--schedule {self.schedule}"] * (self.schedule > 0))

    @classmethod
    def parse(cls, without: str, schedule: int) -> "Reduction":
        """Reads what :meth:`arguments` wrote.

        Raises:
            ValueError: a word that it does not write.
        """
        words = [word for word in without.split(",") if word]
        for word in words:
            if not re.fullmatch(r"[ti]\d+|partitions|sidecars|end", word):
                raise ValueError(
                    f"--without: {word!r}, expected t<number>, i<number>, partitions, sidecars, end"
                )
        return cls(frozenset(words), schedule)


NO_REDUCTION = Reduction()
"""Nothing is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides a history, but for the order of steps, which follows from seed and schedule."""

    seed: int
    features: frozenset[Feature]
    tables: tuple[SimulatedTable, ...]
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
        last, gone, after = self.transactions[-1], reduction.parts, self.snapshot_after
        if "end" in gone:
            last = replace(last, changes=last.changes[::_SMALL_END])
        kept = (t for t in self.transactions[:-1] if f"t{t.number}" not in gone)
        tables = (replace(t, partitions=1 if "partitions" in gone else t.partitions) for t in self.tables)
        return replace(
            self,
            tables=tuple(tables),
            transactions=(*kept, last),
            snapshot_after=None if after is None else after - sum(f"t{n}" in gone for n in range(after)),
            incidents=tuple(i for i in self.incidents if f"i{i.number}" not in gone),
            sidecars=1 if "sidecars" in gone else self.sidecars,
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


_F = Feature
_LIKELY = {
    _F.CRASHES: 0.6,
    _F.STALLS: 0.5,
    _F.SIDECAR_CRASHES: 0.5,
    _F.READER_CRASHES: 0.5,
    _F.AVRO: 0.15,
    _F.SKIPPED_SNAPSHOT: 0.7,
}
_LIKELY[_F.SKIPPED_SNAPSHOT] = 0.11
_DEFAULT = 0.25
_FEW = 4
"""When no more features than this are asked for, nearly every scenario has them."""
_DECIDED = 0.6
"""How often operators decide while something is lost, instead of after everything else is read."""
_ALIKE = 0.95
"""How often topics have the same number of partitions if a reader needs that."""
_RESTARTS = {_F.CRASHES, _F.RENUMBERED, _F.TAIL}
_APART: tuple[tuple[Feature, set[Feature]], ...] = (
    # When a topic has grown, rows of snapshots and what changes them may be in two partitions; and nothing
    # may ever be written to a new one.
    (_F.NEW_PARTITIONS, {_F.INCREMENTAL, _F.BLOCKING, _F.SNAPSHOT, _F.DROPPED}),
    # A later snapshot shows what a lost row has changed.
    (_F.LOST, {_F.INCREMENTAL, _F.BLOCKING}),
    (_F.SKIPS, {_F.INCREMENTAL, _F.BLOCKING}),
    # Rows of such snapshots, and of repeated initial ones, have no LSN: in other partitions they may outlive
    # a TRUNCATE.
    (_F.TRUNCATE, {_F.INCREMENTAL, _F.BLOCKING, _F.SNAPSHOT, _F.TIMELINES}),
    # A record of TRUNCATE has no key, so nothing overtakes it.
    (_F.TRUNCATE, {_F.DROPPED}),
    # A connector never continues after a row that is not acknowledged; and what is repeated may pass as
    # overtaken, when all that is in Kafka was read.
    (_F.LOST, {*_RESTARTS, _F.DROPPED, _F.OFFSETS, _F.DOUBLED}),
    # Counts of notifications are too high then, too.
    (_F.DROPPED, {_F.SNAPSHOT, _F.TIMELINES}),
    # Groups continue by markers until a cut tells of new partitions, and keys may have moved by then.
    (_F.AGGREGATE, {_F.NEW_PARTITIONS}),
    # Rows of no commit do not tell which history they are of until the regression behind them was read.
    (_F.TIMELINES, {_F.INCREMENTAL, _F.BLOCKING}),
    # What an old connector has repeated behind the last cut does not say which history it is of.
    (_F.TIMELINES, _RESTARTS),
)
"""A feature, and those that it does not occur with: known limits, see the README."""
_NO_SKIPPED = {
    # Without notifications nothing tells of it; an ad hoc snapshot would be one, too, and an initial one that
    # follows contains what was deleted behind its rows.
    *(_F.UNANNOUNCED, _F.BLOCKING, _F.INCREMENTAL),
    *(_F.TIMELINES, _F.NEW_PARTITIONS, _F.TRUNCATE, _F.LOST, _F.SKIPS, _F.DROPPED),
}
"""Features that leave no place for a skipped snapshot."""
_LSN_DISTANCE = 24
_KINDS: dict[str, tuple[Feature, int]] = {
    "connector killed": (_F.CRASHES, 4),
    "connector renumbers": (_F.RENUMBERED, 3),
    "connector goes far back": (_F.TAIL, 2),
    "batch doubled": (_F.DOUBLED, 3),
    "partition stalls": (_F.STALLS, 4),
    "all but one partition flow": (_F.AGGREGATE, 2),
    "partitions added": (_F.NEW_PARTITIONS, 1),
    "chunk of a snapshot": (_F.INCREMENTAL, 5),
    "snapshot that blocks": (_F.BLOCKING, 3),
    "sidecar killed": (_F.SIDECAR_CRASHES, 3),
    "sidecar killed writing": (_F.SIDECAR_CRASHES, 3),
    "sidecar stopped": (_F.SIDECAR_CRASHES, 1),
    "redis emptied": (_F.REDIS, 2),
    "redis away": (_F.REDIS, 2),
    "redis copied": (_F.REDIS, 2),
    "redis replaced by the copy": (_F.REDIS, 2),
    "redis forged": (_F.REDIS, 2),
    "source away": (_F.KAFKA_AWAY, 2),
    "cut log away": (_F.KAFKA_AWAY, 2),
    "reader killed": (_F.READER_CRASHES, 4),
    "operator skips": (_F.SKIPS, 3),
    "read records removed": (_F.RETENTION, 6),
    "unread records removed": (_F.RETENTION, 3),
    "registry away": (_F.AVRO, 3),
    "operator skips what nobody has read": (_F.SKIPS, 2),
}
"""Kind of incident: of which feature, and at most how many."""


def generate(seed: int, only: Sequence[str] = ()) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    features = _features(rng, only)
    tables = _tables(rng, features)
    transactions = _transactions(rng, features, tables)
    steps = rng.choice((60, 150, 300))
    restore = _restore(rng, features, tables) if _F.TIMELINES in features else None
    histories = [transactions] if restore is None else [transactions, restore.transactions]
    return Scenario(
        seed=seed,
        features=features,
        tables=tables,
        transactions=transactions,
        incidents=_incidents(rng, features, steps),
        snapshot_after=rng.randint(0, len(transactions) // 2) if _F.SNAPSHOT in features else None,
        sidecars=2 if _F.TWO_SIDECARS in features else 1,
        steps=steps,
        lost=_lost(rng, min(map(len, histories)) - 1) if _F.LOST in features else None,
        restore=restore,
        only=tuple(only),
    )


def _lost(rng: random.Random, transactions: int) -> Loss:
    return Loss(rng.randrange(transactions), rng.random(), rng.choice(("row", "row", "end", "end", "begin")))


def _restore(rng: random.Random, features: frozenset[Feature], tables: Sequence[SimulatedTable]) -> Restore:
    """Makes a restore. What follows has transaction ids that were there before, but no LSN: logs differ."""
    transactions = _transactions(rng, features, tables, first_value=2_000_000)
    moved = (
        replace(
            transaction,
            commit_lsn=transaction.commit_lsn + _LSN_DISTANCE,
            changes=tuple(replace(t, lsn=t.lsn + _LSN_DISTANCE) for t in transaction.changes),
        )
        for transaction in transactions
    )
    return Restore(rng.random(), tuple(moved))


def _features(rng: random.Random, only: Sequence[str]) -> frozenset[Feature]:
    drawn = [(f, rng.random()) for f in Feature]
    wanted = [f for f in Feature if f in only] or list(Feature)
    few = 0.9 if len(wanted) <= _FEW else 0.0
    found = {f for f, n in drawn if f in wanted and n < max(few, _LIKELY.get(f, _DEFAULT))}
    drawn_first, found = found, found - {_F.SKIPPED_SNAPSHOT}
    for one, others in _APART:
        if one in found and found & others:
            found -= others if rng.random() < 0.5 else {one}
    if _F.SKIPPED_SNAPSHOT in drawn_first:
        found = found - _NO_SKIPPED | {_F.SKIPPED_SNAPSHOT, _F.SNAPSHOT}
    if _F.OFFSETS in found:
        found |= {_F.EXACTLY_ONCE}
    if _F.LOST in found and _F.SKIPS in wanted and rng.random() < _DECIDED:
        found |= {_F.SKIPS}
    return frozenset(found)


def _tables(rng: random.Random, features: frozenset[Feature]) -> tuple[SimulatedTable, ...]:
    partitions = [rng.choice((1, 2, 3, 4)) for _ in range(3)]
    if _F.AGGREGATE in features and rng.random() < _ALIKE:
        partitions = [rng.choice((1, 2, 2, 3))] * 3
    return (
        SimulatedTable("inv.a", partitions[0]),
        SimulatedTable("inv.b", partitions[1], is_keyless=_F.KEYLESS in features),
        SimulatedTable("inv.c", partitions[2], is_followed=_F.SUBSET not in features),
    )


def _transactions(
    rng: random.Random, features: frozenset[Feature], tables: Sequence[SimulatedTable], first_value: int = 0
) -> tuple[PlannedTransaction, ...]:
    """Commit LSNs rise; LSNs of changes and transaction ids interleave as far back as ten commits."""
    count = rng.choice((3, 6, 10, 16))
    is_busy = _F.AGGREGATE in features and rng.random() < 0.7
    is_skewed = rng.random() < 0.3
    drafts: list[tuple[int, list[PlannedChange]]] = []
    used = {8 * 1000 * (i + 1) for i in range(count + 1)}
    for index in range(count):
        commit_lsn = 8 * 1000 * (index + 1)
        size = rng.choice((0, 1, 1, 2, 3, 4, 12, 30 if _F.COPY in features else 5)) + 5 * is_busy
        is_copy = _F.COPY in features and rng.random() < 0.5
        truncates = 0.1 if _F.TRUNCATE in features else 0.0
        reach = rng.choice((1, 1, 3, 10))
        lsns = _lsns(rng, commit_lsn, reach, 1 if is_copy else size, used)
        draw = _copied if is_copy else _touched
        favourites = tables[:1] if is_skewed and rng.random() < 0.7 else tables
        changes = [
            draw(rng, rng.choice(favourites), lsns[0 if is_copy else n], first_value + 1000 * (index + 1) + n)
            for n in range(size)
        ]
        if not is_copy:
            changes = [replace(t, wish="truncate") if rng.random() < truncates else t for t in changes]
        drafts.append((commit_lsn, changes))
    drafts.append((8 * 1000 * (count + 1), _everywhere(rng, tables, count, used)))
    return _with_xids(drafts, 2**32 - 3 if _F.WRAP in features else 700)


def _touched(rng: random.Random, table: SimulatedTable, lsn: int, value: int) -> PlannedChange:
    wish = rng.choice(("put", "put", "put", "delete", "move"))
    return PlannedChange(table.name, rng.randint(0, 9), wish, lsn, value)


def _copied(rng: random.Random, table: SimulatedTable, lsn: int, value: int) -> PlannedChange:
    """New rows: COPY never changes a key twice."""
    return PlannedChange(table.name, 1000 + value, "put", lsn, value)


def _lsns(rng: random.Random, commit_lsn: int, reach: int, count: int, used: set[int]) -> list[int]:
    lowest = max(8, commit_lsn - 8000 * reach)
    found: list[int] = []
    while len(found) < count:
        lsn = rng.randrange(lowest, commit_lsn - 8, 8)
        if lsn not in used:
            used.add(lsn)
            found.append(lsn)
    return sorted(found)


def _everywhere(
    rng: random.Random, tables: Sequence[SimulatedTable], count: int, used: set[int]
) -> list[PlannedChange]:
    """Rows in every partition, so that nothing waits for traffic at the end."""
    lsns = iter(_lsns(rng, 8 * 1000 * (count + 1), 1, 40 * len(tables), used))
    return [PlannedChange(t.name, 200 + k, "put", next(lsns), 900_000 + k) for t in tables for k in range(40)]


def _with_xids(drafts: list[tuple[int, list[PlannedChange]]], first: int) -> tuple[PlannedTransaction, ...]:
    """Transaction ids are given at the first write, so they do not follow the commit order."""
    starts = sorted(
        range(len(drafts)), key=lambda i: min((t.lsn for t in drafts[i][1]), default=drafts[i][0])
    )
    xids = {index: _wrapped(first + rank) for rank, index in enumerate(starts)}
    return tuple(
        PlannedTransaction(index, xids[index], commit_lsn, tuple(changes))
        for index, (commit_lsn, changes) in enumerate(drafts)
    )


def _wrapped(xid: int) -> int:
    return xid if xid < 2**32 else xid - 2**32 + 3


def _incidents(rng: random.Random, features: frozenset[Feature], steps: int) -> tuple[Incident, ...]:
    drawn = [
        (rng.randrange(steps), kind, rng.random())
        for kind, (feature, most) in _KINDS.items()
        if feature in features
        for _ in range(rng.randint(1, most))
    ]
    drawn.sort()
    return tuple(Incident(number, *incident) for number, incident in enumerate(drawn))
