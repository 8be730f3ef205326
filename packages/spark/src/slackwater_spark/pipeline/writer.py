"""The function that Spark's ``foreachBatch`` calls, which hands each batch to the sink."""

import threading
from collections.abc import Callable

from pyspark.sql import DataFrame

from slackwater_engine.documents import document_batch
from slackwater_protocol import Clock
from slackwater_spark.sink import Sink, WriteReport


class RunStoppedError(Exception):
    """Ends a batch that must not begin any more, since the run is being stopped."""


class BatchWriter:
    """Writes each batch that Spark hands over.

    Spark calls from a thread of its own, one batch at a time; :meth:`stop` may come from any thread.

    Args:
        sink: Where batches become visible.
        query_id: Returns Spark's query id; called when a batch is written.
        clock: Measures how long batches take.
        on_written: Takes what the sink says of a batch, and how many seconds it took to get there.
    """

    def __init__(
        self,
        sink: Sink,
        query_id: Callable[[], str],
        clock: Clock,
        on_written: Callable[[WriteReport, float], None],
    ) -> None:
        self._sink = sink
        self._query_id = query_id
        self._clock = clock
        self._on_written = on_written
        self._writing = threading.Lock()
        self._is_stopped = False
        self.failure: Exception | None = None
        """The error of the last batch, as it was raised: Spark hands on only its text."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Collects and writes one batch; Spark's ``foreachBatch`` function."""
        started = self._clock.monotonic()
        batch = document_batch(batch_id, rows.toArrow())
        if batch is None:
            return
        collected = self._clock.monotonic()
        with self._writing:
            if self._is_stopped:
                raise RunStoppedError
            try:
                report = self._sink.write(self._query_id(), batch)
            except Exception as error:
                self.failure = error
                raise
        self._on_written(report, collected - started)

    def stop(self) -> None:
        """Returns when no batch is being written; from then on none is."""
        with self._writing:
            self._is_stopped = True
