"""Applies partials to the groups of a bucket: updates their numbers and evaluates the differences.

The module is pure: no Spark, disk or clock. The rows of a group are not stored. The cost of a batch depends
on the number of changed values, not on the size of the groups.

The numbers of a group are a list. It contains `n`; then, for each COUNT, the count, and for each SUM, the
number of values and the sum in units of its last decimal; then, for each multiset, the number of different
values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import add
from typing import Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa

from slackwater.engine.evaluate.multiset import OrderedMultiset, Refusal, multiset_prefix, sort_key_of
from slackwater.engine.evaluate.points import BEFORE, Call, decoded_rows
from slackwater.engine.evaluate.ranks import RankedMultiset
from slackwater.engine.evaluate.top import TopRows, without_common
from slackwater.engine.evaluate.withheld import KeyStatus, WithheldKeys
from slackwater.engine.index import Contents
from slackwater.engine.payloads import TOUCH_INPUT, Outcome, Partial, array_header
from slackwater.engine.state.entry import ACCUMULATORS_TAG, is_digest, part, sharer_part
from slackwater.protocol import StateError
from slackwater.sql.errors import EvaluationError
from slackwater.sql.limits import DEFAULT_LIMITS, StatementLimits
from slackwater.sql.plan import (
    ACCUMULATORS_TABLE,
    MULTISETS,
    POINTS_TABLE,
    STEPS_TABLE,
    UNKNOWN_ROWS,
    AccumulatePart,
    AccumulatorKind,
    PartialsOutput,
)
from slackwater.sql.stage_evaluation import (
    POINTS_SCHEMA,
    STEPS_SCHEMA,
    ResultPoints,
    ResultRows,
    StatementEvaluator,
    accumulators_schema,
)

Numbers = list[int]

_INT64: Final = range(-(2**63), 2**63)
_encode = msgspec.msgpack.Encoder().encode


class _Stored(msgspec.Struct, array_like=True):
    """The stored form of a group's numbers; numbers of more than 64 bits are text.

    It also contains the group's key if the entry's name contains only its digest, and how many of its rows
    cannot be evaluated.
    """

    numbers: list[int | str]
    key: bytes | None = None
    unknown: int = 0


_decode_stored = msgspec.msgpack.Decoder(_Stored).decode


Shown = tuple[Any, ...]
"""The values of a group at a point, as SQL sees them: the numbers, then the texts that are taken from
multisets; of a TOP the rows, as JSON arrays."""


class AccumulatorLayout:
    """Assigns each accumulator of a part its place in a group's numbers. Stateless after construction."""

    def __init__(self, accumulate: AccumulatePart) -> None:
        self._accumulators = accumulate.accumulators
        self._key = accumulate.key
        self._positions: dict[int, int] = {}
        self._scales: list[tuple[int, int]] = []
        self._counted: list[tuple[int, str]] = [(0, "count(*)")]
        width = 1
        for number, accumulator in enumerate(self._accumulators):
            if accumulator.kind in MULTISETS:
                continue
            self._positions[number] = width
            self._counted.append((width, accumulator.text))
            if accumulator.kind is AccumulatorKind.SUM:
                width += 1
                self._scales.append((width, accumulator.scale))
            width += 1
        self.added: Final = width
        """How many numbers a partial adds to; they come first in the list."""
        self.multisets: Final = tuple(sorted({a.multiset for a in self._accumulators if a.kind in MULTISETS}))
        """The numbers of the multisets, in the order of the numbers that count their values."""
        self.width: Final = width + len(self.multisets)
        self.schema: Final = accumulators_schema(self._key, self._accumulators)
        """The schema of ``ACCUMULATORS_TABLE``."""
        self._picking = tuple(a for a in self._accumulators if a.kind in _PICKED)
        self._ranked = frozenset(a.multiset for a in self._picking if a.quantile is not None)
        self.top: Final = next((a for a in self._accumulators if a.kind is AccumulatorKind.TOP), None)
        """The accumulator of a TOP, which is then the only one."""
        self._multiset = OrderedMultiset if self.top is None else partial(TopRows, self.top)

    def addition(self, values: list[Any]) -> Numbers:
        """Returns the numbers that a partial adds, read from its list of wire values."""
        for position, scale in self._scales:
            text = values[position]
            values[position] = unscaled(text, scale) if text else 0
        return values

    def encode(self, numbers: Numbers, key: bytes | None, unknown: int = 0) -> bytes:
        """Returns the value of a group's entry.

        It contains the group's packed key if the entry's name does not, and the number of its unknown rows.
        """
        more: tuple[bytes | int | None, ...] = (key, unknown) if unknown else () if key is None else (key,)
        try:
            return _encode((numbers, *more))
        except OverflowError:
            stored = [number if number in _INT64 else str(number) for number in numbers]
            return _encode((stored, *more))

    def decode(self, data: bytes) -> Numbers:
        """Inverse of :meth:`encode`."""
        numbers = _decode_stored(data).numbers
        return [int(number) for number in numbers] if str in map(type, numbers) else cast("Numbers", numbers)

    def multiset(
        self, number: int, contents: Contents, prefix: bytes, touched: Mapping[bytes, str]
    ) -> OrderedMultiset:
        """Returns the multiset of this number, of which a batch touches some values."""
        kind = RankedMultiset if number in self._ranked else self._multiset
        return kind(contents, prefix, touched)

    def picked(self, numbers: Numbers, multisets: Mapping[int, OrderedMultiset]) -> list[str | None]:
        """Returns the texts of the values that MIN, MAX and QUANTILE take from a group's multisets."""
        texts: list[str | None] = []
        for accumulator in self._picking:
            multiset, quantile = multisets[accumulator.multiset], accumulator.quantile
            if quantile is None:
                texts.append(multiset.end(is_largest=accumulator.kind is AccumulatorKind.MAX))
            elif isinstance(multiset, RankedMultiset):
                count = numbers[self._positions[quantile.counted]]
                texts += [multiset.nth(index) for index in quantile.indexes(count)] if count else (None, None)
        return texts

    def impossible(self, numbers: Sequence[int]) -> tuple[str, int] | None:
        """Returns an impossible count, with the aggregate that it belongs to; None if there is none."""
        for position, text in self._counted:
            if numbers[position] < 0:
                return text, numbers[position]
        if not numbers[0] and any(numbers):
            return "aggregates other than count(*)", next(number for number in numbers if number)
        return None

    def rows(self, shown: Sequence[Shown | None]) -> list[tuple[int, Shown]]:
        """Returns the rows of ``ACCUMULATORS_TABLE`` of points, each with the number of its point."""
        if self.top is None:
            return [(number, values) for number, values in enumerate(shown) if values is not None]
        numbers = [number for number, texts in enumerate(shown) for _ in texts or ()]
        rows = decoded_rows([text for texts in shown for text in texts or ()])
        return [(number, (1, *row)) for number, row in zip(numbers, rows, strict=True)]

    def table(
        self,
        points: Sequence[int],
        groups: Sequence[int],
        keys: Iterable[Sequence[Any]],
        shown: Sequence[Shown],
    ) -> pa.Table:
        """Returns the rows of ``ACCUMULATORS_TABLE``. All arguments have one item per row.

        Raises:
            ValueError: A number does not fit its column.
        """
        columns: list[Sequence[Any]] = [points, groups]
        columns += list(zip(*keys, strict=True)) or [()] * len(self._key)
        columns += self._columns(shown)
        schema = self.schema
        try:
            arrays = [pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = f"accumulators: values do not fit {schema}: {error}"
            raise ValueError(msg) from error
        return pa.Table.from_arrays(arrays, schema=schema)

    def _columns(self, shown: Sequence[Shown]) -> Iterator[Sequence[Any]]:
        if self.top is not None:
            yield from zip(*shown, strict=True) if shown else [()] * (2 + len(self.top.columns))
            return
        of_picked = sum(_PICKED[accumulator.kind] for accumulator in self._picking)
        columns = list(zip(*shown, strict=True)) or [()] * (self.width + of_picked)
        picked = iter(columns[self.width :])
        yield columns[0]
        for number, accumulator in enumerate(self._accumulators):
            if accumulator.kind in _PICKED:
                yield from islice(picked, _PICKED[accumulator.kind])
            elif accumulator.kind is AccumulatorKind.DISTINCT:
                yield columns[self.added + self.multisets.index(accumulator.multiset)]
            else:
                position = self._positions[number]
                yield columns[position]
                if accumulator.kind is AccumulatorKind.SUM:
                    scale = accumulator.scale
                    yield [decimal_text(sum_, scale) for sum_ in columns[position + 1]]


_PICKED: Final = {AccumulatorKind.MIN: 1, AccumulatorKind.MAX: 1, AccumulatorKind.QUANTILE: 2}
"""How many values of its multiset an accumulator shows."""


def unscaled(text: str, scale: int) -> int:
    """Returns a decimal number in units of its last decimal.

    Raises:
        ValueError: The text is not a decimal number with at most `scale` decimals.
    """
    if scale and text[~scale:-scale] == ".":
        return int(text[:~scale] + text[-scale:])
    whole, _, decimals = text.partition(".")
    if len(decimals) > scale:
        msg = f"the sum {text!r} has more than {scale} decimals"
        raise ValueError(msg)
    return int(whole + decimals.ljust(scale, "0"))


def decimal_text(number: int, scale: int) -> str:
    """Inverse of :func:`unscaled`; it writes all decimals."""
    if not scale:
        return str(number)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


MAX_POINTS_PER_CALL: Final = 100_000
"""Limits the memory of one evaluation."""

_decode_key = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
_NUMBERS: Final = -1
"""Marks a partial that adds to the group's numbers; any other number identifies a multiset."""

_NOTHING: Final = b"\x90"
_decode_rests = msgspec.msgpack.Decoder(list[list[Any]]).decode


class _Unknown(NamedTuple):
    """Is shown of a group some of whose rows cannot be evaluated; equal to nothing else that is shown."""

    rows: int
    what: str = "unknown"


class _GroupPoints(NamedTuple):
    """The points at which a group changes, after the point that they are compared with."""

    key: bytes
    lsns: list[int]
    shown: list[Shown | None]
    """None for a point at which the group does not exist."""
    is_fresh: bool
    """Whether the group had no result before the batch."""


class AccumulateEvaluation:
    """Applies partials to the groups of buckets. Use it from one thread."""

    def __init__(
        self,
        accumulate: AccumulatePart,
        *,
        name: str,
        every_commit: bool,
        limits: StatementLimits = DEFAULT_LIMITS,
        max_points: int = MAX_POINTS_PER_CALL,
        sharer: int = 0,
        withheld: WithheldKeys | None = None,
    ) -> None:
        """Prepares the evaluation of a part.

        With `every_commit`, results at each commit that changes a group are wanted (`transactions`),
        otherwise those after the batch (`latest`). The name is that of the views, for errors.
        """
        self._name = name
        self._sharer = sharer_part(sharer)
        self._withheld = withheld
        self._key_names = [column.name for column in accumulate.key]
        self._is_global = accumulate.is_global
        self._layout = AccumulatorLayout(accumulate)
        self._multiset_texts = {a.multiset: a.text for a in reversed(accumulate.accumulators)}
        self._every_commit = every_commit
        ranks = None if self._layout.top is None else self._layout.top.ranks
        self._max_points = max_points if ranks is None else max(2, max_points // max(1, ranks.last))
        self._has_steps = isinstance(accumulate.output, PartialsOutput)
        tables = {ACCUMULATORS_TABLE: self._layout.schema, POINTS_TABLE: POINTS_SCHEMA}
        if self._has_steps:
            tables[STEPS_TABLE] = STEPS_SCHEMA
        self._evaluator = StatementEvaluator(
            accumulate.statement,
            tables,
            name=name,
            inputs={ACCUMULATORS_TABLE: "the group"},
            limits=limits,
        )

    def __call__(
        self, partials: Sequence[Partial], contents: Contents, outcome: Outcome
    ) -> list[tuple[ResultPoints, ResultRows]]:
        """Returns the results of the part's statement that these partials change, by the keys of the groups.

        Adds the changes of the groups to the outcome, and only reads `contents`.

        Raises:
            StateError: More is subtracted from a group than was ever added.
            EvaluationError: The part's SQL fails on a group.
        """
        additions = _Additions(self._layout, partials, every_commit=self._every_commit)
        prefixes = {key: part(key) + self._sharer for key in sorted(additions.groups)}
        names = [prefix + ACCUMULATORS_TAG for prefix in prefixes.values()]
        if self._withheld is not None:
            names += map(self._withheld.entry, prefixes)
        stored = contents.get_many(names)
        status = None if self._withheld is None else KeyStatus(self._withheld, outcome)
        groups = (
            self._applied(self._group(key, prefix, stored, status), additions, contents, outcome)
            for key, prefix in prefixes.items()
        )
        calls = self._calls(g for g in groups if g is not None)
        results = [self._evaluated(call, status) for call in calls]
        if status is not None:
            status.keep()
        return results

    def _group(
        self, key: bytes, prefix: bytes, stored: Mapping[bytes, bytes], status: KeyStatus | None
    ) -> "_Group":
        data = stored.get(prefix + ACCUMULATORS_TAG)
        numbers = [0] * self._layout.width if data is None else self._layout.decode(data)
        is_withheld = self._withheld is not None and self._withheld.entry(key) in stored
        if is_withheld and status is not None:
            status.begin(key)
        unknown = 0 if status is None or data is None else _decode_stored(data).unknown
        return _Group(key, prefix, data, numbers, {}, is_withheld, unknown)

    def _applied(
        self, group: "_Group", additions: "_Additions", contents: Contents, outcome: Outcome
    ) -> _GroupPoints | None:
        """Returns the points at which a group changes; None if there are none."""
        steps = additions.groups[group.key]
        different = group.numbers[self._layout.added :]
        for number in self._layout.multisets:
            prefix, touched = multiset_prefix(group.prefix, number), additions.touched(steps, number)
            group.multisets[number] = self._layout.multiset(number, contents, prefix, touched)
        is_fresh = group.is_withheld or (self._is_global and group.stored is None)
        lsns: list[int] = [] if is_fresh else [BEFORE]
        shown = [] if is_fresh else [self._shown(group)]
        for lsn in sorted(steps) if len(steps) > 1 else steps:
            self._advance(group, steps[lsn], different, lsn)
            now = self._shown(group)
            if not shown or now != shown[-1]:
                lsns.append(lsn)
                shown.append(now)
        self._keep(group, outcome)
        if self._layout.top is not None and self._withheld is None:  # else all rows may have to be withdrawn
            shown = without_common(shown)
        return _GroupPoints(group.key, lsns, shown, is_fresh) if is_fresh or len(lsns) > 1 else None

    def _advance(self, group: "_Group", step: "_Step", different: Numbers, lsn: int) -> None:
        """Applies a step; `different` contains the number of values of each multiset before the batch."""

        def refusal(what: str, count: int) -> Exception:
            return StateError(
                f"group {self._key_name(group.key)}, commit LSN {lsn}: {what} counts {count} rows, but no "
                "count may be negative, and all must be 0 in a group without rows: a row was removed that "
                "was never added. The state is damaged, or this is a bug: start with a new checkpoint, and "
                "report it"
            )

        numbers, added = group.numbers, self._layout.added
        group.unknown += step.unknown
        numbers[0] += step.unknown
        if group.unknown < 0:
            raise refusal("rows that cannot be evaluated", group.unknown)
        if step.numbers is not None:
            numbers[:added] = map(add, numbers, step.numbers)
        if step.values is not None:
            for number, values in step.values.items():
                of_value = _value_refusal(refusal, self._multiset_texts[number])
                group.multisets[number].add(values, of_value, step.texts)
            for index, multiset in enumerate(group.multisets.values()):
                numbers[added + index] = different[index] + multiset.gained
        problem = self._layout.impossible(numbers)
        if problem is not None:
            raise refusal(*problem)

    def _shown(self, group: "_Group") -> Shown | None:
        if not group.numbers[0] and not self._is_global:
            return None
        if group.unknown:
            return _Unknown(group.unknown)
        for multiset in group.multisets.values():
            if isinstance(multiset, TopRows):
                return multiset.shown()
        return (*group.numbers, *self._layout.picked(group.numbers, group.multisets))

    def _keep(self, group: "_Group", outcome: Outcome) -> None:
        is_there = self._is_global or group.numbers[0]
        key = group.key if is_digest(group.prefix) else None
        data = self._layout.encode(group.numbers, key, group.unknown) if is_there else None
        outcome.change(group.prefix + ACCUMULATORS_TAG, group.stored, data)
        for multiset in group.multisets.values():
            multiset.conclude(outcome)

    def _calls(self, groups: Iterable[_GroupPoints]) -> Iterator["_GroupCall"]:
        """Yields the groups in calls of limited size. If a group is split, one point is in both calls."""
        call = _GroupCall()
        for group in groups:
            start, end = 0, 0
            while end < len(group.lsns):
                end = min(len(group.lsns), start + max(2, self._max_points - len(call.call.points)))
                call.add(group, start, end)
                start = end - 1
                if len(call.call.points) >= self._max_points:
                    yield call
                    call = _GroupCall()
        if len(call.call.points):
            yield call

    def _evaluated(self, call: "_GroupCall", status: KeyStatus | None) -> tuple[ResultPoints, ResultRows]:
        points, packed_keys = call.call.points, call.call.keys
        unknown = {n: shown for n, shown in enumerate(call.shown) if isinstance(shown, _Unknown)}
        there = self._layout.rows([None if n in unknown else shown for n, shown in enumerate(call.shown)])
        numbers = [number for number, _ in there]
        groups = [points.groups[number] for number in numbers]
        keys = [_decode_key(key) for key in packed_keys]
        rows = self._layout.table(
            numbers, groups, [keys[group] for group in groups], [shown for _, shown in there]
        )
        tables = {ACCUMULATORS_TABLE: rows} | points.tables(has_steps=self._has_steps)
        points.failures = None if status is None else {}
        found = self._evaluator.rows(
            tables, lambda group: self._key_name(packed_keys[group]), failures=points.failures
        )
        if status is not None and points.failures is not None:
            for number, of_group in unknown.items():
                problem = f"{of_group.rows:,} of its rows cannot be evaluated"
                name = self._key_name(packed_keys[points.groups[number]])
                points.failures[number] = EvaluationError(self._name, name, problem)
            status.note_points(points, packed_keys)
        return points, found

    def _key_name(self, key: bytes) -> str:
        return msgspec.json.encode(dict(zip(self._key_names, _decode_key(key), strict=True))).decode()


@dataclass(slots=True)
class _Group:
    """A group as it is before the batch, and after each of its commits."""

    key: bytes
    prefix: bytes
    stored: bytes | None
    numbers: Numbers
    multisets: dict[int, OrderedMultiset]
    is_withheld: bool = False
    unknown: int = 0
    """How many of its rows cannot be evaluated."""


@dataclass(slots=True)
class _GroupCall:
    """A call whose keys are groups, and which has no rows."""

    call: Call = field(default_factory=lambda: Call(0))
    shown: list[Shown | None] = field(default_factory=list)
    """The values at each point, as SQL sees them."""

    def add(self, group: _GroupPoints, start: int, end: int) -> None:
        """Adds a range of points of a group."""
        self.call.add(group.key, group.lsns[start:end], is_fresh=group.is_fresh and not start)
        self.shown += group.shown[start:end]


def _value_refusal(refusal: Refusal, aggregate: str) -> Refusal:
    return lambda text, count: refusal(f"{text!r} in {aggregate}", count)


@dataclass(slots=True)
class _Step:
    """What is added to a group at one commit.

    Attributes:
        numbers: What is added to the first numbers; None if nothing is.
        values: What is added to the multisets, by their number and the sort key; None if nothing is.
        texts: The texts of the values that are added, by sort key, of a TOP.
        unknown: How many rows are added that cannot be evaluated.
    """

    numbers: Numbers | None = None
    values: dict[int, dict[bytes, int]] | None = None
    texts: dict[bytes, str] = field(default_factory=dict)
    unknown: int = 0


class _Additions:
    """The partials of a batch. Several partials of one group and commit are combined into one step.

    Attributes:
        groups: The steps by packed key and commit LSN; with `latest`, one step per group, at the newest
            commit.
    """

    def __init__(self, layout: AccumulatorLayout, partials: Sequence[Partial], *, every_commit: bool) -> None:
        self.groups: dict[bytes, dict[int, _Step]] = {}
        self._texts: dict[int, dict[bytes, str]] = {number: {} for number in layout.multisets}
        self._is_top = layout.top is not None
        self._every_commit = every_commit
        groups, addition = self.groups, layout.addition
        rests = b"".join([rest or _NOTHING for _, _, _, rest in partials])
        decoded = _decode_rests(array_header(len(partials)) + rests)
        for (lsn, number, key, _), values in zip(partials, decoded, strict=True):
            steps = groups.get(key)
            if steps is None:
                steps = groups[key] = {}
            step = steps.get(lsn)
            if step is None:
                step = self._step(steps, lsn)
            if number == _NUMBERS:
                more = addition(values)
                step.numbers = more if step.numbers is None else list(map(add, step.numbers, more))
            elif number == UNKNOWN_ROWS:
                step.unknown += values[0]
            elif number != TOUCH_INPUT:
                self._add_value(step, number, values)

    def touched(self, steps: dict[int, _Step], number: int) -> dict[bytes, str]:
        """Returns the sort keys and texts of the values of a multiset that these steps add to."""
        texts = self._texts[number]
        return {
            sort_key: texts[sort_key]
            for step in steps.values()
            if step.values is not None
            for sort_key in step.values.get(number, ())
        }

    def _step(self, steps: dict[int, _Step], lsn: int) -> _Step:
        if self._every_commit or not steps:
            step = steps[lsn] = _Step()
            return step
        ((newest, step),) = steps.items()
        if newest < lsn:
            del steps[newest]
            steps[lsn] = step
        return step

    def _add_value(self, step: "_Step", number: int, values: Sequence[Any]) -> None:
        text, more = values[1], values[2]
        sort_key = sort_key_of(values[0])
        if step.values is None:
            step.values = {}
        of_multiset = step.values.get(number)
        if of_multiset is None:
            of_multiset = step.values[number] = {}
        of_multiset[sort_key] = of_multiset.get(sort_key, 0) + more
        self._texts[number].setdefault(sort_key, text)
        if self._is_top and more > 0:
            step.texts[sort_key] = text
