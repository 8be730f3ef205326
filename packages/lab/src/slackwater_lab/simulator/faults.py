"""Planted faults: rules taken out, to see that the simulator notices."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slackwater.cdc import Frontier, Partition, completeness
from slackwater.cdc.avro import AvroToJson
from slackwater.cdc.batch import TransactionTable
from slackwater.cdc.changes import BatchChanges, SnapshotPlaces
from slackwater.cdc.commits import Commits, RegressionWatch
from slackwater.cdc.completeness import Completeness
from slackwater.cdc.cuts import Barriers, Cuts
from slackwater.cdc.initial_snapshot import TableSnapshots
from slackwater.cdc.partition_queues import Fences, PartitionQueue
from slackwater.cdc.snapshots import Snapshots
from slackwater.pipeline.source import markers, planner
from slackwater.pipeline.source.kafka_reader import SpanReader
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.pipeline.source.segments import Segments
from slackwater.protocol import PublishedCut
from slackwater_lab.seeds import PlantedFault, edited, replaced
from slackwater_sidecar import Publisher
from slackwater_sidecar import resume as resuming
from slackwater_sidecar.consumption import AvroValues, Consumption
from slackwater_sidecar.mirror import RedisMirror
from slackwater_sidecar.publisher import PublishingState
from slackwater_sidecar.reader import SourceReader
from slackwater_sidecar.resume import LoggedDecisions, Resumption

Replacement = Callable[..., Any]


def _fault(
    rule: str,
    owner: Any,
    attribute: str,
    wrong: Callable[[Any], Any],
    only: tuple[str, ...],
    first_seed: int = 0,
) -> PlantedFault:
    return PlantedFault(rule, replaced(owner, attribute, wrong), only, first_seed)


def _gives(value: object) -> Callable[[Any], Replacement]:
    return lambda _: lambda *_: value


_always, _never, _nothing = _gives(True), _gives(False), _gives(None)


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


def _old_end_accepted(right: Replacement) -> Replacement:
    def read_end(self: Any, offset: int, end: Any, timestamp_ms: int) -> None:
        if self.open.get(end.xid) is None:
            self.last_lsn = min(self.last_lsn, end.commit_lsn - 1)
        right(self, offset, end, timestamp_ms)

    return read_end


def _redis_before_log(right: Replacement) -> Replacement:
    def write(self: Any, status: Any) -> None:
        cuts = enumerate(self.state.cuts_to_write(), self._log.end())
        self.mirror.put([PublishedCut(cut, offset) for offset, cut in cuts], status, is_whole=True)
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


def _repeats_not_named(right: Replacement) -> Replacement:
    def close(self: Any, transaction: Any, commit_lsn: int) -> None:
        named = set(self.repeated)
        right(self, transaction, commit_lsn)
        self.repeated = named

    return close


def _given_up_first(right: object) -> Replacement:
    def drop(self: Any, transaction: Any) -> bool:
        if transaction.commit_lsn > self._skip_lsn:
            return False
        for xid in self._commits.drop_unfinished(transaction.partitions, transaction.commit_lsn):
            self._cuts.add_skipped(xid)
        return bool(self._may_pass(transaction))

    return drop


def _overtaken_in_one(right: Replacement) -> Replacement:
    def answer(self: Any, ends: Any) -> None:
        right(self, ends)
        for table in self._overtaken_to:
            found = sorted(p.newest_sequence() for p in self._partitions.with_table(table))
            self._overtaken_to[table] = found[-1]

    return answer


_CRASHES = ("crashes", "renumbered", "stalls")

FAULTS: Mapping[str, PlantedFault] = {
    "counts-summed": _fault(
        "rows are counted, not kept as a set", Partition, "_again", _counts_summed, ("crashes", "doubled")
    ),
    "lower-end-believed": _fault(
        "an END that counts only the last numbering is believed",
        Completeness,
        "_renumbered_is_complete",
        _lower_end_believed,
        ("renumbered",),
        first_seed=110,
    ),
    "ends-not-awaited": _fault(
        "end offsets are not waited for", Fences, "is_read_past", _always, _CRASHES, first_seed=600
    ),
    "overtaken-in-part": _fault(
        "a transaction counts as overtaken with one partition left out",
        Completeness,
        "_is_overtaken",
        lambda right: lambda self, transaction, found: right(self, transaction, found[1:] or found),
        ("renumbered",),
        first_seed=130,
    ),
    "any-order-is-original": _fault(
        "any run is taken for the original numbering",
        completeness,
        "_original_numbering_is_complete",
        _always,
        _CRASHES,
    ),
    "any-run-is-last": _fault(
        "any run is taken for the last numbering",
        completeness,
        "_last_numbering_is_complete",
        _always,
        _CRASHES,
    ),
    "end-is-enough": _fault(
        "END is enough, whatever it counts",
        completeness,
        "counts_are_complete",
        lambda _: lambda transaction: transaction.end is not None,
        ("stalls",),
    ),
    "overtaken-in-one": _fault(
        "evidence `overtaken` is content with one partition",
        Completeness,
        "answer",
        _overtaken_in_one,
        ("dropped", "stalls"),
        first_seed=220,
    ),
    "skips-not-named": _fault(
        "cuts do not name what an operator skipped", Cuts, "add_skipped", _nothing, ("lost",)
    ),
    "skips-early": _fault(
        "a skip does not wait for what is in the topics",
        Frontier,
        "_skip",
        edited("if not self._fences.is_read_past(transaction, self._partitions)", "if False"),
        ("skips", "stalls"),
    ),
    "skips-of-any-timeline": _fault(
        "a decision about another timeline is obeyed",
        LoggedDecisions,
        "_concerns",
        _always,
        ("skips", "stalls"),
    ),
    "unfinished-not-named": _fault(
        "transactions without END are given up without being named",
        Frontier,
        "_drop_unfinished_before",
        edited("self._cuts.add_skipped(xid)", "pass"),
        ("lost",),
    ),
    "skips-decided-twice": _fault(
        "a sidecar continues although another one's cut decides what is skipped",
        PublishingState,
        "drop_written",
        edited("c.skipped and", "False and"),
        ("lost", "skips", "stalls", "two-sidecars"),
    ),
    "skips-read-across": _fault(
        "a batch shows rows that arrived after their transaction was skipped",
        Segments,
        "add",
        edited("self._with_skips.append(segment)", "pass"),
        ("skips", "stalls"),
    ),
    "clocks-believed": _fault(
        "rows of a snapshot are shown with a commit that is newer by a clock that may be wrong",
        Snapshots,
        "settle",
        edited("rows.ts_ms + CLOCK_SKEW_MS", "rows.ts_ms"),
        ("blocking", "crashes", "stalls"),
    ),
    "barriers-everywhere": _fault("every commit is a barrier", Barriers, "is_before", _always, ()),
    "barriers-without-cuts": _fault(
        "no cut ends at a barrier",
        Frontier,
        "_end_at_barrier",
        edited("self._end_cut_below()", "pass"),
        ("stalls",),
    ),
    "barriers-passed": _fault("batches pass barriers", Segments, "_add_barrier", _nothing, ("stalls",)),
    "late-rows-first": _fault(
        "a row of a snapshot is placed at the end of its batch, whatever changes it",
        SnapshotPlaces,
        "commit_lsn",
        edited("min(self._next(of_key, message), self._next(truncates, message))", "self._end_lsn"),
        ("blocking",),
    ),
    "late-among-exact": _fault(
        "a batch holds late rows and a snapshot with the same LSN",
        Segments,
        "stops",
        lambda _: property(lambda segments: frozenset()),
        ("blocking", "snapshot", "reader-crashes"),
        first_seed=180,
    ),
    "equal-changes-are-one": _fault(
        "repeated rows are compared without the LSN of the change",
        BatchChanges,
        "_is_double",
        edited("change.xid, change.lsn, change.table", "change.xid, change.table"),
        ("truncate", "crashes", "tail"),
    ),
    "old-timeline-read-again": _fault(
        "a reader of a new timeline reads what precedes it",
        Planner,
        "_with_topics",
        edited("self.feed.beginning()", "{}"),
        ("timelines",),
    ),
    "old-data-read-again": _fault(
        "a sidecar of a new timeline reads what precedes it",
        resuming,
        "_beginning",
        lambda right: lambda *arguments: replace(right(*arguments), read_from=None),
        ("timelines",),
    ),
    "regressions-passed": _fault(
        "LSNs that go back are taken for repeats",
        RegressionWatch,
        "read_unknown_end",
        _never,
        ("timelines",),
    ),
    "old-ends-read-again": _fault(
        "a sidecar of a new timeline reads the ENDs of the one before",
        resuming,
        "_beginning",
        edited("offset = max(decision.transaction_offset, known)", "offset = 0"),
        ("timelines",),
    ),
    "timelines-begin-again": _fault(
        "a decision for the timeline that is followed is obeyed again",
        LoggedDecisions,
        "_concerns",
        _always,
        ("timelines", "sidecar-crashes"),
    ),
    "gap-at-start": _fault(
        "a sidecar that starts again begins behind records that were removed",
        SourceReader,
        "_start",
        edited("raise truncated(*key, wanted, low, high)", "return low"),
        ("retention", "sidecar-crashes", "stalls"),
    ),
    "gap-while-reading": _fault(
        "a sidecar reads on behind records that were removed",
        SourceReader,
        "_error_of",
        edited("if failure.is_lost and key in self._assigned:", "if False:"),
        ("retention", "stalls"),
        first_seed=180,
    ),
    "gap-in-batch": _fault(
        "a reader takes what is left of a batch",
        SpanReader,
        "_assign",
        edited("if self._may_start_late:", "if True:"),
        ("retention", "stalls", "reader-crashes"),
    ),
    "gap-in-log": _fault(
        "a reader continues after cuts that were removed",
        Segments,
        "__init__",
        edited("= may_start_anywhere", "= True"),
        ("retention", "stalls", "reader-crashes"),
        first_seed=170,
    ),
    "any-schema": _fault(
        "values are read with the first schema that is known",
        AvroToJson,
        "__call__",
        edited("self._schemas.get(schema_id)", "next(iter(self._schemas.values()), None)"),
        ("avro",),
    ),
    "registry-away-is-damage": _fault(
        "values whose schema cannot be asked for are taken for damaged ones",
        AvroValues,
        "_converted",
        edited(
            "except UndecodableRecordError as error:",
            "except (UndecodableRecordError, RegistryUnavailableError) as error:",
        ),
        ("avro",),
    ),
    "nothing-held": _fault(
        "what was taken out of Kafka does not wait for the registry",
        Consumption,
        "_convert",
        edited("self._held = messages", "pass"),
        ("avro",),
    ),
    "groups-take-all": _fault(
        "a group takes commits beyond its own LSNs",
        planner,
        "_group_span",
        lambda _: lambda span, window, end: span,
        ("aggregate",),
    ),
    "groups-do-not-wait": _fault(
        "a group goes as far as the fastest of its partitions",
        markers._Group,  # noqa: SLF001 - the rule that is taken out
        "__init__",
        edited(
            "min((known.covered_lsn, *(history.newest_lsn() for _, history in self._parts)))",
            "min(known.covered_lsn, max(history.newest_lsn() for _, history in self._parts))",
        ),
        ("aggregate",),
    ),
    "groups-say-too-much": _fault(
        "a commit record says that what no cut has passed is reached, too",
        Position,
        "lsn",
        lambda _: property(lambda offset: min(offset.lsns, default=0)),
        ("aggregate", "lost"),
    ),
    "groups-leave-out": _fault(
        "a group continues where it stopped reading, not where a marker says",
        markers,
        "move_position",
        lambda right: lambda *arguments: replace(found := right(*arguments), start=found.read_to),
        ("aggregate",),
    ),
    "old-end-accepted": _fault(
        "a repeated END is taken for a new one", Commits, "_read_end", _old_end_accepted, ("crashes", "tail")
    ),
    "given-up-below": _fault(
        "a cut ends between a transaction that is given up and the one behind it",
        Frontier,
        "_drop_unfinished_before",
        _given_up_first,
        ("lost", "skips"),
    ),
    "skipped-snapshot-ignored": _fault(
        "a source has cuts though it has had no snapshot",
        TableSnapshots,
        "why_none",
        lambda _: lambda _self: "",
        ("skipped-snapshot",),
    ),
    "later-rows-passed": _fault(
        "end offsets of cuts are where reading is",
        PartitionQueue,
        "end_offset",
        lambda _: lambda partition: partition.position,
        ("stalls",),
    ),
    "repeats-not-named": _fault(
        "cuts do not name repeated transactions",
        Commits,
        "_close",
        _repeats_not_named,
        ("crashes", "doubled"),
    ),
    "redis-before-log": _fault(
        "a cut goes to Redis before the log has it",
        Publisher,
        "_write_cuts",
        _redis_before_log,
        ("sidecar-crashes", "two-sidecars"),
    ),
    "redis-believed": _fault(
        "a sidecar believes a position that the cut log does not have",
        RedisMirror,
        "_is_in_log",
        _always,
        ("redis",),
    ),
    "resumed-too-late": _fault(
        "a sidecar continues after the newest cut",
        Resumption,
        "starts",
        _resumed_too_late,
        ("sidecar-crashes",),
    ),
    "table-not-applied": _fault(
        "a reader takes rows of unknown transactions",
        TransactionTable,
        "by_xid",
        lambda right: lambda self: _AnyXid(right(self)),
        ("crashes", "tail"),
    ),
    "doubles-kept": _fault(
        "a reader keeps repeated rows", BatchChanges, "_is_double", _never, ("crashes", "doubled")
    ),
}
