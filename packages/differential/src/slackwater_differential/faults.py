"""Rules of the engine that can be taken out, to see that this is noticed.

Most are taken out of the plan, whose form is a contract; the others out of the engine's classes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from slackwater_spark.stage import latest_logic
from slackwater_spark.stage.entry import HASH_BYTES
from slackwater_spark.stage.multiset import OrderedMultiset
from slackwater_spark.stage.outbox import Outbox
from slackwater_sql.stages import AccumulatePart, EnginePlan, Output, Reads, RowsOutput, RowsPart


@dataclass(frozen=True, slots=True)
class Fault:
    """What is taken out.

    Attributes:
        rows: Changes the rows parts of plans.
        accumulate: Changes their accumulate parts.
        output: Changes what their parts do with results.
        patch: Changes the engine's code.
    """

    rows: Callable[[RowsPart], RowsPart] = lambda part: part
    accumulate: Callable[[AccumulatePart], AccumulatePart] = lambda part: part
    output: Callable[[Output], Output] = lambda output: output
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext

    def in_plan(self, plan: EnginePlan) -> EnginePlan:
        """The plan with this fault."""
        stages = tuple(
            replace(
                stage,
                rows=None if stage.rows is None else self._part(self.rows(stage.rows)),
                accumulate=None
                if stage.accumulate is None
                else self._part(self.accumulate(stage.accumulate)),
            )
            for stage in plan.stages
        )
        return replace(plan, stages=stages)

    def _part(self, part: Any) -> Any:
        return replace(part, output=self.output(part.output))


def _with_reads(change: Callable[[Reads], Reads]) -> Fault:
    return Fault(rows=lambda part: replace(part, reads=tuple(map(change, part.reads))))


def _without_null_keys(part: RowsPart) -> RowsPart:
    return replace(part, inputs=tuple(replace(plan, keeps_null_keys=False) for plan in part.inputs))


def _without_moves(part: RowsPart) -> RowsPart:
    inputs = tuple(replace(plan, needs_replica_identity_full=False) for plan in part.inputs)
    return replace(part, inputs=inputs)


def _with_null_keys_lost_on_edges(output: Output) -> Output:
    if not isinstance(output, RowsOutput):
        return output
    return replace(output, edges=tuple(replace(edge, keeps_null_keys=False) for edge in output.edges))


def _with_smaller_identity(output: Output) -> Output:
    if not isinstance(output, RowsOutput) or not output.identity:
        return output
    return replace(output, identity=output.identity - 1)


def _with_late_points(part: RowsPart) -> RowsPart:
    right = " <= p.__slackwater_lsn AND p.__slackwater_lsn < "
    wrong = " < p.__slackwater_lsn AND p.__slackwater_lsn <= "
    return replace(part, statement=part.statement.replace(right, wrong))


def _with_wrong_weights(part: RowsPart) -> RowsPart:
    """What is taken away is not taken off sums."""
    return replace(
        part, statement=part.statement.replace("__slackwater_weight < 0", "__slackwater_weight < -1")
    )


def _with_empty_groups(part: AccumulatePart) -> AccumulatePart:
    return replace(part, is_global=True, statement=part.statement.replace(" WHERE n > 0", ""))


@contextmanager
def _replaced(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Iterator[None]:
    right = getattr(owner, name)
    setattr(owner, name, wrong(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


def _ends_not_restored(right: Callable[..., None]) -> Callable[..., None]:
    """Values that are taken from a multiset stay."""

    def add(self: OrderedMultiset, additions: Mapping[bytes, int], refusal: Any) -> None:
        right(self, {key: more for key, more in additions.items() if more > 0}, refusal)

    return add


def _vanished_rows_stay(right: Callable[..., None]) -> Callable[..., None]:
    def event(self: Outbox, stage: int, lsn: int, number: int, key: bytes, identity: bytes, row: Any) -> None:
        if row is not None:
            right(self, stage, lsn, number, key, identity, row)

    return event


FAULTS: Mapping[str, Fault] = {
    "too-few-reads": _with_reads(lambda _: Reads.CHANGED),
    "witness-not-read": _with_reads(
        lambda mode: Reads.CHANGED if mode is Reads.CHANGED_AND_WITNESS else mode
    ),
    "null-keys-dropped": Fault(rows=_without_null_keys, output=_with_null_keys_lost_on_edges),
    "moved-rows-stay": Fault(rows=_without_moves),
    "vanished-rows-stay": Fault(patch=lambda: _replaced(Outbox, "event", _vanished_rows_stay)),
    "identity-too-small": Fault(output=_with_smaller_identity),
    "points-off-by-one": Fault(rows=_with_late_points),
    "weights-wrong": Fault(rows=_with_wrong_weights),
    "ends-not-restored": Fault(patch=lambda: _replaced(OrderedMultiset, "add", _ends_not_restored)),
    "empty-groups-stay": Fault(accumulate=_with_empty_groups),
    "digest-not-updated": Fault(
        patch=lambda: _replaced(latest_logic, "digest", lambda _: lambda _: b"0" * HASH_BYTES)
    ),
}
"""By name."""

_planted: list[str] = []


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With a fault; None: without any."""
    if name is None:
        yield
        return
    _planted.append(name)
    try:
        with FAULTS[name].patch():
            yield
    finally:
        _planted.remove(name)


def planted_now() -> tuple[str, ...]:
    """The names of the faults that are planted."""
    return tuple(_planted)


def distorted(plan: EnginePlan, faults: tuple[str, ...]) -> EnginePlan:
    """A plan with these faults."""
    for name in faults:
        plan = FAULTS[name].in_plan(plan)
    return plan
