"""Switches the readers of tables in a lake from one revision of a pipeline to another.

One row of one table records which revision is read. It is replaced in one commit of that table, based on the
version that was read. A process that is killed has therefore replaced it or not, and if two processes switch
at the same time, the second one is rejected.
"""

from datetime import timedelta
from functools import partial
from typing import Any

from slackwater.client.errors import ClientUnavailableError, NotVisibleError, StateNotKeptError
from slackwater.client.followed import never_switched
from slackwater.client.lake_views import (
    LakeOutput,
    LakeTables,
    NoSuchLakeTableError,
    TableChangedError,
)
from slackwater.client.snapshot import repeated
from slackwater.client.switched import Switched, Views, base_name, check_views, place_of_switch
from slackwater.protocol import Clock, ReaderSwitch, SystemClock, epoch_ms, from_epoch_ms
from slackwater.protocol.keys import lake_ledger, lake_readers


def switch_lake(
    tables: LakeTables,
    pipeline: str,
    revision: int,
    views: Views,
    *,
    accept_earlier: bool = False,
    source: str | None = None,
    timeout: timedelta = timedelta(seconds=30),
) -> Switched:
    """Switches the readers of a pipeline to the tables of a revision, from one commit on.

    It waits until the revision has caught up with the one that is read now. Repeating the call changes
    nothing.

    Args:
        tables: The lake.
        pipeline: The name with the revision.
        revision: The number of the revision.
        views: The table of each view.
        accept_earlier: Also switch to a revision that is behind; readers then go back to an earlier commit.
        source: The source at the beginning of a chain, if the revisions read different revisions of an output
            and both have the commits of that source. None: both read the same source.
        timeout: How long to wait.

    Raises:
        ClientConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source.
        NotVisibleError: The revision was still behind at the end; nothing was changed.
        StateNotKeptError: The revisions have no commit in common at which both ended a batch; nothing was
            changed.
        ClientUnavailableError: The lake does not answer, or another process switched at the same time.
    """
    clock = SystemClock()
    look = partial(_try_to_switch, tables, pipeline, revision, views, accept_earlier, source, clock)
    return repeated(look, timeout, clock)


def newest_lake_switch(tables: LakeTables, pipeline: str) -> ReaderSwitch | None:
    """Returns the newest switch of a lake's readers to a revision.

    Args:
        tables: The lake.
        pipeline: The name without a revision.

    Returns:
        None: the readers were never switched.

    Raises:
        ClientUnavailableError: The lake does not answer.
    """
    try:
        return _record(pipeline, tables.read(lake_readers(pipeline), None, {}))
    except NoSuchLakeTableError:
        return None


def tables_of_readers(tables: LakeTables, pipeline: str) -> LakeOutput:
    """Opens the output that readers of a pipeline were switched to; read it with ``read_views``.

    Args:
        tables: The lake.
        pipeline: The name without a revision.

    Raises:
        ClientConfigError: Readers were never switched.
        ClientUnavailableError: The lake does not answer.
    """
    found = newest_lake_switch(tables, pipeline)
    if found is None:
        raise never_switched(pipeline)
    return LakeOutput(tables, found.pipeline)


def _try_to_switch(
    tables: LakeTables,
    pipeline: str,
    revision: int,
    views: Views,
    accept_earlier: bool,
    source: str | None,
    clock: Clock,
) -> Switched | NotVisibleError | StateNotKeptError | ClientUnavailableError:
    base, new = base_name(pipeline), LakeOutput(tables, pipeline)
    done: Switched | NotVisibleError | StateNotKeptError | None = None

    def make(rows: Any) -> Any:
        nonlocal done
        before = None if rows is None else _record(base, rows)
        if before is not None:
            check_views(before.pipeline, before.views, pipeline, views)
            if before.pipeline == pipeline and before.views == views:
                found = new.newest()
                at = before.position if found is None else found.position
                done = Switched(pipeline, at, at)
                return None
        old = None if before is None else LakeOutput(tables, before.pipeline)
        names = () if before is None else [*before.views.values()]
        place = place_of_switch(
            old, names, new, [*views.values()], accept_earlier=accept_earlier, source=source
        )
        if isinstance(place, NotVisibleError | StateNotKeptError):
            done = place
            return None
        done, found_source = place
        return _row(
            ReaderSwitch(
                base_name=base,
                pipeline=pipeline,
                revision=revision,
                source=found_source,
                timeline=done.position.timeline,
                commit_lsn=done.position.lsn,
                views=dict(views),
                switched_ms=epoch_ms(clock.now()),
            )
        )

    try:
        tables.replace(lake_readers(base), _schema(), make)
    except TableChangedError:
        return ClientUnavailableError(
            f"another process is switching readers of {base!r} at the same time",
            "nothing was changed; try again",
        )
    assert done is not None  # noqa: S101 - make was called
    return done


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("pipeline", pa.string()),
            ("revision", pa.int64()),
            ("ledger", pa.string()),
            ("views", pa.map_(pa.string(), pa.string())),
            ("source", pa.string()),
            ("timeline", pa.int64()),
            ("commit_lsn", pa.int64()),
            ("switched_at", pa.timestamp("us", "UTC")),
        ]
    )


def _row(record: ReaderSwitch) -> Any:
    import pyarrow as pa

    row = {
        "pipeline": record.pipeline,
        "revision": record.revision,
        "ledger": lake_ledger(record.pipeline),
        "views": list(record.views.items()),
        "source": record.source,
        "timeline": record.timeline,
        "commit_lsn": record.commit_lsn,
        "switched_at": from_epoch_ms(record.switched_ms),
    }
    return pa.Table.from_pylist([row], schema=_schema())


def _record(base: str, rows: Any) -> ReaderSwitch | None:
    found = rows.to_pylist()
    if not found:
        return None
    (row,) = found
    names = ("pipeline", "revision", "source", "timeline", "commit_lsn")
    return ReaderSwitch(
        base_name=base,
        views=dict(row["views"]),
        switched_ms=epoch_ms(row["switched_at"]),
        **{name: row[name] for name in names},
    )
