"""What a run tells of each batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from slackwater_spark.sink import WriteReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch that is visible."""

    pipeline: str
    source: str
    timeline: int
    batch_id: int
    commit_lsn: int
    """The view shows everything up to and including this commit."""
    committed_at: datetime
    """When the newest transaction of the batch was committed in the database."""
    visible_at: datetime
    """When a ``read_committed`` reader of the output could see it."""
    events: int
    """Change events of the source in the batch, over all its tables."""
    transactions: int
    """Source transactions with a change event."""
    documents: int
    """Records written to the output, deletes included."""
    deletes: int
    was_covered: bool
    """The output held the batch already: the run before ended between Kafka's commit and Spark's."""
    seconds: Mapping[str, float]
    """By part. ``collect`` (source, stage, transfer to the driver), ``produce`` and ``commit`` are the
    sink's; the others are Spark's ``durationMs``; there ``addBatch`` spans these three. Spark's are
    absent if it did not report the batch before the run ended."""

    @property
    def lag(self) -> timedelta:
        """From the database's commit of the newest transaction to its visibility in the output."""
        return self.visible_at - self.committed_at


def batch_progress(
    pipeline: str, report: WriteReport, collect_seconds: float, spark_ms: Mapping[str, int]
) -> BatchProgress:
    """Puts together what the sink and Spark say of one batch."""
    header = report.header
    seconds = {
        "collect": collect_seconds,
        "produce": report.produce_seconds,
        "commit": report.commit_seconds,
        **{name: ms / 1000 for name, ms in spark_ms.items()},
    }
    return BatchProgress(
        pipeline=pipeline,
        source=header.source,
        timeline=header.timeline,
        batch_id=report.batch_id,
        commit_lsn=header.to_lsn,
        committed_at=datetime.fromtimestamp(header.commit_ts_ms / 1000, UTC),
        visible_at=report.visible_at,
        events=header.event_count,
        transactions=len(header.transactions),
        documents=report.documents,
        deletes=report.deletes,
        was_covered=report.was_covered,
        seconds=seconds,
    )
