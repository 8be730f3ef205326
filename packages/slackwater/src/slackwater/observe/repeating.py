"""Repeats something in a thread of its own, such as a look at a server."""

import threading
from collections.abc import Callable


class Repeating:
    """Calls a function again and again from :meth:`begin` until :meth:`close`.

    Args:
        name: The name of the thread, which does not keep the process from ending.
        call: The function; an error ends the thread.
        seconds: The time from the end of one call to the next.
        is_prompt: Whether the first call is made at once.
    """

    def __init__(
        self, name: str, call: Callable[[], object], seconds: float, *, is_prompt: bool = False
    ) -> None:
        self._call, self._seconds, self._is_prompt = call, seconds, is_prompt
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.failure: Exception | None = None
        """What ended the thread, which nothing is meant to do; None while it repeats the call."""

    def begin(self) -> None:
        """Begins to call the function; to be called once."""
        self._thread.start()

    def close(self, patience_seconds: float | None = None) -> None:
        """Ends the thread, and waits for a call that is being made. Idempotent.

        It waits only for as long as its patience, if there is one.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(patience_seconds)

    def run(self) -> None:
        """Calls the function until :meth:`close`; the body of the thread."""
        try:
            if self._is_prompt:
                self._call()
            while not self._over.wait(self.pause_seconds()):
                self._call()
        except Exception as error:
            self.failure = error
            raise

    def pause_seconds(self) -> float:
        """Returns how long to wait for the next call."""
        return self._seconds
