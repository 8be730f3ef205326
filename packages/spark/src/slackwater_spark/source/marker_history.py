"""The markers of one partition that somebody may still need. Pure."""

from bisect import bisect_left, bisect_right

from slackwater_protocol import Marker


class MarkerHistory:
    """Markers by LSN. In any order, also from several sidecars, and each as often as it comes."""

    __slots__ = ("_lsns", "_offsets")

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._offsets: list[int] = []

    def add(self, lsn: int, offset: int) -> None:
        """Another marker. Of equal offsets only the first and the last are kept: they say it all."""
        lsns, offsets = self._lsns, self._offsets
        if lsns and lsn > lsns[-1]:
            if len(offsets) > 1 and offsets[-1] == offsets[-2] == offset:
                lsns[-1] = lsn
            else:
                lsns.append(lsn)
                offsets.append(offset)
            return
        place = bisect_left(lsns, lsn)
        if place == len(lsns) or lsns[place] != lsn:
            lsns.insert(place, lsn)
            offsets.insert(place, offset)

    def drop_to(self, lsn: int) -> None:
        """Forgets the markers at or below an LSN."""
        place = bisect_right(self._lsns, lsn)
        del self._lsns[:place], self._offsets[:place]

    def newest_lsn(self) -> int:
        """The LSN of the newest one; 0 if there is none."""
        return self._lsns[-1] if self._lsns else 0

    def lsns(self, after_lsn: int, up_to_lsn: int) -> list[int]:
        """The LSNs in ``(after_lsn, up_to_lsn]``."""
        return self._lsns[bisect_right(self._lsns, after_lsn) : bisect_right(self._lsns, up_to_lsn)]

    def at_or_below(self, lsn: int) -> Marker | None:
        """The newest marker that is not above an LSN."""
        place = bisect_right(self._lsns, lsn)
        return Marker(self._lsns[place - 1], self._offsets[place - 1]) if place else None

    def at_or_above(self, lsn: int) -> Marker | None:
        """The oldest marker that is not below an LSN."""
        place = bisect_left(self._lsns, lsn)
        return Marker(self._lsns[place], self._offsets[place]) if place < len(self._lsns) else None
