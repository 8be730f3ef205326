"""Switches the readers of tables in a lake from one revision of a pipeline to another.

One row of one table records which revision is read. It is replaced in one commit of that table, based on the
version that was read. A process that is killed has therefore replaced it or not, and if two processes switch
at the same time, the second one is rejected.
"""

from datetime import timedelta
from functools import partial
from typing import Any

from slackwater.client.errors import NotVisibleError, StateNotKeptError
from slackwater.client.followed import never_switched
from slackwater.client.lake_views import LakeOutput, translated
from slackwater.client.snapshot import repeated
from slackwater.client.switched import Switch, Switched, Views, base_name
from slackwater.outputs.lake.table import Lake, SnapshotConflictError
from slackwater.protocol import Clock, ReaderSwitch, SystemClock, UnavailableError, epoch_ms, from_epoch_ms
from slackwater.protocol.keys import lake_ledger, lake_readers


def switch_lake(
    lake: Lake,
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
        lake: The lake.
        pipeline: The name with the revision.
        revision: The number of the revision.
        views: The table of each view.
        accept_earlier: Also switch to a revision that is behind; readers then go back to an earlier commit.
        source: The source at the beginning of a chain, if the revisions read different revisions of an output
            and both have the commits of that source. None: both read the same source.
        timeout: How long to wait.

    Raises:
        ConfigError: The pipeline has not written here, lacks a view that readers have, or reads another
            source.
        NotVisibleError: The revision was still behind at the end; nothing was changed.
        StateNotKeptError: The revisions have no commit in common at which both ended a batch; nothing was
            changed.
        UnavailableError: The lake does not answer, or another process switched at the same time.
    """
    switch = Switch(
        pipeline=pipeline, revision=revision, views=views, accept_earlier=accept_earlier, source=source
    )
    clock = SystemClock()
    return repeated(partial(_try_to_switch, lake, switch, clock), timeout, clock)


def newest_lake_switch(lake: Lake, pipeline: str) -> ReaderSwitch | None:
    """Returns the newest switch of a lake's readers to a revision.

    Args:
        lake: The lake.
        pipeline: The name without a revision.

    Returns:
        None: the readers were never switched.

    Raises:
        UnavailableError: The lake does not answer.
    """
    with translated():
        rows = lake.table(lake_readers(pipeline)).read(None)
    return None if rows is None else _record(pipeline, rows)


def tables_of_readers(lake: Lake, pipeline: str) -> LakeOutput:
    """Opens the output that readers of a pipeline were switched to; read it with ``read_views``.

    Args:
        lake: The lake.
        pipeline: The name without a revision.

    Raises:
        ConfigError: Readers were never switched.
        UnavailableError: The lake does not answer.
    """
    found = newest_lake_switch(lake, pipeline)
    if found is None:
        raise never_switched(pipeline)
    return LakeOutput(lake, found.pipeline)


def _try_to_switch(
    lake: Lake, switch: Switch, clock: Clock
) -> Switched | NotVisibleError | StateNotKeptError | UnavailableError:
    base = base_name(switch.pipeline)
    table = lake.table(lake_readers(base))
    with translated():
        head = table.load()
        before = None if head is None else _record(base, table.read(head.id))
    old = None if before is None else LakeOutput(lake, before.pipeline)
    attempted = switch.attempt(before, old, LakeOutput(lake, switch.pipeline), clock)
    if not isinstance(attempted, tuple):
        return attempted
    done, record = attempted
    if record is None:
        return done
    try:
        with translated():
            if head is None:
                table.create(_schema(), {})
            table.replace(_row(record), {})
    except SnapshotConflictError:
        return UnavailableError(
            f"another process is switching readers of {base!r} at the same time",
            "nothing was changed; try again",
        )
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
