"""Planted faults: rules taken out, to see that the simulator notices."""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from slackwater_cdc import Frontier, Partition, completeness
from slackwater_cdc.completeness import Completeness
from slackwater_cdc.context import Context
from slackwater_cdc.cut_builder import CutBuilder
from slackwater_cdc.ends import Ends
from slackwater_cdc.regression import RegressionWatch
from slackwater_cdc.snapshot import Snapshots
from slackwater_cdc.wire import AvroToJson
from slackwater_protocol import PublishedCut
from slackwater_sidecar import Publisher
from slackwater_sidecar import resume as resuming
from slackwater_sidecar.avro import AvroValues
from slackwater_sidecar.consumption import Consumption
from slackwater_sidecar.decision_feed import LoggedDecisions
from slackwater_sidecar.lookup import Lookup
from slackwater_sidecar.resume import Resumption
from slackwater_sidecar.store_keeper import StoreKeeper
from slackwater_spark.source import admission, aggregate, groups
from slackwater_spark.source.batch import TransactionTable
from slackwater_spark.source.changes import BatchChanges
from slackwater_spark.source.cut_feed import CutFeed
from slackwater_spark.source.group_offset import GroupOffset
from slackwater_spark.source.kafka_reader import SpanReader
from slackwater_spark.source.readers import Planner
from slackwater_spark.source.snapshot_rows import SnapshotPlaces

Replacement = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that is taken out."""

    rule: str
    """What does not hold any more."""
    owner: Any
    """The class or module."""
    attribute: str
    replace: Callable[[Any], Any]
    """Makes the faulty thing from the right one."""
    only: tuple[str, ...]
    """The features with which it is found soon."""


def _counts_summed(right: Replacement) -> Replacement:
    def again(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        self._rows.missing -= self._rows.missing > 0

    return again


def _lower_end_believed(right: Replacement) -> Replacement:
    def is_complete(self: Any, transaction: Any) -> bool:
        counts = transaction.last_counted
        return all(transaction.received(table) >= count for table, count in counts.items())

    return is_complete


def _always(right: object) -> Replacement:
    return lambda *_: True


def _one_partition_left_out(right: Replacement) -> Replacement:
    def is_overtaken(self: Any, transaction: Any, partitions: Sequence[Any]) -> bool:
        return bool(right(self, transaction, partitions[1:] or partitions))

    return is_overtaken


def _old_end_accepted(right: Replacement) -> Replacement:
    def read_end(self: Any, offset: int, end: Any, timestamp_ms: int) -> None:
        if self._context.transactions.get(end.xid) is None:
            self.last_lsn = min(self.last_lsn, end.commit_lsn - 1)
        right(self, offset, end, timestamp_ms)

    return read_end


def _redis_before_log(right: Replacement) -> Replacement:
    def write(self: Any, status: Any) -> None:
        cuts = [PublishedCut(cut, offset) for offset, cut in enumerate(self._unwritten, self._log.end())]
        self._keeper.publish(cuts, status, is_whole=True)
        right(self, status)

    return write


def _resumed_too_late(right: Replacement) -> Replacement:
    def starts(self: Any, topics: Any) -> Callable[[str, int], int | None]:
        find = right(self, topics)

        def start(topic: str, partition: int) -> int | None:
            offset = find(topic, partition)
            return None if offset is None else offset + 1

        return start

    return starts


class _AnyXid(dict[int, int]):
    """Takes unknown transactions for the newest one."""

    def get(self, xid: int, default: Any = None) -> Any:
        return super().get(xid, max(self.values(), default=default))


def _table_not_applied(right: Replacement) -> Replacement:
    return lambda self: _AnyXid(right(self))


def _never(right: object) -> Replacement:
    return lambda *_: False


def _ends_at_position(right: object) -> Replacement:
    return lambda partition: partition.position


def _repeats_not_named(right: Replacement) -> Replacement:
    def drop(self: Any, transaction: Any, commit_lsn: int) -> None:
        named = set(self.repeated)
        right(self, transaction, commit_lsn)
        self.repeated = named

    return drop


def _end_is_enough(right: object) -> Replacement:
    return lambda transaction: transaction.end is not None


def _overtaken_in_one(right: Replacement) -> Replacement:
    def answer(self: Any, ends: Any, newest_sequence: int, queue: Any) -> None:
        right(self, ends, newest_sequence, queue)
        for table in self._overtaken_to:
            found = sorted(p.newest_sequence() for p in self._partitions.of_table(table))
            self._overtaken_to[table] = found[-1]

    return answer


def _nothing_known_before(right: Replacement) -> Replacement:
    return lambda *arguments: replace(right(*arguments), read_from=None)


def _no_window(right: object) -> Replacement:
    return lambda span, window, end: span


def _read_on_at_the_end(right: Replacement) -> Replacement:
    def moved(*arguments: Any) -> Any:
        position = right(*arguments)
        return replace(position, start=position.read_to)

    return moved


def _lsn_of_groups(right: object) -> property:
    return property(lambda offset: min(offset.lsns, default=0))


def _nothing(right: object) -> Replacement:
    return lambda *_: None


def _edited(old: str, new: str) -> Callable[[Any], Any]:
    """Makes a function anew from its source, with one place changed."""

    def edit(right: Replacement) -> Replacement:
        source = textwrap.dedent(inspect.getsource(right))
        if source.count(old) != 1:
            raise LookupError(f"{right.__qualname__} has not exactly one {old!r}")
        found: dict[str, Any] = {}
        code = compile(source.replace(old, new), inspect.getsourcefile(right) or "", "exec")
        exec(code, right.__globals__, found)  # noqa: S102 - our own source
        return cast(Replacement, found[right.__name__])

    return edit


_CRASHES = ("crashes", "renumbered", "stalls")

FAULTS: Mapping[str, Fault] = {
    "counts-summed": Fault(
        "rows are counted, not kept as a set", Partition, "_again", _counts_summed, ("crashes", "doubled")
    ),
    "lower-end-believed": Fault(
        "an END that counts only the last numbering is believed",
        Completeness,
        "_renumbered_is_complete",
        _lower_end_believed,
        ("renumbered",),
    ),
    "ends-not-awaited": Fault(
        "end offsets are not waited for", Completeness, "is_read_past", _always, _CRASHES
    ),
    "overtaken-in-part": Fault(
        "a transaction counts as overtaken with one partition left out",
        Completeness,
        "_is_overtaken",
        _one_partition_left_out,
        ("renumbered",),
    ),
    "any-order-is-original": Fault(
        "any run is taken for the original numbering",
        completeness,
        "original_numbering_is_complete",
        _always,
        _CRASHES,
    ),
    "any-run-is-last": Fault(
        "any run is taken for the last numbering",
        completeness,
        "last_numbering_is_complete",
        _always,
        _CRASHES,
    ),
    "end-is-enough": Fault(
        "END is enough, whatever it counts", completeness, "counts_are_complete", _end_is_enough, ("stalls",)
    ),
    "overtaken-in-one": Fault(
        "evidence `overtaken` is content with one partition",
        Completeness,
        "answer",
        _overtaken_in_one,
        ("dropped", "stalls"),
    ),
    "skips-not-named": Fault(
        "cuts do not name what an operator skipped", CutBuilder, "add_skipped", _nothing, ("lost",)
    ),
    "skips-early": Fault(
        "a skip does not wait for what stands in the topics",
        Frontier,
        "_skip",
        _edited("if not self._completeness.is_read_past(transaction, self._partitions)", "if False"),
        ("skips", "stalls"),
    ),
    "skips-of-any-timeline": Fault(
        "a decision about another timeline is obeyed",
        LoggedDecisions,
        "_concerns",
        _always,
        ("skips", "stalls"),
    ),
    "unfinished-not-named": Fault(
        "transactions without END are given up without being named",
        Frontier,
        "_drop_unfinished_before",
        _edited("self._built.add_skipped(xid)", "pass"),
        ("lost",),
    ),
    "clocks-believed": Fault(
        "rows of a snapshot are shown with a commit that is newer by a clock that may be wrong",
        Snapshots,
        "settle",
        _edited("rows.ts_ms + _SKEW_MS", "rows.ts_ms"),
        ("blocking", "crashes", "stalls"),
    ),
    "late-rows-first": Fault(
        "a row of a snapshot stands at the end of its batch, whatever changes it",
        SnapshotPlaces,
        "commit_lsn",
        _edited("min(self._next(of_key, message), self._next(truncates, message))", "self._end_lsn"),
        ("blocking",),
    ),
    "late-among-exact": Fault(
        "a batch holds late rows and a snapshot with the same LSN",
        admission,
        "_has_exact_rows",
        _nothing,
        ("blocking", "snapshot", "reader-crashes"),
    ),
    "equal-changes-are-one": Fault(
        "repeated rows are compared without the LSN of the change",
        BatchChanges,
        "_is_double",
        _edited("change.xid, change.lsn, change.table", "change.xid, change.table"),
        ("truncate", "crashes", "tail"),
    ),
    "old-timeline-read-again": Fault(
        "a reader of a new timeline reads what stands before it",
        Planner,
        "tasks",
        _edited("self.feed.beginning()", "{}"),
        ("timelines",),
    ),
    "old-data-read-again": Fault(
        "a sidecar of a new timeline reads what stands before it",
        resuming,
        "_beginning",
        _nothing_known_before,
        ("timelines",),
    ),
    "regressions-passed": Fault(
        "LSNs that go back are taken for repeats",
        RegressionWatch,
        "read_unknown_end",
        _never,
        ("timelines",),
    ),
    "old-ends-read-again": Fault(
        "a sidecar of a new timeline reads the ENDs of the one before",
        resuming,
        "_beginning",
        _edited("offset = max(decided.transaction_offset, known)", "offset = 0"),
        ("timelines",),
    ),
    "timelines-begin-again": Fault(
        "a decision for the timeline that is followed is obeyed again",
        LoggedDecisions,
        "_concerns",
        _always,
        ("timelines", "sidecar-crashes"),
    ),
    "gap-at-start": Fault(
        "a sidecar that starts again begins behind records that were removed",
        Lookup,
        "_start",
        _edited("raise SourceTruncatedError(*key, wanted, low, high)", "return low"),
        ("retention", "sidecar-crashes", "stalls"),
    ),
    "gap-while-reading": Fault(
        "a sidecar reads on behind records that were removed",
        Lookup,
        "error_of",
        _edited("if failure.is_lost and key in known:", "if False:"),
        ("retention", "stalls"),
    ),
    "gap-in-batch": Fault(
        "a reader takes what is left of a batch",
        SpanReader,
        "_assign",
        _edited("if self._may_start_late:", "if True:"),
        ("retention", "stalls", "reader-crashes"),
    ),
    "gap-in-log": Fault(
        "a reader goes on behind cuts that were removed",
        CutFeed,
        "_connect",
        _edited("may_start_anywhere=self._key.may_start_anywhere", "may_start_anywhere=True"),
        ("retention", "stalls", "reader-crashes"),
    ),
    "any-schema": Fault(
        "values are read with the first schema that is known",
        AvroToJson,
        "__call__",
        _edited("self._schemas.get(schema_id)", "next(iter(self._schemas.values()), None)"),
        ("avro",),
    ),
    "registry-away-is-damage": Fault(
        "values whose schema cannot be asked for are taken for damaged ones",
        AvroValues,
        "_converted",
        _edited("except WireFormatError as error:", "except (WireFormatError, RegistryError) as error:"),
        ("avro",),
    ),
    "nothing-held": Fault(
        "what was taken out of Kafka does not wait for the registry",
        Consumption,
        "_hand_over",
        _edited("self._held = messages", "pass"),
        ("avro",),
    ),
    "groups-take-all": Fault(
        "a group takes commits beyond its own LSNs", aggregate, "_span", _no_window, ("aggregate",)
    ),
    "groups-do-not-wait": Fault(
        "a group goes as far as the fastest of its partitions",
        groups._Group,  # noqa: SLF001 - the rule that is taken out
        "__init__",
        _edited(
            "min(known.covered_lsn, *(history.newest_lsn() for _, history in self._parts))",
            "min(known.covered_lsn, max(history.newest_lsn() for _, history in self._parts))",
        ),
        ("aggregate",),
    ),
    "groups-say-too-much": Fault(
        "a commit record says that what no cut has passed is reached, too",
        GroupOffset,
        "lsn",
        _lsn_of_groups,
        ("aggregate", "lost"),
    ),
    "groups-leave-out": Fault(
        "a group goes on where it stopped reading, not where a marker says",
        groups,
        "_moved",
        _read_on_at_the_end,
        ("aggregate",),
    ),
    "old-end-accepted": Fault(
        "a repeated END is taken for a new one", Ends, "_read_end", _old_end_accepted, ("crashes", "tail")
    ),
    "later-rows-passed": Fault(
        "end offsets of cuts are where reading is", Partition, "end_offset", _ends_at_position, ("stalls",)
    ),
    "repeats-not-named": Fault(
        "cuts do not name repeated transactions", Context, "drop", _repeats_not_named, ("crashes", "doubled")
    ),
    "redis-before-log": Fault(
        "a cut goes to Redis before the log has it",
        Publisher,
        "_write",
        _redis_before_log,
        ("sidecar-crashes", "two-sidecars"),
    ),
    "redis-believed": Fault(
        "a sidecar believes a position that the cut log does not have",
        StoreKeeper,
        "_is_in_log",
        _always,
        ("redis",),
    ),
    "resumed-too-late": Fault(
        "a sidecar goes on behind the newest cut",
        Resumption,
        "starts",
        _resumed_too_late,
        ("sidecar-crashes",),
    ),
    "table-not-applied": Fault(
        "a reader takes rows of unknown transactions",
        TransactionTable,
        "by_xid",
        _table_not_applied,
        ("crashes", "tail"),
    ),
    "doubles-kept": Fault(
        "a reader keeps repeated rows", BatchChanges, "_is_double", _never, ("crashes", "doubled")
    ),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Has a fault in place for a while; None: nothing happens."""
    if name is None:
        yield
        return
    fault = FAULTS[name]
    right = getattr(fault.owner, fault.attribute)
    setattr(fault.owner, fault.attribute, fault.replace(right))
    try:
        yield
    finally:
        setattr(fault.owner, fault.attribute, right)
