"""Processes packed changes of a batch through stages of a pipeline, in one process.

A small batch goes through all stages in one task. Each task of a large batch processes some buckets of one
level.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache, partial

from slackwater.engine.bucket import BucketProcessor
from slackwater.engine.index import BucketIndex
from slackwater.engine.owners import check_aggregate
from slackwater.engine.payloads import PackedPayload
from slackwater.engine.settings import Evaluators, Scope, SqlEvaluators, StageSettings
from slackwater.engine.state.log import BlobSource, BucketLog, LogWrite
from slackwater.engine.state.manifest import State
from slackwater.sql.plan import EnginePlan

FindIndex = Callable[[int, int], BucketIndex]
"""Returns the index of a bucket, with any contents, given stage and bucket."""


@dataclass(slots=True)
class TaskResult:
    """The results of a task."""

    rows: list[PackedPayload] = field(default_factory=list)
    """Documents, and payloads for stages that the task does not run."""
    writes: list[LogWrite] = field(default_factory=list)
    """The changes of logs, by stage and bucket; their blobs are not in a segment yet."""
    withheld: Counter[int] = field(default_factory=Counter)
    """How many more keys are withheld, by the number of the view that shows them."""
    seconds: dict[int, float] = field(default_factory=dict, compare=False)
    """The time that each stage took, by its number."""


class PipelineTask:
    """Runs stages of a pipeline. Use it from one thread, for many batches: DuckDB keeps its plans.

    Raises:
        ConfigError: The scope is `aggregate`, and the pipeline is more than one stage of rows.
    """

    def __init__(
        self, plan: EnginePlan, settings: StageSettings, evaluators: Evaluators | None = None
    ) -> None:
        if settings.scope is Scope.AGGREGATE:
            check_aggregate(plan)
        make = partial(BucketProcessor, plan, settings=settings, evaluators=evaluators or SqlEvaluators())
        self._processor = cache(lambda stage: make(plan.stage(stage)))

    def process(
        self,
        payloads: Iterable[PackedPayload],
        state: State,
        blobs: BlobSource,
        find_index: FindIndex,
        stages: Collection[int] | None = None,
        *,
        has_moves: bool = False,
    ) -> TaskResult:
        """Processes all payloads for the stages, and those that the stages send to each other.

        Apart from the indexes it is pure: the same payloads and state give the same rows and changes of
        contents. The payloads are all of the batch for the buckets concerned, in any order. With `has_moves`,
        rows may lack values that they had under other primary keys; the payloads must then be those of the
        whole batch.

        Raises:
            SlackwaterError: See its tree.
            EvaluationError: The view's SQL fails on the rows of a key.
            OldRowsNeededError: The batch has to be packed with old rows, and processed as a whole.
        """
        result = TaskResult()
        waiting: dict[int, dict[int, list[tuple[int, bytes]]]] = {}

        def take(row: PackedPayload) -> None:
            stage, bucket, sequence, payload = row
            if stage > 0 and (stages is None or stage in stages):
                waiting.setdefault(stage, {}).setdefault(bucket, []).append((sequence, payload))
            else:
                result.rows.append(row)

        for row in payloads:
            take(row)
        while waiting:
            stage = min(waiting)  # whatever sends to a stage has a lower number
            started = time.monotonic()
            done = self._processor(stage).process_all(
                waiting.pop(stage),
                partial(_find_log, state, blobs, stage),
                partial(find_index, stage),
                has_moves=has_moves,
            )
            result.writes += done.writes
            result.withheld.update(done.withheld)
            result.seconds[stage] = time.monotonic() - started
            for row in done.rows:
                take(row)
        return result


def _find_log(state: State, blobs: BlobSource, stage: int, bucket: int) -> BucketLog:
    return BucketLog(stage, bucket, state.head(stage, bucket), blobs)
