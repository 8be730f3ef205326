"""The processes that read for one frontier."""

import logging
import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from slackwater_sidecar.consumption import Key
from slackwater_sidecar.worker import Assign, Ended, Hold, Order, Report, WorkerSettings, serve

logger = logging.getLogger(__name__)

_END_SECONDS = 1.0


class _Member:
    """One process and the partitions it was told to read."""

    def __init__(self, settings: WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")  # librdkafka's threads do not survive a fork
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=serve, args=(theirs, settings), name="slackwater-worker", daemon=True
        )
        self.process.start()
        theirs.close()
        self.keys: set[Key] = set()

    def tell(self, order: Order) -> None:
        """One that has ended hears nothing; that is noticed when its reports end."""
        try:
            self.connection.send(order)
        except OSError:
            return


class WorkerPool:
    """Shares partitions out among processes, and replaces those that end. Used by one thread.

    Args:
        settings: Of every process.
        size: How many there are.
    """

    def __init__(self, settings: WorkerSettings, size: int) -> None:
        self._settings = settings
        self._size = size
        self._members: list[_Member] = []
        self._orphans: set[Key] = set()

    @property
    def orphans(self) -> frozenset[Key]:
        """Partitions that nobody reads, because their process has ended: assign them again."""
        return frozenset(self._orphans)

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [member.process.pid or 0 for member in self._members]

    def assign(self, starts: Mapping[Key, int]) -> None:
        """Lets partitions be read from these offsets, each by whoever has the fewest.

        Starts the processes that are missing.
        """
        self._members += [_Member(self._settings) for _ in range(self._size - len(self._members))]
        shares: dict[int, dict[Key, int]] = {}
        for key, start in starts.items():
            number, member = min(enumerate(self._members), key=lambda m: len(m[1].keys))
            member.keys.add(key)
            shares.setdefault(number, {})[key] = start
        for number, share in shares.items():
            self._members[number].tell(Assign(share))
        self._orphans -= set(starts)

    def hold(self, pause: frozenset[Key], resume: frozenset[Key]) -> None:
        """Stops and goes on reading partitions."""
        for member in self._members:
            order = Hold(pause & member.keys, resume & member.keys)
            if order.pause or order.resume:
                member.tell(order)

    def reports(self, timeout_seconds: float) -> Iterator[list[Report]]:
        """What has come, in the order of each process; waits for the first at most the time-out."""
        by_connection = {member.connection: member for member in self._members}
        for connection in wait(list(by_connection), timeout_seconds):
            if not isinstance(connection, Connection):
                continue
            member = by_connection[connection]
            try:
                reports = connection.recv()
            except (EOFError, OSError):
                self._bury(member)
                continue
            if isinstance(reports, Ended):
                logger.error("worker %s failed: %s", member.process.pid, reports.traceback)
            else:
                yield reports

    def close(self) -> None:
        """Ends all processes."""
        for member in self._members:
            member.connection.close()
        for member in self._members:
            member.process.join(_END_SECONDS)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
        self._members = []

    def _bury(self, member: _Member) -> None:
        """What it sent before it ended was taken; what it did not is read again by another."""
        member.connection.close()
        member.process.join(_END_SECONDS)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
            how = "said nothing more and was ended"
        else:
            how = f"ended with exit code {_explained(member.process.exitcode)}"
        self._members.remove(member)
        self._orphans |= member.keys
        logger.warning(
            "worker %s %s; its %d partitions are given to another",
            member.process.pid,
            how,
            len(member.keys),
        )


def _explained(code: int | None) -> str:
    if code is None or code >= 0:
        return str(code)
    name = signal.Signals(-code).name
    why = ": killed by somebody, or by the kernel because memory ran out" if -code == signal.SIGKILL else ""
    return f"{code} ({name}{why})"
