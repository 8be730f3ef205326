"""The delays of the last hours, in bounded memory."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slackwater.control.delay import Delays

SAMPLES: Final = 720
"""The number of samples: one every 30 seconds makes six hours. Each takes 8 bytes a view."""
_NOT_KNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayCourse:
    """The delays of a pipeline's views over time."""

    pipeline: str
    times_ms: tuple[int, ...]
    """When they were measured, milliseconds since the epoch, ascending."""
    views: Mapping[str, tuple[int | None, ...]]
    """By view, milliseconds at each of the times; None: not known, or the view was not there."""


class DelayHistory:
    """Remembers delays; for one thread at a time."""

    def __init__(self) -> None:
        self._times = array("q")
        self._views: dict[tuple[str, str], array[int]] = {}

    def add(self, delays: Delays) -> None:
        """Takes the next sample, and forgets the oldest if there are too many.

        If the clock was set back, samples of times that are yet to come are forgotten, too.
        """
        while self._times and self._times[-1] >= delays.made_ms:
            self._drop(-1)
        self._times.append(delays.made_ms)
        length = len(self._times)
        for view in delays.views:
            course = self._views.setdefault((view.pipeline, view.view), array("q"))
            course.extend([_NOT_KNOWN] * (length - 1 - len(course)))
            course.append(_NOT_KNOWN if view.delay_ms is None else view.delay_ms)
        for course in self._views.values():
            course.extend([_NOT_KNOWN] * (length - len(course)))
        if length > SAMPLES:
            self._drop(0)

    def of(self, pipeline: str) -> DelayCourse:
        """Returns the course of a pipeline's views; of one that is not known it is empty."""
        return DelayCourse(
            pipeline=pipeline,
            times_ms=tuple(self._times),
            views={
                view: tuple(None if each == _NOT_KNOWN else each for each in course)
                for (name, view), course in sorted(self._views.items())
                if name == pipeline
            },
        )

    def _drop(self, place: int) -> None:
        del self._times[place]
        for key, course in list(self._views.items()):
            del course[place]
            if all(each == _NOT_KNOWN for each in course):  # a view that is no more
                del self._views[key]
