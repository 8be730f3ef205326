"""Rules taken out, to see that the simulator notices. ``faults.toml`` says which, and where they are."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pkgutil import resolve_name
from typing import Any

from slackwater.protocol import PublishedCut
from slackwater_lab.seeds import PlantedFault, edited, replaced

Replacement = Callable[..., Any]


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


_ALWAYS: Mapping[str, object] = {"always": True, "never": False, "nothing": None}
_WRONG: Mapping[str, Callable[[Any], Any]] = {
    "counts-summed": _counts_summed,
    "lower-end-believed": _lower_end_believed,
    "overtaken-in-part": lambda right: (
        lambda self, transaction, found: right(self, transaction, found[1:] or found)
    ),
    "end-is-enough": lambda _: lambda transaction: transaction.end is not None,
    "overtaken-in-one": _overtaken_in_one,
    "late-among-exact": lambda _: property(lambda segments: frozenset()),
    "old-data-read-again": lambda right: lambda *arguments: replace(right(*arguments), read_from=None),
    "groups-take-all": lambda _: lambda span, window, end: span,
    "groups-say-too-much": lambda _: property(lambda offset: min(offset.lsns, default=0)),
    "groups-leave-out": lambda right: (
        lambda *arguments: replace(found := right(*arguments), start=found.read_to)
    ),
    "old-end-accepted": _old_end_accepted,
    "given-up-below": _given_up_first,
    "skipped-snapshot-ignored": lambda _: lambda _self: "",
    "later-rows-passed": lambda _: lambda partition: partition.position,
    "repeats-not-named": _repeats_not_named,
    "redis-before-log": _redis_before_log,
    "resumed-too-late": _resumed_too_late,
    "table-not-applied": lambda right: lambda self: _AnyXid(right(self)),
}
"""What takes the place of rules that no edit of a line takes out, by fault."""


def _faults() -> Iterator[tuple[str, PlantedFault]]:
    text = (resources.files("slackwater_lab") / "simulator" / "faults.toml").read_text()
    for name, fields in tomllib.loads(text).items():
        if "old" in fields:
            wrong = edited(fields["old"], fields["new"])
        elif "gives" in fields:
            wrong = _gives(_ALWAYS[fields["gives"]])
        else:
            wrong = _WRONG[name]
        plant = replaced(resolve_name(fields["owner"]), fields["attribute"], wrong)
        only, first_seed = tuple(fields.get("only", ())), fields.get("first_seed", 0)
        yield name, PlantedFault(fields["rule"], plant, only, first_seed)


def _gives(value: object) -> Callable[[Any], Replacement]:
    return lambda _: lambda *_: value


FAULTS: Mapping[str, PlantedFault] = dict(_faults())
"""By name."""
