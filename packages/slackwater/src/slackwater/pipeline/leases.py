"""What a run does for readers that have taken a lease: it keeps its views readable at their commits."""

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from slackwater.control import is_over
from slackwater.cuts import LeaseLog, TopicUnavailableError
from slackwater.observe.repeating import Repeating
from slackwater.outputs.sink import Sink
from slackwater.protocol import (
    Clock,
    CommitPosition,
    Hold,
    Lease,
    LeaseRecord,
    OvertakenError,
    SlackwaterError,
    epoch_ms,
    from_epoch_ms,
)

_LOOK_SECONDS: Final = 0.5
"""The time between two reads of the topic of leases."""
CLOCK_MARGIN: Final = timedelta(minutes=1)
"""How much longer a state is kept than its reader needs it, because the clocks of the two may differ."""

_log = logging.getLogger(__name__)


class LeaseHolder:
    """Holds the states that leases name, and answers each lease.

    A separate thread reads the topic of leases and writes the answers. :meth:`hold` informs the sink of
    leases, in the thread that writes batches. While the topic cannot be read, the leases that were known
    before still count. A `refusal` says why views can never be held; it is empty if they can. Leases that are
    longer than `longest` are refused, too. Only the thread uses the log once :meth:`begin` was called.
    """

    def __init__(
        self,
        log: LeaseLog,
        *,
        pipeline: str,
        refusal: str,
        longest: timedelta,
        sink: Sink,
        clock: Clock,
    ) -> None:
        self._log, self._sink, self._clock = log, sink, clock
        self._pipeline, self._longest = pipeline, longest
        self._refusal = refusal
        self._lock = threading.Lock()
        self._known: Mapping[str, Lease] | None = None
        """The leases that name the pipeline, by id; None if the topic was not read yet."""
        self._answers: dict[str, Hold] = {}
        """The answers that are still to be written, by lease."""
        self._held: Mapping[str, Lease] | None = None
        """What the sink was last informed of; only used by the thread that writes batches."""
        self._looks = Repeating("lease-holder", self.look, _LOOK_SECONDS, is_prompt=True)
        self._is_away = False

    def begin(self) -> None:
        """Begins to follow the leases; does not wait for the first read."""
        self._looks.begin()

    def hold(self) -> None:
        """Informs the sink of the commits to be kept, if they have changed; otherwise it returns quickly.

        Raises:
            OvertakenError: Another run has taken over.
        """
        with self._lock:
            known = self._known
        if known is None:
            return
        now_ms = epoch_ms(self._clock.now() - CLOCK_MARGIN)
        live = {lease.id: lease for lease in known.values() if not is_over(lease, now_ms)}
        if live == self._held:
            return
        reasons = {lease.id: self._reason(lease) for lease in live.values()}
        refused = self._tell([lease for lease in live.values() if not reasons[lease.id]])
        self._held = live
        answers = {
            lease.id: Hold(
                lease=lease.id,
                pipeline=self._pipeline,
                until_ms=lease.expires_ms,
                refusal=reasons[lease.id] or refused.get(lease.position, ""),
            )
            for lease in live.values()
        }
        with self._lock:
            self._answers.update(answers)

    def close(self) -> None:
        """Ends the thread and closes the connection; what is held stays held. Idempotent."""
        self._looks.close()
        self._log.close()

    def look(self) -> None:
        """Writes the answers that are due, and reads the topic again. A failure is logged once."""
        try:
            with self._lock:
                answers = dict(self._answers)
            self._log.write(*answers.values())
            with self._lock:
                self._answers = {
                    lease: answer for lease, answer in self._answers.items() if answers.get(lease) != answer
                }
            records = self._log.read()
            known = {each.id: each for each in records if isinstance(each, Lease) and self._is_named(each)}
            with self._lock:
                self._known = known
            self._remove_what_is_over(records)
            self._is_away = False
        except TopicUnavailableError as error:
            if not self._is_away:
                _log.warning("pipeline %s: the leases of readers cannot be read: %s", self._pipeline, error)
            self._is_away = True

    def _is_named(self, lease: Lease) -> bool:
        return self._pipeline in lease.pipelines

    def _reason(self, lease: Lease) -> str:
        """Returns why a lease is refused whatever the sink can do; empty if it is not."""
        if self._refusal:
            return self._refusal
        if lease.source != self._sink.root:
            shown = f"commits of {self._sink.root}" if self._sink.root else "nothing yet"
            return f"it shows {shown}, but the lease is for a commit of {lease.source}"
        if from_epoch_ms(lease.expires_ms) > self._clock.now() + self._longest:
            return f"it holds states for at most {self._longest.total_seconds():.0f} s (run.longest_lease)"
        return ""

    def _tell(self, leases: Iterable[Lease]) -> Mapping[CommitPosition, str]:
        until: dict[CommitPosition, datetime] = {}
        for lease in leases:
            ends = from_epoch_ms(lease.expires_ms) + CLOCK_MARGIN
            until[lease.position] = max(until.get(lease.position, ends), ends)
        try:
            return self._sink.hold(until)
        except OvertakenError:
            raise
        except SlackwaterError as error:  # no reader is worth the end of a run
            _log.warning("pipeline %s: states cannot be held for readers: %s", self._pipeline, error)
            return dict.fromkeys(until, str(error))

    def _remove_what_is_over(self, records: Iterable[LeaseRecord]) -> None:
        """Removes leases that name the pipeline, and its own answers, after their end."""
        now_ms = epoch_ms(self._clock.now() - CLOCK_MARGIN)
        leases = {each.id: each for each in records if isinstance(each, Lease)}
        over = {each.id for each in leases.values() if self._is_named(each) and is_over(each, now_ms)}
        self._log.remove(
            each
            for each in records
            if (isinstance(each, Lease) and each.id in over)
            or (
                isinstance(each, Hold)
                and each.pipeline == self._pipeline
                and (each.lease in over or each.lease not in leases)
            )
        )
