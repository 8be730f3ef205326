"""Writes a source's cut log, which nothing else in a sidecar does."""

from collections.abc import Sequence

from slackwater_markers import CutLog, CutLogReplacedError, StoredPosition
from slackwater_protocol import AheadMarkers, Cut, PublishedCut
from slackwater_protocol.keys import cut_log_topic
from slackwater_sidecar.policy import MarkersAhead


class CutWriter:
    """Appends to a cut log as long as it is the one that was written to before. Used by one thread.

    All methods but :meth:`close` block for at most the log's time-out, and raise ``CutLogUnavailableError``
    when it does not answer.

    Args:
        source: The connector's ``topic.prefix``.
        log: The source's cut log.
    """

    def __init__(self, source: str, log: CutLog) -> None:
        self._topic = cut_log_topic(source)
        self._log = log
        self._log_id: str | None = None
        self._markers_read_to = 0
        self.markers_ahead = MarkersAhead()
        """The markers ahead of the frontier that the log has, as far as this sidecar wrote or read them."""

    def check_log(self) -> None:
        """Compares the id of the log with the one that it had before.

        Raises:
            slackwater_markers.CutLogReplacedError: it is another log.
        """
        log_id = self._log.identity()
        if None not in (log_id, self._log_id) and log_id != self._log_id:
            raise CutLogReplacedError(self._topic, f"its id was {self._log_id} and is {log_id}")
        self._log_id = log_id or self._log_id

    def newest_position(self) -> StoredPosition | None:
        """Returns where the newest cut of the log is, whoever wrote it; None when there is none."""
        newest = self._log.newest()
        return StoredPosition(newest.cut.position, newest.log_offset, "") if newest else None

    def append_cuts(self, cuts: Sequence[Cut], *, after: int) -> list[PublishedCut]:
        """Appends cuts and returns them with their offsets when the log has acknowledged all of them.

        When it raises, any prefix of them may have been written.

        Args:
            cuts: At least one; ascending.
            after: The offset of a record that the log has.

        Raises:
            slackwater_markers.CutLogReplacedError: they got offsets below that one: it is another log.
        """
        published = self._log.append(cuts)
        if after >= 0 and published[0].log_offset <= after:
            evidence = f"a cut was written to offset {published[0].log_offset}, the one before it to {after}"
            raise CutLogReplacedError(self._topic, evidence)
        return published

    def append_markers(self, records: Sequence[AheadMarkers], *, after: int) -> None:
        """Appends markers ahead of the frontier, unless the log has all of them, or higher ones.

        Args:
            records: The markers; none: nothing is done.
            after: Records of the log at or below this offset do not matter any more.
        """
        if not records or self._has_markers(records, after):
            return
        self._log.append_records(records)
        for record in records:
            self.markers_ahead = self.markers_ahead.joined_by(record)

    def close(self) -> None:
        """Closes the log."""
        self._log.close()

    def _has_markers(self, records: Sequence[AheadMarkers], after: int) -> bool:
        begin = max(after + 1, self._markers_read_to)
        for logged in self._log.records(begin - 1, with_cuts=False):
            self._markers_read_to = logged.log_offset + 1
            if isinstance(logged.record, AheadMarkers):
                self.markers_ahead = self.markers_ahead.joined_by(logged.record)
        return self.markers_ahead.has_all(records)
