"""Meters and their readings; one meter gets nine of ten changes.

Invariant in every committed state: a meter's ``readings`` and ``consumed`` are the number and the sum of its
readings. Every writer adds to every meter, so the hot one is changed relative to what it is.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from slackwater_lab.workloads.workload import (
    BusinessTransaction,
    Delete,
    Insert,
    Operation,
    Plus,
    Update,
    Value,
    Workload,
    money,
    workload_pipeline,
)

_METERS = "metering.meters"
_READINGS = "metering.readings"

_HOT_METER = 1
_HOT_SHARE = 0.9
_MAX_HOT = 1_000
"""Readings of the hot meter, all writers together."""
_MAX_OTHER = 4
"""Readings of each other meter, on average."""


class _Reading(NamedTuple):
    """A reading, as its writer knows it."""

    id: int
    meter: int
    cents: int


@dataclass(frozen=True, slots=True)
class HotKeyWorkload(Workload):
    """New, corrected and removed readings; some transactions are rolled back.

    ``size`` is the number of meters, at least two.
    """

    name: ClassVar[str] = "hot-key"
    pipeline: Path = field(default=workload_pipeline("hot-key"), kw_only=True)
    hot_share: float = _HOT_SHARE
    """Of the changes, those of the hot meter."""

    def first(self) -> Iterator[BusinessTransaction]:
        for meter in range(1, max(2, self.size) + 1):
            name = f"meter-{meter}"
            row: dict[str, Value] = {"id": meter, "name": name, "readings": 0, "consumed": money(0)}
            yield BusinessTransaction((Insert(_METERS, row),))

    def transactions(self, writer: int, writers: int) -> Iterator[BusinessTransaction]:
        return _Writer(self, writer, writers).transactions()


class _Writer:
    def __init__(self, workload: HotKeyWorkload, writer: int, writers: int) -> None:
        meters = max(2, workload.size)
        self._random = workload.new_random(writer, writers)
        self._hot_share = workload.hot_share
        self._meters = meters
        self._ids = count(1 + writer, writers)
        self._hot: deque[_Reading] = deque()
        self._others: deque[_Reading] = deque()
        self._max_hot = max(2, _MAX_HOT // writers)
        self._max_others = max(2, _MAX_OTHER * meters // writers)

    def transactions(self) -> Iterator[BusinessTransaction]:
        rng = self._random.random
        while True:
            is_hot = rng() < self._hot_share
            own, most = (self._hot, self._max_hot) if is_hot else (self._others, self._max_others)
            meter = _HOT_METER if is_hot else 2 + int(rng() * (self._meters - 1))
            if rng() < 0.03:
                yield BusinessTransaction(self._add(self._new(meter)), is_rolled_back=True)
            elif len(own) >= most:
                yield BusinessTransaction(self._remove(own.popleft()))
            elif own and rng() < 0.3:
                yield BusinessTransaction(self._correct(own))
            else:
                own.append(self._new(meter))
                yield BusinessTransaction(self._add(own[-1]))

    def _new(self, meter: int) -> _Reading:
        return _Reading(next(self._ids), meter, 1 + int(self._random.random() * 10_000))

    def _add(self, new: _Reading) -> tuple[Operation, ...]:
        row: dict[str, Value] = {"id": new.id, "meter_id": new.meter, "amount": money(new.cents)}
        return Insert(_READINGS, row), _adjust(new.meter, 1, new.cents)

    def _remove(self, old: _Reading) -> tuple[Operation, ...]:
        return Delete(_READINGS, old.id), _adjust(old.meter, -1, -old.cents)

    def _correct(self, own: deque[_Reading]) -> tuple[Operation, ...]:
        old = own.popleft()
        new = old._replace(cents=1 + int(self._random.random() * 10_000))
        own.append(new)
        change = Update(_READINGS, new.id, {"amount": money(new.cents)})
        return change, _adjust(new.meter, 0, new.cents - old.cents)


def _adjust(meter: int, readings: int, cents: int) -> Update:
    return Update(_METERS, meter, {"readings": Plus(readings), "consumed": Plus(money(cents))})
