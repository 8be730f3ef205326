"""The rows of a transaction that were read: one byte per row."""

from collections.abc import Mapping, Sequence

MAX_ROWS = 1 << 28
"""The most rows of one table in one transaction: each takes a byte of memory in a sidecar."""
_CAPACITY = 16
_TO_ONE = bytes([0] + [1] * 255)

Track = bytearray
"""The rows of one table by their order: 0, or the mark of the partition where the row was read first."""


class RunRows:
    """The rows of one transaction that one run of the connector has written.

    Everything the hot loop touches is here. No reference leads back from the tracks: with cyclic garbage
    collection off that would be a leak.
    """

    __slots__ = ("missing", "run", "tracks")

    def __init__(self, run: str) -> None:
        self.run = run
        self.tracks: dict[str, Track] = {}
        """The tracks by table."""
        self.missing = 0
        """Rows that END counts and that were not read; before END minus the number of rows read."""

    def track(self, table: str) -> Track:
        """The track of a table, made when missing."""
        track = self.tracks.get(table)
        if track is None:
            track = self.tracks[table] = Track(_CAPACITY)
        return track

    def expect(self, counts: Mapping[str, int]) -> bool:
        """Takes over the counts of END; False if rows beyond them were read: there are several numberings."""
        tracks = self.tracks
        missing, is_beyond = 0, False
        for table, count in counts.items():
            track = tracks.get(table)
            if track is None:
                tracks[table] = Track(count + 1)
                missing += count
                continue
            beyond = len(track) - count - 1
            if beyond <= 0:
                track.extend(bytes(-beyond))
            elif track.count(0, count + 1) == beyond:
                del track[count + 1 :]
            else:
                is_beyond = True
            missing += track.count(0, 1, count + 1)
        self.missing = missing
        return not is_beyond and len(tracks) == len(counts)

    def add(self, track: Track, order: int, mark: int) -> None:
        """Notes a row outside the hot loop."""
        if order >= len(track):
            track.extend(bytes(max(order + 1, min(2 * len(track), MAX_ROWS + 1)) - len(track)))
        if not track[order]:
            track[order] = mark
            self.missing -= 1

    def covers(self, table: str, count: int) -> bool:
        """Returns whether rows 1 … count of a table were read."""
        track = self.tracks.get(table, b"")
        return len(track) > count and not track.count(0, 1, count + 1)

    def is_exactly(self, table: str, count: int) -> bool:
        """Returns whether rows 1 … count of a table were read and none beyond."""
        track = self.tracks.get(table, b"")
        return self.covers(table, count) and track.count(0, count + 1) == len(track) - count - 1


def union(runs: Sequence[RunRows], table: str) -> bytes:
    """Joins tracks: 1 at every order at which any of the runs has a row of the table."""
    bits = size = 0
    for rows in runs:
        track = rows.tracks.get(table, b"")
        size = max(size, len(track))
        bits |= int.from_bytes(track.translate(_TO_ONE), "little")
    return bits.to_bytes(size, "little")
