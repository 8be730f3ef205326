"""Packs changes by bucket for the stages of a pipeline."""

from collections import Counter
from collections.abc import Iterator

from confluent_kafka import Message

from slackwater.cdc.connector import CONNECTOR_HINT
from slackwater.cdc.records.batch import OffsetSpan
from slackwater.cdc.records.changes import BatchChanges
from slackwater.cdc.records.record import bad_input
from slackwater.engine.pack.packer import EventPacker
from slackwater.engine.pack.specification import PackingSpec
from slackwater.engine.payloads import TOUCH_SEQUENCE, PackedPayload
from slackwater.protocol import InputError, format_position

_FOREIGN = (
    "a change of table {} that neither a pipeline nor a service wrote, but a connector whose configuration "
    "is not known, so that its values may have another form"
)
_UNSETTLED = 500
"""The number of changes of a span that are kept as objects, which is what a processor's cache holds."""


class IdlePackers:
    """Empty packers of one specification. They are kept because building one compiles its codecs.

    Args:
        spec: The specification.
        keeps_old: Whether events contain old rows.
    """

    def __init__(self, spec: PackingSpec, *, keeps_old: bool = False) -> None:
        self._spec = spec
        self._keeps_old = keeps_old
        self._idle: list[EventPacker] = []
        self._has_moves = False

    def take(self) -> EventPacker:
        """Returns a packer."""
        return self._idle.pop() if self._idle else EventPacker(self._spec, keeps_old=self._keeps_old)

    def give_back(self, packer: EventPacker) -> None:
        """Stores a packer whose payloads were taken."""
        self._has_moves |= packer.take_has_moves()
        self._idle.append(packer)

    def take_has_moves(self) -> bool:
        """Returns whether rows that lack values have come from other primary keys since the last call."""
        found, self._has_moves = self._has_moves, False
        return found


def pack_changes(
    packers: IdlePackers,
    changes: BatchChanges,
    touch_lsn: int | None,
    portions: Iterator[tuple[OffsetSpan, list[Message]]],
) -> list[PackedPayload]:
    """Packs the changes of a task.

    Each span is packed separately, because spans of several partitions arrive interleaved. The payloads of a
    batch are therefore the same at every attempt.

    Args:
        packers: The packers of the pipeline.
        changes: Determines which changes count.
        touch_lsn: The commit from which on the groups of stages without key columns exist; None if nothing is
            announced.
        portions: Records by span.

    Raises:
        BadInputError: A record cannot be decoded; the error names its place.
    """
    payloads: list[PackedPayload] = []
    if touch_lsn is not None:
        packer = packers.take()
        if packer.can_touch:
            packer.touch(touch_lsn)
            payloads += _addressed(packer, TOUCH_SEQUENCE)
        packers.give_back(packer)
    by_span: dict[int, EventPacker] = {}
    unsettled: Counter[int] = Counter()
    for span, messages in portions:
        packer = by_span.get(span.sequence) or packers.take()
        by_span[span.sequence] = packer
        _pack(packer, changes, span, messages)
        unsettled[span.sequence] += len(messages)
        if unsettled[span.sequence] >= _UNSETTLED:
            unsettled[span.sequence] = 0
            packer.settle()
    for sequence in sorted(by_span):
        payloads += _addressed(by_span[sequence], sequence)
        packers.give_back(by_span[sequence])
    return payloads


def _addressed(packer: EventPacker, sequence: int) -> Iterator[PackedPayload]:
    for stage, bucket, payload in packer.payloads():
        yield stage, bucket, sequence, payload


def _pack(packer: EventPacker, changes: BatchChanges, span: OffsetSpan, messages: list[Message]) -> None:
    """Packs regular records together, the others one by one."""
    window = changes.window(span)
    if window is None:
        _pack_each(packer, changes, span, messages)
        return
    table = packer.table(window.table)
    if not all(table.is_key(message.key()) for message in (messages[0], messages[-1])):
        _pack_each(packer, changes, span, messages)
        return
    try:
        envelopes = table.decode([message.value() for message in messages])
    except (ValueError, RecursionError):  # which record, and what is wrong with it, is found one by one
        _pack_each(packer, changes, span, messages)
        return
    done = table.add_regular(envelopes, window)
    while done < len(messages):
        _pack_each(packer, changes, span, messages[done : done + 1])
        done += 1 + table.add_regular(envelopes[done + 1 :], window)


def _pack_each(packer: EventPacker, changes: BatchChanges, span: OffsetSpan, messages: list[Message]) -> None:
    for message, change, commit_lsn in changes.find(span, messages):
        if packer.takes_only_own and not change.is_own:
            raise bad_input(message, f"{_FOREIGN.format(change.table)}; {CONNECTOR_HINT}, and start again")
        before, after = change.before, change.after
        try:
            packer.add(
                change.table,
                change.op,
                commit_lsn,
                None if before is None else bytes(before),
                None if after is None else bytes(after),
                change.lsn,
                change.schema,
            )
        except InputError as error:
            problem = f"in the transaction with commit LSN {format_position(commit_lsn)}, {error}"
            raise bad_input(message, problem) from error
