"""The rows of tables in the state of another pipeline, with which a new pipeline can begin.

Stages keep the rows of the tables that they read, so a state is a snapshot of these tables as of one commit.
The rows are packed as if that commit had inserted each of them, whatever the new views compute from them. The
other pipeline may keep running, and removes files that it no longer needs, so these are copied first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final

from msgspec import structs

from slackwater.engine.index import Contents
from slackwater.engine.packer import EventPacker, PackingInput, PackingSpec
from slackwater.engine.payloads import TOUCH_SEQUENCE, PackedPayload
from slackwater.engine.state.entry import group_width, input_tag
from slackwater.engine.state.inspection import find_state, read_contents
from slackwater.engine.state.log import BlobSource, BucketLog, LogHead
from slackwater.engine.state.manifest import history, segment_name, segment_path
from slackwater.engine.state.store import StateStore, missing_file
from slackwater.protocol import ConfigError, StateError
from slackwater.sql.catalog import Column
from slackwater.sql.row_codec import RowCodec, WireRow

FIRST_BATCH: Final = 0
TASK_BYTES: Final = 8 << 20
"""The approximate size of the live contents that one task reads, before compression."""

ROUNDS: Final = 20
"""The maximum number of attempts to copy a state whose files disappear. Each attempt copies only the files
that the earlier ones have not copied."""

_COPYING_THREADS: Final = 4
_ROWS_AT_ONCE: Final = 500
_ROWS_OF_PAYLOADS: Final = 100_000
"""The number of rows after which the packed rows are compressed."""

_TASK_SEQUENCES: Final = 32
"""The number of bits of a payload's sequence below the number of its task."""

BucketHead = tuple[int, int, LogHead]
"""The stage and the bucket of a log, and its head."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """Where the rows of a table are, and which inputs receive them."""

    origin: PackingInput
    """The input of the other pipeline that keeps the rows."""
    inputs: tuple[PackingInput, ...]
    """The inputs of the new pipeline that begin with these rows, all of the same table."""

    @property
    def added(self) -> dict[str, Column]:
        """The columns that these inputs use and that are not kept, because they were added later.

        The rows have them only in one form: as of the copied state, none has had another value.
        """
        kept = self.origin.plan.column_names
        columns = {column.name: column for each in self.inputs for column in each.plan.columns}
        return {name: column for name, column in columns.items() if name not in kept}


def plan_copy(old: PackingSpec, new: PackingSpec) -> tuple[TableCopy, ...]:
    """Finds for each input of a new pipeline an input of an old one that keeps all of its rows and columns.

    Raises:
        ConfigError: Some rows or columns are not kept; the message lists all of them.
    """
    missing: dict[str, None] = {}
    copies: list[TableCopy] = []
    for table in sorted(new.tables):
        kept = [each for each in old.inputs if each.plan.table.full_name == table]
        wanted = [each for each in new.inputs if each.plan.table.full_name == table]
        missing |= {
            _describe_closest(kept, each): None
            for each in wanted
            if all(_missing_parts(old, each) for old in kept)
        }
        while not missing and wanted:
            origin, taking = max(
                ((each, tuple(w for w in wanted if not _missing_parts(each, w))) for each in kept),
                key=lambda found: len(found[1]),
            )
            copies.append(TableCopy(origin, taking))
            wanted = [each for each in wanted if each not in taking]
    if missing:
        raise ConfigError("; ".join(missing))
    return tuple(copies)


def _describe_closest(kept: Iterable[PackingInput], wanted: PackingInput) -> str:
    """Describes what is not kept for an input, compared with the most similar input of the other pipeline."""
    closest = min(
        (_missing_parts(each, wanted) for each in kept), key=len, default=["no stage keeps its rows"]
    )
    return f"table {wanted.plan.table.full_name}: {', '.join(closest)}"


def _missing_parts(keeper: PackingInput, reader: PackingInput) -> list[str]:
    """Returns what one input lacks that another one needs."""
    kept, wanted, lacks = keeper.plan, reader.plan, []
    columns = {column.name: column for column in kept.columns}
    if set(kept.table.primary_key) != set(wanted.table.primary_key):
        lacks.append(f"the primary key was {', '.join(kept.table.primary_key)}")
    for column in wanted.columns:
        there = columns.get(column.name)
        if there is None and column.was_added:
            continue
        if there is None:
            lacks.append(f"column {column.name} is not kept")
        elif not column.type.includes(there.type):
            lacks.append(f"column {column.name} is kept as {there.type}, not as {column.type}")
        elif there.nullable and not column.nullable:
            lacks.append(f"column {column.name} could be NULL")
    nullable = [c.name for c in kept.columns if c.nullable and c.name in kept.key]
    left_out = () if kept.keeps_null_keys else nullable
    needed = [name for name in left_out if wanted.keeps_null_keys or name not in wanted.key]
    return lacks + [f"rows whose {name} is NULL are not kept" for name in needed]


def plan_copies(olds: Sequence[PackingSpec], new: PackingSpec) -> tuple[tuple[TableCopy, ...], ...]:
    """Does the same as :func:`plan_copy` with several other pipelines; returns what each of them gives."""
    left, found = list(new.inputs), list[tuple[TableCopy, ...]]()
    for old in olds:
        taking = [each for each in left if any(_keeps(one, each) for one in old.inputs)]
        left = [each for each in left if each not in taking]
        found.append(plan_copy(old, replace(new, inputs=tuple(taking))))
    of_all = replace(olds[0], inputs=tuple(each for old in olds for each in old.inputs))
    plan_copy(of_all, replace(new, inputs=tuple(left)))  # raises, unless nothing is left
    return tuple(found)


def _keeps(keeper: PackingInput, reader: PackingInput) -> bool:
    one, other = keeper.plan.table.full_name, reader.plan.table.full_name
    return one == other and not _missing_parts(keeper, reader)


@dataclass(frozen=True, slots=True)
class CopiedState:
    """A state of another pipeline whose files are in the store of a new one."""

    position: Mapping[str, Any]
    """The position in the source."""
    logs: tuple[BucketHead, ...]
    """The logs of the requested stages, ascending."""


def copy_state(
    source: StateStore,
    target: StateStore,
    stages: Collection[int],
    *,
    fingerprint: str,
    at: Mapping[str, Any] | None = None,
    copied: set[str] | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> CopiedState | None:
    """Copies the newest state of a pipeline that is certainly committed, while the pipeline may be running.

    With a position in the source, it copies the state there, and fails when that is removed. It adds to the
    segments that earlier calls have copied.

    The copies have the names of files of the first batch. They are therefore removed when that batch of the
    new pipeline is committed. The copy may be repeated. The fingerprint is that of the other pipeline's
    stages. If `is_wanted`, which is called between files, returns False, the function returns None.

    Raises:
        StateError: There is no state, it belongs to other stages, or a file is missing or damaged.
        UnavailableError: A store does not answer.
    """
    copied = set() if copied is None else copied
    newest, rounds = "", 0
    while True:
        try:
            found = find_state(source, at)
            if found.fingerprint != fingerprint:
                msg = "the state belongs to other stages than those of the named pipeline"
                raise StateError(msg)
            logs = [(*place, head) for place, head in sorted(found.state.heads.items()) if place[0] in stages]
            segments = {blob.segment for _, _, head in logs for blob in head.blobs}
            _copy_segments(source, target, sorted(segments - copied), copied, is_wanted)
        except StateError:
            names, rounds = history(source), rounds + 1
            if at is not None or rounds == ROUNDS or not names or names[-1] == newest:
                raise  # the other pipeline has not advanced, so it has removed nothing
            newest = names[-1]
        else:
            copies = tuple((stage, bucket, _of_copies(head)) for stage, bucket, head in logs)
            return CopiedState(found.state.position or {}, copies) if is_wanted() else None


def _copy_segments(
    source: StateStore,
    target: StateStore,
    names: Collection[str],
    copied: set[str],
    is_wanted: Callable[[], bool],
) -> None:
    """Copies segments, and adds the names of those that exist to `copied`."""

    def copy(name: str) -> None:
        if not is_wanted():
            return
        data = source.read(segment_path(name))
        if data is None:
            raise missing_file("to be copied", segment_path(name))
        target.write(segment_path(_copy_name(name)), data)
        copied.add(name)

    with ThreadPoolExecutor(_COPYING_THREADS) as threads:
        for done in [threads.submit(copy, name) for name in names]:
            done.result()


def _copy_name(segment: str) -> str:
    return segment_name(FIRST_BATCH, segment.partition("-")[2])


def _of_copies(head: LogHead) -> LogHead:
    blobs = tuple(structs.replace(blob, segment=_copy_name(blob.segment)) for blob in head.blobs)
    return structs.replace(head, blobs=blobs)


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A part of the first batch: some buckets of the other pipeline whose rows are to be packed."""

    number: int
    """The number of the task, from 0."""
    tables: tuple[TableCopy, ...] = field(repr=False)
    logs: tuple[BucketHead, ...] = field(repr=False)
    lsn: int
    """The commit LSN as of which the rows exist."""
    ticks: tuple[tuple[int, int], ...] = ()
    """The clock as of that commit, see :meth:`EventPacker.tick`."""


def copy_tasks(
    tables: tuple[TableCopy, ...],
    state: CopiedState,
    lsn: int,
    task_bytes: int = TASK_BYTES,
    *,
    first: int = 0,
    ticks: tuple[tuple[int, int], ...] = (),
) -> tuple[CopyTask, ...]:
    """Divides the first batch into tasks of about equal size, at least one, with numbers from `first` on."""
    size = sum(head.live_bytes for _, _, head in state.logs)
    number = max(1, min(len(state.logs), -(-size // task_bytes)))
    logs = sorted(state.logs, key=lambda each: -each[2].live_bytes)
    return tuple(
        CopyTask(first + each, tables, tuple(logs[each::number]), lsn, ticks) for each in range(number)
    )


def pack_rows(task: CopyTask, spec: PackingSpec, blobs: BlobSource) -> Iterator[PackedPayload]:
    """Yields the rows of a task, packed as changes of a commit. Every attempt yields the same.

    Reads the buckets one after the other, each through an index in a temporary folder. The memory needed is
    that of the compressed payloads of one bucket.

    Raises:
        StateError, UnavailableError: A copied file is damaged or missing, or a disk does not work.
    """
    sequences = count(task.number << _TASK_SEQUENCES)
    if task.number == 0:
        packer = EventPacker(replace(spec, inputs=()))
        packer.touch(task.lsn)
        packer.tick(task.ticks)
        yield from ((stage, bucket, TOUCH_SEQUENCE, packed) for stage, bucket, packed in packer.payloads())
    for stage, bucket, head in task.logs:
        tables = [each for each in task.tables if each.origin.stage == stage]
        log = BucketLog(stage, bucket, head, blobs)
        try:
            found = read_contents(log.changes(), partial(_packed, tables=tables, spec=spec, lsn=task.lsn))
        except StateError as error:
            raise StateError(
                f"the copied state of another pipeline cannot be used: {error}. `slackwater state --check` "
                "names what is damaged in that pipeline's checkpoint"
            ) from error
        for payloads in found:
            sequence = next(sequences)
            yield from ((target, into, sequence, packed) for target, into, packed in payloads)


Payloads = list[tuple[int, int, bytes]]
"""Stage, bucket and payload, as a packer returns them."""


def _packed(contents: Contents, tables: Iterable[TableCopy], spec: PackingSpec, lsn: int) -> list[Payloads]:
    rows = {input_tag(each.origin.number): _KeptRows(each, spec, lsn) for each in tables}
    for name, value in contents.entries():
        width = group_width(name)
        of_table = rows.get(name[width : width + 1])
        if of_table is not None:
            of_table.add(value)
    return [payloads for of_table in rows.values() for payloads in of_table.payloads()]


class _KeptRows:
    """Packs rows of one input of another pipeline for the inputs that begin with them."""

    def __init__(self, copy: TableCopy, spec: PackingSpec, lsn: int) -> None:
        self._packer = EventPacker(replace(spec, inputs=copy.inputs))
        kept = copy.origin.plan
        self._table = self._packer.table(kept.table.full_name)
        self._codec = RowCodec(kept.table, kept.column_names)
        names = (*kept.column_names, *copy.added)
        self._positions = list(map(names.index, self._table.columns))
        self._absent = tuple(column.absent for column in copy.added.values())
        self._lsn = lsn
        self._rows: list[WireRow] = []
        self._count = 0
        self._payloads: list[Payloads] = []

    def add(self, packed: bytes) -> None:
        """Adds a row in the form in which the other pipeline keeps it."""
        row = (*self._codec.unpack(packed), *self._absent)
        self._rows.append(tuple([row[position] for position in self._positions]))
        if len(self._rows) == _ROWS_AT_ONCE:
            self._settle()

    def payloads(self) -> list[Payloads]:
        """Returns all rows, packed."""
        self._settle()
        self._compress()
        return self._payloads

    def _settle(self) -> None:
        self._count += len(self._rows)
        self._table.add_rows(self._lsn, self._rows)
        self._packer.settle()
        self._rows.clear()
        if self._count >= _ROWS_OF_PAYLOADS:
            self._compress()

    def _compress(self) -> None:
        if self._count:
            self._payloads.append(list(self._packer.payloads()))
            self._count = 0
