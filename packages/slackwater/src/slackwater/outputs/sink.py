"""The class of all sinks: it owns the run, the attempts and the decision what is written.

Each kind of output implements the same six operations over its server: take over, begin, put, commit, discard
and hold. Between them, the class decides whether the output already contains the batch, tries again while
errors are transient, and remembers that another run has taken over. What every sink must promise, and how to
add one, is in ``docs/extending.md``.
"""

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple, TypedDict, TypeVar, Unpack

from slackwater.engine.payloads import DocumentBatch
from slackwater.kafka.retry import Retry
from slackwater.outputs.batch import check_owner, is_covered, progress_after
from slackwater.outputs.contract import SinkProbe, SinkSettings, SinkStep, WriteReport
from slackwater.protocol import (
    Clock,
    CommitPosition,
    OvertakenError,
    ProgressRecord,
    SystemClock,
    UnavailableError,
    visible_progress,
)

T = TypeVar("T")


class Waiting:
    """Pauses between attempts. Used by the thread that runs the pipeline.

    Args:
        stop: Ends all waiting when it is set; None if it never is.
        on_step: Called with what is waited for.
    """

    def __init__(
        self, stop: threading.Event | None = None, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._stop = stop or threading.Event()
        self._on_step = on_step

    @property
    def is_over(self) -> bool:
        """Whether the run is to stop."""
        return self._stop.is_set()

    def pause(self, seconds: float, step: str) -> None:
        """Reports what is waited for, and waits for at most this time.

        Raises:
            UnavailableError: The run is to stop.
        """
        self._on_step(step)
        if self._stop.wait(seconds):
            raise UnavailableError(
                f"the run was asked to stop while it was {step}",
                "nothing is lost or partly visible: start the pipeline again when the server is back",
            )


def retry_for(what: str, place: str, patience: timedelta, waiting: Waiting, clock: Clock) -> Retry:
    """Returns how attempts at something on a server are repeated; their time begins now."""
    step = f"waiting for {place}: {what}"
    until = clock.now() + patience

    def pause(seconds: float) -> None:
        waiting.pause(seconds, f"{step}, until {until:%H:%M:%S} UTC at most: {retry.last_error}")

    retry = Retry(step, patience.total_seconds(), clock=clock, pause=pause)
    retry.begin()
    return retry


@dataclass(slots=True)
class Written:
    """Counts the records written to the outputs."""

    documents: int = 0
    deletes: int = 0


class Failure(NamedTuple):
    """Why an attempt failed although another one may succeed."""

    reason: str
    attempts: int = 1
    """The number of attempts that are made however long they take."""
    is_transient: bool = True
    """Whether the same may succeed later without any intervention; otherwise there are no more attempts."""


class SinkOptions(TypedDict, total=False):
    """What is given to a sink besides its settings."""

    probe: SinkProbe | None
    clock: Clock | None
    waiting: Waiting | None


class Sink(ABC):
    """Makes a pipeline's batches visible, each exactly once. Used by one thread at a time.

    Every method except :meth:`close` may block for the output's request time-out, and raises
    :class:`~slackwater.protocol.UnavailableError` if the output does not answer within it.
    """

    _failures: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors that :meth:`_judged` knows; all others end the run."""

    def __init__(
        self, settings: SinkSettings, place: str, kept_in: str, **options: Unpack[SinkOptions]
    ) -> None:
        self.place = place
        """The name of the server in messages such as "asking Kafka at broker:9092"."""
        self._kept_in = kept_in
        """The place of the progress, for messages."""
        self._settings = settings
        self._probe: SinkProbe = options.get("probe") or (lambda step, batch_id: None)
        self._clock = options.get("clock") or SystemClock()
        self._waiting = options.get("waiting") or Waiting()
        self._run = uuid.uuid4().hex
        self.root = ""
        """The source at the beginning of the chain that the pipeline is in; empty: nothing is visible yet."""
        self.find_root: Callable[[str], str] = lambda known: known
        """Returns it, given the one that is known so far. Called once, when something is visible, because all
        pipelines of the chain have registered by then."""
        self._fenced: OvertakenError | None = None

    @abstractmethod
    def _read(self) -> ProgressRecord | None:
        """Returns the newest visible batch; changes nothing."""

    @abstractmethod
    def _take_over(self) -> ProgressRecord | None:
        """Fences earlier runs and prepares the outputs; then returns the newest visible batch."""

    @abstractmethod
    def _begin(self, batch: DocumentBatch) -> ProgressRecord | None:
        """Makes sure that this run may write; returns the newest visible batch.

        Raises:
            OvertakenError: Another run has taken over.
        """

    @abstractmethod
    def _put(self, batch: DocumentBatch, progress: ProgressRecord) -> Written:
        """Writes a batch and the progress that becomes visible with it. Nothing is visible yet."""

    @abstractmethod
    def _commit(self) -> None:
        """Makes what was put visible, all at once; after an error, the outcome is unknown."""

    @abstractmethod
    def _discard(self) -> None:
        """Ends without effect what :meth:`_begin` has begun; never raises."""

    def _judged(self, what: str, error: Exception) -> Failure:
        """Returns how to continue after one of the :attr:`_failures`; raises if no attempt can succeed.

        Whatever the error may have broken, such as a connection, is released.
        """
        raise error

    @abstractmethod
    def hold(self, commits: Mapping[CommitPosition, datetime]) -> Mapping[CommitPosition, str]:
        """Keeps the views readable at some commits, and no longer at those of earlier calls.

        Until the first call after :meth:`open`, nothing is removed that readers of an earlier state may need.

        Args:
            commits: For each commit, the time until which a reader needs it.

        Returns:
            The commits at which the views cannot be kept readable, each with a readable reason. For all other
            commits, nothing is removed from now on; readers have to check whether everything is there.

        Raises:
            OvertakenError: Another run has taken over; stop.
            OutputRefusedError: The output does not allow what has to be done.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases the output. Idempotent, never raises."""

    def check(self, query_id: str | None) -> None:
        """Refuses a pipeline if another checkpoint has written its progress to the output; changes nothing.

        It is called first, before Spark is started and before another run is affected. The id of a query is
        that of its checkpoint; None if the checkpoint is new.

        Raises:
            StateError: The output's progress belongs to another checkpoint.
        """
        progress = self._patiently("its progress", self._settings.request_timeout, self._read)
        check_owner(self._settings.pipeline, progress, query_id, self._kept_in)

    def open(self) -> ProgressRecord | None:
        """Takes over the pipeline, so that no earlier run can write any more.

        Returns:
            The newest visible batch; None if there is none.

        Raises:
            StateError: The output was changed since the pipeline's last batch.
            ConfigError: The output cannot be used in its current form.
        """
        return self._patiently("its outputs", self._settings.request_timeout, self._take_over)

    def write(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        """Makes the batch after the newest visible one visible, or finds that it is. Idempotent across runs.

        Blocks until it is certain.

        Raises:
            OvertakenError: Another run has taken over; stop. All later calls raise it, too.
            OutputRefusedError: The output rejects the batch, and would reject it again.
            UnavailableError: Nothing of the batch is visible, or the outcome is unknown.
            StateError: The batch does not continue what the output contains, or was not written by a stage;
                nothing of it is visible.
        """
        if self._fenced is not None:
            raise self._fenced
        self._probe(SinkStep.COLLECTED, batch.batch_id)
        what, patience = f"batch {batch.batch_id}", self._settings.patience
        try:
            report = self._patiently(what, patience, lambda: self._write_once(query_id, batch))
        except OvertakenError as error:
            self._fenced = error
            raise
        if not report.was_covered:
            self._probe(SinkStep.COMMITTED, batch.batch_id)
        return report

    def _patiently(self, what: str, patience: timedelta, attempt: Callable[[], T], place: str = "") -> T:
        """Repeats an attempt while its errors are transient and the run is not to stop."""
        place = place or self.place
        retry, attempts = retry_for(what, place, patience, self._waiting, self._clock), 1
        while True:
            try:
                return attempt()
            except self._failures as error:
                failure = self._judged(what, error)
                is_over = retry.is_over or not failure.is_transient
                if is_over and attempts >= failure.attempts:
                    tried = "" if attempts == 1 else f" in {attempts} attempts"
                    raise UnavailableError(
                        f"pipeline {self._settings.pipeline!r}: {place} did not complete {what}"
                        f"{tried}: {failure.reason}",
                        "nothing is lost or partly visible; check the server and its address, then "
                        "start the pipeline again",
                    ) from error
                retry.note(failure.reason)
                retry.pause()
                attempts += 1

    def _rooted(self, progress: ProgressRecord) -> ProgressRecord:
        """Returns progress that says at which source its chain begins."""
        if not self.root and visible_progress(progress) is not None:
            self.root = self.find_root(progress.root or progress.source)
        return replace(progress, root=self.root)

    def _write_once(self, query_id: str, batch: DocumentBatch) -> WriteReport:
        pipeline, started, written = self._settings.pipeline, self._clock.monotonic(), Written()
        try:
            visible = self._begin(batch)
            check_owner(pipeline, visible, query_id, self._kept_in)
            was_covered = self._is_covered(batch, visible)
            if not was_covered:
                progress = self._rooted(progress_after(pipeline, query_id, batch, self._run))
                since = batch.header.to_lsn if visible is None else visible.first_lsn
                written = self._put(batch, replace(progress, first_lsn=since))
                self._probe(SinkStep.PROGRESS, batch.batch_id)
        except BaseException:
            self._discard()
            raise
        produced = self._clock.monotonic()
        if was_covered:
            self._discard()
        else:
            self._commit()
        return WriteReport(
            batch_id=batch.batch_id,
            header=batch.header,
            documents=written.documents,
            deletes=written.deletes,
            was_covered=was_covered,
            produce_seconds=produced - started,
            commit_seconds=self._clock.monotonic() - produced,
            visible_at=self._clock.now(),
        )

    def _is_covered(self, batch: DocumentBatch, visible: ProgressRecord | None) -> bool:
        return is_covered(self._settings.pipeline, batch, visible)
