"""Which transactions are traced, and the spans of their traces. Pure.

Whether a transaction is traced, and the id of its trace, depend only on its commit position. Therefore a
sidecar and all pipelines choose the same transactions, and write to the same traces, without communication.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

_RANDOM_BITS: Final = 56
"""The bits of a trace id by which OpenTelemetry's samplers decide."""

CONNECTOR: Final = "connector"
"""From the commit in the database to the END of the transaction in Kafka."""
KAFKA: Final = "kafka"
"""From there until the sidecar has read the END."""
CUT: Final = "cut"
"""From there until the cut is in the cut log."""
WAITING: Final = "waiting"
"""From there until the pipeline chooses the batch."""
PLANNING: Final = "planning"
"""Choosing and dividing the batch."""
STAGES: Final = "stages"
"""Reading its records and evaluating the stages of the views, in Spark."""
STATE: Final = "state"
"""Writing what the stages keep."""
SINK: Final = "sink"
"""Writing the documents, until a reader of committed data can see them."""

SIDECAR_STEPS: Final = (CONNECTOR, KAFKA, CUT)
PIPELINE_STEPS: Final = (WAITING, PLANNING, STAGES, STATE, SINK)
"""All steps follow each other without gaps: together they are the delay from commit to visible."""

_ROOT: Final = "transaction"


@dataclass(frozen=True, slots=True)
class TracedTransaction:
    """A transaction of a source's database."""

    source: str
    timeline: int
    xid: int
    commit_lsn: int

    @property
    def trace_id(self) -> int:
        """128 bits, the same in all processes."""
        return _number(16, self.source, self.timeline, self.commit_lsn)

    def is_sampled(self, ratio: float) -> bool:
        """Says whether it belongs to a share of all transactions, from 0 to 1.

        A smaller share is a part of every larger one.
        """
        return self.trace_id % (1 << _RANDOM_BITS) < ratio * (1 << _RANDOM_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSpan:
    """A part of the path of a transaction."""

    transaction: TracedTransaction
    name: str
    begin_ms: int
    """Milliseconds since the epoch."""
    end_ms: int
    """Milliseconds since the epoch, not before the begin."""
    pipeline: str = ""
    """The pipeline that it belongs to; empty: it lies before all pipelines."""
    parent: str | None = None
    """The name of the span that it is a part of; None: it is the whole."""

    @property
    def span_id(self) -> int:
        """64 bits, the same in all processes."""
        return self._id(self.name, self.pipeline)

    @property
    def parent_id(self) -> int | None:
        """The id of the span that it is a part of."""
        if self.parent is None:
            return None
        return self._id(self.parent, "" if self.parent == _ROOT else self.pipeline)

    def _id(self, name: str, pipeline: str) -> int:
        return _number(8, self.transaction.trace_id, pipeline, name)


def sidecar_spans(
    transaction: TracedTransaction, commit_ms: int, ends_ms: Iterable[int]
) -> Iterator[TransactionSpan]:
    """Yields the spans from the commit up to the cut, below one of the whole transaction.

    Given are the ends of :data:`SIDECAR_STEPS`. Clocks differ: what ends before it begins takes no time.
    """
    return _spans(transaction, _ROOT, SIDECAR_STEPS, commit_ms, ends_ms)


def pipeline_spans(
    transaction: TracedTransaction, pipeline: str, cut_ms: int, ends_ms: Iterable[int]
) -> Iterator[TransactionSpan]:
    """Yields the spans from the writing of the cut on, below one of the pipeline.

    Given are the ends of :data:`PIPELINE_STEPS`, in milliseconds since the epoch.
    """
    name = f"pipeline {pipeline}"
    return _spans(transaction, name, PIPELINE_STEPS, cut_ms, ends_ms, pipeline, _ROOT)


def _spans(
    transaction: TracedTransaction,
    name: str,
    steps: Iterable[str],
    begin_ms: int,
    ends_ms: Iterable[int],
    pipeline: str = "",
    parent: str | None = None,
) -> Iterator[TransactionSpan]:
    span, parts, at_ms = partial(TransactionSpan, transaction=transaction, pipeline=pipeline), [], begin_ms
    for step, end_ms in zip(steps, ends_ms, strict=True):
        parts.append(span(name=step, begin_ms=at_ms, end_ms=max(at_ms, end_ms), parent=name))
        at_ms = parts[-1].end_ms
    yield span(name=name, begin_ms=begin_ms, end_ms=at_ms, parent=parent)
    yield from parts


def _number(size: int, *parts: object) -> int:
    """Returns a number of this many bytes derived from the parts; never 0, which is not an id."""
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=size).digest()
    return int.from_bytes(digest) or 1
