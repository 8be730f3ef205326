"""Compares a view in two outputs as of one commit, for example those of two revisions of a pipeline."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final

import msgspec

from slackwater.client.errors import StateNotKeptError
from slackwater.client.snapshot import PipelineOutput, newest_common, repeated
from slackwater.protocol import Clock, CommitPosition, ConfigError

_EXAMPLES: Final = 10
_ABSENT: Final = object()
"""Stands for the value of a column that a document lacks, which differs from null."""


class _ChangeEvent(msgspec.Struct):
    after: msgspec.Raw


_decode_event = msgspec.json.Decoder(_ChangeEvent).decode


@dataclass(frozen=True, slots=True)
class ComparedView:
    """A view in one of the two outputs."""

    output: PipelineOutput
    name: str
    """By which the output knows it."""
    is_change_event: bool = False
    """The documents are Debezium's change events (``format = "debezium"``): their rows are compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Documents of one key that differ; None: one side has no such document."""

    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class DocumentComparison:
    """How documents of two outputs differ. The order of columns and the notation of numbers do not matter."""

    equal: int
    different: int
    """Documents whose key exists on both sides, with different values; always 0 without a key."""
    only_old: int
    only_new: int
    columns: Mapping[str, int]
    """For each column, the number of differing documents in which its values differ or one side lacks it."""
    examples: Sequence[Difference]
    """The first differences in the order of the documents' texts, at most ten of each of the three kinds."""

    @property
    def is_equal(self) -> bool:
        """True if there is no difference."""
        return not (self.different or self.only_old or self.only_new)


def compare_views(
    old: ComparedView,
    new: ComparedView,
    key: Sequence[str] = (),
    *,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
    clock: Clock | None = None,
) -> tuple[CommitPosition, DocumentComparison]:
    """Compares a view in two outputs at the newest commit at which both can be read; returns the commit, too.

    It holds the documents of both outputs in memory. It looks for a common commit for up to ``timeout``. For
    ``key``, see :func:`compare_documents`. A ``source`` is the one to name if theirs are several
    that follow one database.

    Raises:
        ConfigError: The outputs have different sources, or documents are not JSON or lack the key.
        NotVisibleError: Nothing is visible yet in one of the outputs.
        StateNotKeptError: No common commit was found in time; the error names the pipeline that is behind.
        UnavailableError: A server does not answer.
    """

    def look() -> tuple[CommitPosition, DocumentComparison]:
        at = newest_common({old.output: [old.name], new.output: [new.name]}, source).position
        here, there = (_documents(each, at) for each in (old, new))
        return at, compare_documents(here, there, key)

    return repeated(look, timeout, clock, (StateNotKeptError,))


def compare_documents(
    old: Iterable[bytes], new: Iterable[bytes], key: Sequence[str] = ()
) -> DocumentComparison:
    """Compares documents, which are JSON objects; the result does not depend on their order.

    The columns of ``key`` identify a document. If empty, all columns do: a changed document then counts as
    one that is missing and one that was added.

    Raises:
        ConfigError: A document is not a JSON object, or lacks a column of the key.
    """
    held = [_by_key(documents, key) for documents in (old, new)]
    equal = 0
    found: list[Difference] = []
    for one in held[0].keys() | held[1].keys():
        here, there = (each.get(one, []) for each in held)
        both, left, right = _unequal(here, there)
        equal += both
        found += [Difference(*pair) for pair in zip_longest(left, right)]
    found.sort(key=lambda each: (each.old or b"", each.new or b""))
    different = [each for each in found if each.old is not None and each.new is not None]
    only_old = [each for each in found if each.new is None]
    only_new = [each for each in found if each.old is None]
    return DocumentComparison(
        equal=equal,
        different=len(different),
        only_old=len(only_old),
        only_new=len(only_new),
        columns=_differing_columns(different),
        examples=[each for kind in (different, only_old, only_new) for each in kind[:_EXAMPLES]],
    )


def _documents(view: ComparedView, at: CommitPosition) -> list[bytes]:
    found = view.output.read([view.name], at, None).documents[view.name]
    return [row for each in found if (row := _row(each))] if view.is_change_event else list(found)


def _row(event: bytes) -> bytes:
    """Returns the row after a change event, as the event contains it; empty if the event deletes the row."""
    try:
        after = bytes(_decode_event(event).after)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"a document is not a change event: {event[:100]!r}", str(error)) from error
    return b"" if after == b"null" else after


def _by_key(documents: Iterable[bytes], key: Sequence[str]) -> dict[object, list[bytes]]:
    found: dict[object, list[bytes]] = {}
    for document in documents:
        columns = _columns(document)
        try:
            one = _comparable([columns[name] for name in key] if key else columns)
        except KeyError as error:
            raise ConfigError(
                f"a document lacks column {error}, which was given as part of the key: {document[:100]!r}",
                f"its columns are {', '.join(columns)}",
            ) from error
        found.setdefault(one, []).append(document)
    return found


def _unequal(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[int, list[bytes], list[bytes]]:
    """Returns how many documents both sides share, and the other documents of each side, sorted by text."""
    if list(old) == list(new):
        return len(old), [], []
    found = defaultdict[object, tuple[list[bytes], list[bytes]]](lambda: ([], []))
    for place, side in enumerate((old, new)):
        for document in sorted(side):
            found[_comparable(_columns(document))][place].append(document)
    both = sum(min(len(here), len(there)) for here, there in found.values())
    left = sorted(each for here, there in found.values() for each in here[len(there) :])
    right = sorted(each for here, there in found.values() for each in there[len(here) :])
    return both, left, right


def _differing_columns(different: Iterable[Difference]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in different:
        old, new = _columns(each.old or b""), _columns(each.new or b"")
        for name in old.keys() | new.keys():
            sides = [_comparable(side.get(name, _ABSENT)) for side in (old, new)]
            counts[name] += sides[0] != sides[1]
    return {name: counts[name] for name in sorted(counts) if counts[name]}


def _columns(document: bytes) -> dict[str, Any]:
    try:
        columns = json.loads(document, parse_float=Decimal)
    except ValueError:
        columns = None
    if isinstance(columns, dict):
        return columns
    raise ConfigError(
        f"a document is not a JSON object: {document[:100]!r}",
        "documents that need a schema registry cannot be compared; also publish the view as plain JSON",
    )


def _comparable(value: object) -> object:
    """Returns a value whose equality and hash correspond to the meaning of a JSON value."""
    if isinstance(value, dict):
        return frozenset((name, _comparable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return (value, bool) if isinstance(value, bool) else value
