"""Determines when to read the cut log: when Redis shows that it has grown, or after some time."""

import logging
from collections.abc import Callable
from typing import NoReturn

from slackwater.cuts import CutLog, CutLogReplacedError, MarkerStoreUnavailableError, RedisMarkerStore
from slackwater.protocol.keys import cut_log_topic

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.25
"""The interval at which the log is checked while Redis answers but has nothing new, as it may be empty or
wrong."""
_INTERVAL_SECONDS_WITHOUT_STORE = 0.05
_LOG_ID_SECONDS = 5.0
_STORE_REST_SECONDS = 5.0
"""How long Redis is not queried after it failed, which may cost its time-out each time, or was wrong."""


class LogWatch:
    """Determines whether the log may have news. All data is read from the log; Redis only signals.

    What others write to Redis can make a reader check needlessly, or a quarter of a second late, but
    never affects a batch. Not thread-safe; blocks for at most the store's time-out. Methods raise
    TopicUnavailableError if Kafka does not answer.
    """

    def __init__(
        self, source: str, *, store: RedisMarkerStore | None, log: CutLog, monotonic: Callable[[], float]
    ) -> None:
        self._source = source
        self._store = store
        self._log = log
        self._monotonic = monotonic
        self._log_id_at = float("-inf")
        self.log_id = ""
        """The id of the log; empty while there is no log."""
        self._rests_until = self._look_at = float("-inf")
        self._is_promised = self._is_warned = False

    def check(self, expected: str) -> None:
        """Refuses a log without the expected id, unless that is empty; asks Kafka every few seconds."""
        now = self._monotonic()
        if now >= self._log_id_at:
            found = self._log.identity() or ""
            if self.log_id and found and found != self.log_id:
                self._refuse(self.log_id, found)
            self.log_id, self._log_id_at = found or self.log_id, now + _LOG_ID_SECONDS
            if self._store is not None:
                self._store.bind(self.log_id)
        if expected and self.log_id and expected != self.log_id:
            self._refuse(expected, self.log_id)

    def _refuse(self, expected: str, found: str) -> NoReturn:
        evidence = f"its id was {expected} when the query read it before, and is {found}"
        raise CutLogReplacedError(cut_log_topic(self._source), evidence)

    def has_news(self, position: int) -> bool:
        """Returns whether the log may contain something at or above an offset."""
        self._is_promised = False
        if self._monotonic() >= self._look_at:
            return True
        store = self._usable_store()
        if store is None:
            return False
        try:
            held = store.position(self._source)
        except MarkerStoreUnavailableError as error:
            self._leave_store_alone(str(error))
            return False
        self._is_promised = held is not None and held.log_offset >= position
        self._is_warned = self._is_warned and self._is_promised
        return self._is_promised

    def expect_news(self) -> None:
        """Makes the next answer positive, because the log has to be read from another place."""
        self._look_at = float("-inf")

    def note_end(self, *, found: bool) -> None:
        """Records that the log was read to its end, and whether there was what Redis indicated."""
        if self._is_promised and not found:
            self._leave_store_alone("it names a cut that the cut log does not contain")
        self._is_promised = False
        interval = _INTERVAL_SECONDS if self._usable_store() else _INTERVAL_SECONDS_WITHOUT_STORE
        self._look_at = self._monotonic() + interval

    def close(self) -> None:
        """Closes the store's connections."""
        if self._store is not None:
            self._store.close()

    def _usable_store(self) -> RedisMarkerStore | None:
        """Returns the store if it answers and the log's id is known; it may have data of another log."""
        if self._store is None or self._monotonic() < self._rests_until:
            return None
        if not self.log_id:
            self._rest()
            return None
        return self._store

    def _leave_store_alone(self, reason: str) -> None:
        if not self._is_warned:
            logger.warning(
                "reading cuts from the cut log instead of Redis: %s", reason, extra={"source": self._source}
            )
        self._is_warned = True
        self._rest()

    def _rest(self) -> None:
        self._rests_until = self._monotonic() + _STORE_REST_SECONDS
