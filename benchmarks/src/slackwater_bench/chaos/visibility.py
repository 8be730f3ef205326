"""What is visible in the output, followed on a thread of its own through all faults."""

import threading

from slackwater_bench.runs.watcher import CommitWatcher, SeenCommit
from slackwater_protocol import Clock


class Visibility:
    """Follows the commit records; while the broker is away it waits for it."""

    def __init__(self, bootstrap: str, output: str, clock: Clock) -> None:
        self._watcher = CommitWatcher(bootstrap, output, clock, lambda: None)
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="visibility", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Waits for the thread; idempotent."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def newest_lsn(self) -> int:
        """Everything up to here is visible; 0: nothing yet.

        Raises:
            Exception: what ended the thread.
        """
        if self._failure is not None:
            raise self._failure
        return self._watcher.newest_lsn

    def first_at(self, lsn: int) -> SeenCommit | None:
        """The commit record that made a commit visible; None: it is not."""
        return next((commit for commit in self._watcher.seen if commit.commit_lsn >= lsn), None)

    def _watch(self) -> None:
        try:
            while not self._stop.is_set():
                self._watcher.look()
        except Exception as error:  # noqa: BLE001 - raised again by newest_lsn
            self._failure = error
        finally:
            self._watcher.close()
