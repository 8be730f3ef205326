"""What is judged: an engine takes batches of change events and gives changed documents.

Faults are planted in it, to see that the comparison notices. Most are taken out of the plan, whose form is a
contract; the others out of the engine's classes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from slackwater.engine.evaluate import latest as latest_logic
from slackwater.engine.evaluate.multiset import OrderedMultiset
from slackwater.engine.local import LocalEngine
from slackwater.engine.payloads import Outcome
from slackwater.engine.state.entry import HASH_BYTES
from slackwater.engine.state.manifest import State
from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import AccumulatePart, EnginePlan, Output, Reads, RowsOutput, RowsPart
from slackwater.sql.planner.cutting import compile_pipeline
from slackwater.sql.postgres import parse_catalog
from slackwater_lab.differential.case import Batch, Case
from slackwater_lab.differential.history import schema_ddl
from slackwater_lab.seeds import Plant, PlantedFault, replaced

Event = tuple[str, str, int, bytes | None, bytes | None, int | None]
"""Table, operation, commit LSN, old row, new row, own LSN."""


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document that an engine published.

    Attributes:
        view: Number of the view.
        lsn: Commit LSN.
        key: Its key as JSON.
        document: The document as JSON; None: it vanished.
    """

    view: int
    lsn: int
    key: bytes
    document: bytes | None


class RefusedViewError(Exception):
    """The engine does not take a view.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine(Protocol):
    """Runs the views of a case. One thread."""

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """Processes whole transactions.

        Args:
            events: In commit order.
            batch: How they are to be processed.
            first_lsn: Of the batch's first commit, which may have no events.

        Returns:
            The documents that changed, in the order in which they are published.
        """

    def close(self) -> None:
        """Frees what it holds; called once, at last."""


MakeEngine = Callable[[Case], Engine]
"""Makes an engine for a case, with its views compiled and empty state.

Raises:
    RefusedViewError: It does not take the case's views.
"""


def make_plan(ddl: str, views: tuple[tuple[str, str], ...]) -> EnginePlan:
    """Compiles the views of a case.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    try:
        return compile_pipeline(views, parse_catalog({"schema.sql": ddl}))
    except SqlTextError as error:
        raise RefusedViewError(str(error)) from error


@lru_cache(maxsize=2)
def compiled(ddl: str, views: tuple[tuple[str, str], ...], buckets: int, every_commit: bool) -> LocalEngine:
    """The engine of a pipeline, with any rows; kept, since shrinking runs many histories of one pipeline.

    Raises:
        RefusedViewError: A view is outside of what is supported.
    """
    return LocalEngine(make_plan(ddl, views), buckets=buckets, every_commit=every_commit)


class JudgedEngine:
    """The engine: everything but Spark, Kafka and the disk."""

    def __init__(self, case: Case) -> None:
        views = tuple((f"{view.name}.sql", view.sql()) for view in case.views)
        self._engine = compiled(schema_ddl(case.tables), views, case.buckets, case.every_commit)
        self._engine.reset()

    @property
    def stages(self) -> int:
        """How many stages its plan has."""
        return len({stage for stage, _ in self._engine.indexes})

    def run(self, events: Sequence[Event], batch: Batch, first_lsn: int) -> Sequence[ChangedDocument]:
        """See `Engine`."""
        if batch.loses_index:
            for number, (stage, bucket) in enumerate(list(self._engine.indexes)):
                if number % 2 == batch.size % 2:
                    self._engine.lose_index(stage, bucket)
        before = self._engine.state if batch.is_repeated else None
        documents = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if before is not None:
            self._repeat(before, documents, events, batch, first_lsn)
        return [
            ChangedDocument(view, lsn, key, document)
            for view, of_view in documents.items()
            for lsn, key, document in of_view
        ]

    def _repeat(
        self, before: State, first: object, events: Sequence[Event], batch: Batch, first_lsn: int
    ) -> None:
        """The state is the one before the batch, the indexes are already ahead."""
        self._engine.return_to(before)
        second = self._engine.run(events, batch.tasks, first_lsn=first_lsn)
        if second != first:
            raise AssertionError(f"repeated, the batch gave something else: first {first}, then {second}")

    def close(self) -> None:
        """See `Engine`."""


def _in_code(
    rule: str, owner: Any, name: str, wrong: Callable[[Any], Any], first_seed: int = 0
) -> PlantedFault:
    return PlantedFault(rule, _with_new_engines(replaced(owner, name, wrong)), first_seed=first_seed)


def _in_plan(
    rule: str,
    *,
    rows: Callable[[RowsPart], RowsPart] = lambda part: part,
    accumulate: Callable[[AccumulatePart], AccumulatePart] = lambda part: part,
    output: Callable[[Output], Output] = lambda output: output,
    first_seed: int = 0,
) -> PlantedFault:
    """A fault in the plan: of parts with rows, of accumulating parts, of what both do with their results."""

    def distorted_part(part: Any, distort: Callable[[Any], Any]) -> Any:
        if part is None:
            return None
        changed = distort(part)
        return replace(changed, output=output(changed.output))

    def distorted(plan: EnginePlan) -> EnginePlan:
        stages = (
            replace(
                stage,
                rows=distorted_part(stage.rows, rows),
                accumulate=distorted_part(stage.accumulate, accumulate),
            )
            for stage in plan.stages
        )
        return replace(plan, stages=tuple(stages))

    def wrong(right: Callable[..., EnginePlan]) -> Callable[..., EnginePlan]:
        return lambda *arguments: distorted(right(*arguments))

    plant = _with_new_engines(replaced(sys.modules[__name__], "make_plan", wrong))
    return PlantedFault(rule, plant, first_seed=first_seed)


def _with_new_engines(plant: Plant) -> Plant:
    """Engines are kept: those with a fault and those without must not be taken for each other."""

    @contextmanager
    def planted() -> Iterator[None]:
        with plant():
            compiled.cache_clear()
            try:
                yield
            finally:
                compiled.cache_clear()

    return planted


def _with_reads(change: Callable[[Reads], Reads]) -> Callable[[RowsPart], RowsPart]:
    def changed(part: RowsPart) -> RowsPart:
        return replace(part, inputs=tuple(replace(each, reads=change(each.reads)) for each in part.inputs))

    return changed


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
    """Rows that are taken away are not taken off sums."""
    return replace(
        part, statement=part.statement.replace("__slackwater_weight < 0", "__slackwater_weight < -1")
    )


def _with_empty_groups(part: AccumulatePart) -> AccumulatePart:
    return replace(part, is_global=True, statement=part.statement.replace(" WHERE n > 0", ""))


def _ends_not_restored(right: Callable[..., None]) -> Callable[..., None]:
    """Values that are taken from a multiset stay."""

    def add(self: OrderedMultiset, additions: Mapping[bytes, int], *rest: Any) -> None:
        right(self, {key: more for key, more in additions.items() if more > 0}, *rest)

    return add


def _vanished_rows_stay(right: Callable[..., None]) -> Callable[..., None]:
    def event(
        self: Outcome, stage: int, lsn: int, number: int, key: bytes, identity: bytes, row: Any
    ) -> None:
        if row is not None:
            right(self, stage, lsn, number, key, identity, row)

    return event


FAULTS: Mapping[str, PlantedFault] = {
    "too-few-reads": _in_plan(
        "rows of other tables that a changed row meets are read",
        rows=_with_reads(lambda _: Reads.CHANGED),
        first_seed=10,
    ),
    "witness-not-read": _in_plan(
        "the witness of a changed row is read",
        rows=_with_reads(lambda mode: Reads.CHANGED if mode is Reads.CHANGED_AND_WITNESS else mode),
        first_seed=25,
    ),
    "null-keys-dropped": _in_plan(
        "rows whose key is NULL are kept where a join or group keeps them",
        rows=_without_null_keys,
        output=_with_null_keys_lost_on_edges,
        first_seed=10,
    ),
    "moved-rows-stay": _in_plan("a row whose key changed leaves its old place", rows=_without_moves),
    "vanished-rows-stay": _in_code(
        "a result that has no row any more is deleted", Outcome, "event", _vanished_rows_stay
    ),
    "identity-too-small": _in_plan(
        "all columns of the identity tell rows apart", output=_with_smaller_identity
    ),
    "points-off-by-one": _in_plan(
        "a row counts from its own commit on, not after it", rows=_with_late_points
    ),
    "weights-wrong": _in_plan("what vanishes is taken off sums", rows=_with_wrong_weights),
    "ends-not-restored": _in_code(
        "values that are taken from a multiset are gone", OrderedMultiset, "add", _ends_not_restored
    ),
    "empty-groups-stay": _in_plan("a group without rows vanishes", accumulate=_with_empty_groups),
    "digest-not-updated": _in_code(
        "a digest changes with what it stands for",
        latest_logic,
        "digest",
        lambda _: lambda _: b"0" * HASH_BYTES,
        first_seed=15,
    ),
}
"""By name; each with the rule that it takes out."""
