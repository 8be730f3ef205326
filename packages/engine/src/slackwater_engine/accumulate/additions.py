"""The additions of a batch to the groups of a bucket: partials, decoded and summed by group and commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Final

import msgspec

from slackwater_engine.accumulate.multiset import sort_key_of
from slackwater_engine.accumulate.numbers import AccumulatorLayout, Numbers
from slackwater_engine.outcome import Partial
from slackwater_engine.payloads import TOUCH_INPUT, array_header

_NUMBERS: Final = -1
"""Number of a partial that adds to the group's numbers; others name a multiset."""

_NOTHING: Final = b"\x90"

_decode_rests = msgspec.msgpack.Decoder(list[list[Any]]).decode


@dataclass(slots=True)
class Step:
    """The additions to a group at one commit.

    Attributes:
        numbers: To the first numbers; None: nothing.
        values: To the multisets, by number and sort key; None: nothing.
    """

    numbers: Numbers | None = None
    values: dict[int, dict[bytes, int]] | None = None


class Additions:
    """The partials of a batch; many of one group and commit are one step.

    Attributes:
        groups: By packed key and commit LSN; with `latest` one step, at the newest commit.
    """

    def __init__(self, layout: AccumulatorLayout, partials: Sequence[Partial], *, every_commit: bool) -> None:
        self.groups: dict[bytes, dict[int, Step]] = {}
        self._texts: dict[int, dict[bytes, str]] = {number: {} for number in layout.multisets}
        self._every_commit = every_commit
        groups, addition = self.groups, layout.addition
        rests = b"".join([rest or _NOTHING for _, _, _, rest in partials])
        decoded = _decode_rests(array_header(len(partials)) + rests)
        for (lsn, number, key, _), values in zip(partials, decoded, strict=True):
            steps = groups.get(key)
            if steps is None:
                steps = groups[key] = {}
            step = steps.get(lsn)
            if step is None:
                step = self._step(steps, lsn)
            if number == _NUMBERS:
                more = addition(values)
                step.numbers = more if step.numbers is None else list(map(add, step.numbers, more))
            elif number != TOUCH_INPUT:
                self._add_value(step, number, values)

    def touched(self, steps: dict[int, Step], number: int) -> dict[bytes, str]:
        """Sort keys and texts of the values of a multiset that these steps add to."""
        texts = self._texts[number]
        return {
            sort_key: texts[sort_key]
            for step in steps.values()
            if step.values is not None
            for sort_key in step.values.get(number, ())
        }

    def _step(self, steps: dict[int, Step], lsn: int) -> Step:
        if self._every_commit or not steps:
            step = steps[lsn] = Step()
            return step
        ((newest, step),) = steps.items()
        if newest < lsn:
            del steps[newest]
            steps[lsn] = step
        return step

    def _add_value(self, step: Step, number: int, values: Sequence[Any]) -> None:
        text, more = values[1], values[2]
        sort_key = sort_key_of(values[0])
        if step.values is None:
            step.values = {}
        of_multiset = step.values.get(number)
        if of_multiset is None:
            of_multiset = step.values[number] = {}
        of_multiset[sort_key] = of_multiset.get(sort_key, 0) + more
        self._texts[number].setdefault(sort_key, text)
