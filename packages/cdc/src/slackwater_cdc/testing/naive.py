"""The rule that one would write who does not know connectors: for tests that must see it fail."""

from slackwater_cdc.transaction import Transaction


def has_as_many_rows_as_counted(transaction: Transaction) -> bool:
    """Whether as many rows were read as END counts, whatever their numbers."""
    end = transaction.end
    tracks = [track for rows in transaction.runs for track in rows.tracks.values()]
    read = sum(len(track) - track.count(0) for track in tracks)
    return end is not None and read >= sum(end.counts.values())
