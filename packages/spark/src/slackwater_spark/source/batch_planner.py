"""What the planners of both scopes have in common."""

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from slackwater_spark.source.batch import BatchTask

if TYPE_CHECKING:
    from slackwater_markers import KafkaCutLog, RedisMarkerStore
    from slackwater_spark.source.options import SourceOptions


class _Offset(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class _Feed(Protocol):
    def close(self) -> None: ...


O = TypeVar("O", bound=_Offset)  # noqa: E741 - an offset
F = TypeVar("F", bound=_Feed)


class BatchPlanner(ABC, Generic[O, F]):
    """Plans batches in the driver. What it keeps is a cache: every answer follows from the arguments.

    Travels to the executors inside the readers, without its connections.

    Args:
        options: Of the query.
        feed: Where cuts come from; None: connect as the options say, on first use.
    """

    def __init__(self, options: "SourceOptions", feed: F | None = None) -> None:
        self.options = options
        self._feed = feed

    @abstractmethod
    def start(self) -> O:
        """Where a query without a checkpoint begins."""

    @abstractmethod
    def target(self) -> int:
        """What a run that takes only what is there does not go beyond."""

    @abstractmethod
    def next(self, start: O, max_events: int | None, target: int | None) -> O:
        """Where the batch that begins at ``start`` ends; ``start`` itself when there is nothing new."""

    @abstractmethod
    def tasks(self, start: O, end: O) -> list[BatchTask]:
        """The tasks of a batch; none when it is empty."""

    @abstractmethod
    def offset(self, data: dict[str, Any]) -> O:
        """Reads an offset that Spark hands over."""

    @abstractmethod
    def _connect(self) -> F:
        """A feed as the options say."""

    def next_json(self, start: dict[str, Any], max_events: int | None, target: int | None) -> dict[str, Any]:
        """:meth:`next` as Spark asks."""
        return self.next(self.offset(start), max_events, target).to_json()

    def tasks_json(self, start: dict[str, Any], end: dict[str, Any]) -> list[BatchTask]:
        """:meth:`tasks` as Spark asks."""
        return self.tasks(self.offset(start), self.offset(end))

    @property
    def feed(self) -> F:
        """Connected on first use."""
        if self._feed is None:
            self._feed = self._connect()
        return self._feed

    def close(self) -> None:
        """Frees connections; the next use connects again."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_feed": None}


def marker_store(options: "SourceOptions") -> "RedisMarkerStore | None":
    """The store that the options name; None without one."""
    from slackwater_markers import RedisMarkerStore

    if options.redis_url is None:
        return None
    return RedisMarkerStore.connect(
        options.redis_url, password=options.redis_password, timeout=timedelta(seconds=1)
    )


def cut_log(options: "SourceOptions") -> "KafkaCutLog":
    """The source's cut log."""
    from slackwater_markers import KafkaCutLog

    timeout = timedelta(milliseconds=options.read_timeout_ms)
    return KafkaCutLog(options.source, options.bootstrap, kafka=options.kafka, timeout=timeout)
