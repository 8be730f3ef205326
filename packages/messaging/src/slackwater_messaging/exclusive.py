"""What must not be shared refuses it: a second thread or task gets an error instead of a mixture."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slackwater_messaging.errors import MessagingConfigError


class Exclusive:
    """Is held by one call at a time. A second call is refused, whether a thread or an asyncio task makes it.

    Args:
        what: The object that is used by one caller at a time.
        hint: What to do instead of sharing it.
    """

    def __init__(self, what: str, hint: str) -> None:
        self._what, self._hint = what, hint
        self._lock = threading.Lock()  # not re-entrant: the tasks of an event loop share their thread

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds it for the block.

        Raises:
            MessagingConfigError: Another call holds it.
        """
        if not self._lock.acquire(blocking=False):
            raise MessagingConfigError(f"{self._what} is in use by another thread or task", self._hint)
        try:
            yield
        finally:
            self._lock.release()
