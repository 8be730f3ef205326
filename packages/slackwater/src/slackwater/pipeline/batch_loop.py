"""The loop of a run: plans a batch, runs it, writes its state, makes it visible, and begins again."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from slackwater.cdc.batch import PlannedBatch
from slackwater.engine.documents import DocumentBatch, documents_by_view
from slackwater.engine.state.keeper import StateKeeper
from slackwater.engine.state.manifest import WrittenManifest
from slackwater.outputs.sink import Sink
from slackwater.pipeline.batch_job import BatchJobs
from slackwater.pipeline.batch_task import KnownState
from slackwater.pipeline.collector import collector_paused
from slackwater.pipeline.copied_state import CopiedBatch
from slackwater.pipeline.progress import BatchProgress
from slackwater.pipeline.source.planner import Planner
from slackwater.pipeline.source.position import Position
from slackwater.protocol import Clock, from_epoch_ms

POLL_SECONDS: Final = 0.01
"""How long an idle run waits before it checks again for a newer cut."""

_CARRIED_MANIFESTS: Final = 16
_CARRIED_MANIFEST_BYTES: Final = 64 << 10
"""The newest manifests up to this number and size are sent to workers, which then do not have to read them
from the store."""


@dataclass(kw_only=True)
class BatchLoop:
    """Runs batch after batch, beginning at the position of the state. Use it from one thread."""

    pipeline: str
    """The pipeline's name."""
    query_id: str
    """The id of the checkpoint."""
    planner: Planner
    """Determines what a batch contains."""
    jobs: BatchJobs
    """Runs the batches."""
    keeper: StateKeeper
    """Writes the state of batches; open."""
    sink: Sink
    """Makes batches visible; open."""
    clock: Clock
    """Measures how long the parts of a batch take."""
    stop: threading.Event
    """Ends the loop. A batch that is being written is finished first."""
    on_computed: Callable[[int], None]
    """Called with the commit up to which a batch is computed; it is not visible yet."""
    on_batch: Callable[[BatchProgress], None]
    """Called with each batch that is visible."""
    between_batches: Callable[[], None]
    """Called before each search for a batch."""
    on_turn: Callable[[bool], None]
    """Called before each step, with whether the views show all cuts that exist."""
    max_events: int
    """The number of change events at which a batch is closed."""
    beginning: CopiedBatch | None = None
    """The first batch, if there was none yet; None to read it from the beginning of the topics."""
    repeats: bool = False
    """Whether a batch that an earlier run has prepared ends at the same position again, because the output
    may know it."""
    _written: deque[WrittenManifest] = field(
        default_factory=lambda: deque(maxlen=_CARRIED_MANIFESTS), init=False
    )
    """The newest manifests, oldest first."""

    def run(self, *, available_now: bool) -> None:
        """Runs until it is stopped or, if `available_now`, until all that existed at the start is visible.

        Raises:
            SlackwaterError: See its tree.
            SlackwaterError: The state cannot be read or written.
            TopicUnavailableError: Kafka does not answer. StateError: The cut log has changed.
            SPARK_ERRORS: A batch failed in Spark, or Spark has ended.
        """
        planner = self.planner
        stored = self.keeper.state.position
        target = planner.target() if available_now else None
        if stored is None and self.beginning is not None and not self.stop.is_set():
            self._run_batch(self.beginning, self.beginning.end, self.clock.monotonic())
            position = self.beginning.end
        else:
            position = planner.start() if stored is None else planner.offset(dict(stored))
        prepared = self.keeper.prepared_position() if self.repeats else None
        while not self.stop.is_set():
            self.on_turn(False)
            self.between_batches()
            began = self.clock.monotonic()
            with collector_paused():
                if prepared is None:
                    end = planner.next(position, self.max_events, target)
                else:
                    end, prepared = planner.offset(dict(prepared)), None
                planned = None if end is position else planner.plan(position, end)
            if planned is not None:
                self._run_batch(planned, end, began)
            elif end is position:
                if available_now:
                    return
                self.on_turn(end.lsn > 0)  # else there is no cut yet
                self.jobs.check()
                self.stop.wait(POLL_SECONDS)
            position = end

    def _run_batch(self, planned: PlannedBatch | CopiedBatch, end: Position, began: float) -> None:
        now = self.clock.monotonic
        keeper = self.keeper
        batch_id = keeper.state.batch_id + 1
        cuts = tuple(self.planner.cuts(planned.header))
        planned_at = now()
        self.on_turn(False)
        result = self.jobs.run(batch_id, planned, self._known_state())
        collected_at = now()
        self.on_turn(False)
        self.on_computed(planned.header.to_lsn)
        if self.stop.is_set():
            return
        state = keeper.prepare(end.to_json(), result.writes, result.updates)
        documents = documents_by_view(batch_id, result.rows)
        prepared_at = now()
        self.on_turn(False)
        report = self.sink.write(self.query_id, DocumentBatch(batch_id, planned.header, documents, state))
        keeper.adopt(state)
        if keeper.newest_manifest is not None:
            self._written.append(keeper.newest_manifest)
        header = planned.header
        self.on_batch(
            BatchProgress(
                pipeline=self.pipeline,
                source=header.source,
                timeline=header.timeline,
                batch_id=batch_id,
                commit_lsn=header.to_lsn,
                committed_at=from_epoch_ms(header.commit_ts_ms),
                visible_at=report.visible_at,
                events=header.event_count,
                transactions=len(header.transactions),
                documents=report.documents,
                deletes=report.deletes,
                was_covered=report.was_covered,
                stage_work=result.stage_work(),
                state_bytes=keeper.state.stage_bytes(),
                commits=header.transactions,
                cuts=cuts,
                seconds=_seconds(
                    plan=planned_at - began,
                    read=result.read_seconds,
                    evaluate=result.evaluate_seconds,
                    schedule=collected_at - planned_at - result.read_seconds - result.evaluate_seconds,
                    state=prepared_at - collected_at,
                    produce=report.produce_seconds,
                    commit=report.commit_seconds,
                ),
            )
        )

    def _known_state(self) -> KnownState:
        sizes = accumulate(len(manifest.data) for manifest in reversed(self._written))
        count = sum(size <= _CARRIED_MANIFEST_BYTES for size in sizes)
        return KnownState(self.keeper.state.name, tuple(self._written)[len(self._written) - count :])


def _seconds(**seconds: float) -> Mapping[str, Any]:
    return {name: max(0.0, value) for name, value in seconds.items()}
