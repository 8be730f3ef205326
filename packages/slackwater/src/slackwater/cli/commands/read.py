"""``slackwater read``, ``wait`` and ``lease``: the outputs of pipelines at a commit."""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slackwater.cli.given_pipelines import (
    NamedPipeline,
    names_in_outputs,
    open_outputs,
    pipelines_to_read,
)
from slackwater.cli.main import settings_command, settings_group
from slackwater.cli.pipelines import pipelines_of
from slackwater.cli.revisions import newest_switch
from slackwater.client import (
    NotVisibleError,
    PipelineOutput,
    ReadLevel,
    StateNotKeptError,
    ViewSnapshot,
    VisibleCommit,
    end_lease,
    find_lease,
    open_leases,
    read_views,
    renew_lease,
    take_lease,
    wait_visible,
)
from slackwater.client.snapshot import newest_common, repeated, views_by_output
from slackwater.command.invocation import (
    kafka_settings,
    lsn_of,
    setting,
    timeout_option,
)
from slackwater.command.output import Output, aligned, json_option, utc
from slackwater.control import LeaseStanding, LeaseState, lease_standings
from slackwater.cuts import LeaseLog
from slackwater.protocol import CommitPosition, InputError, Lease, SystemClock, commit_id, epoch_ms
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # only queries need it
    from duckdb import DuckDBPyConnection


@settings_command()
@pipelines_to_read
@click.option("--views", metavar="NAME,…", help="Views, or output topics or tables.  [default: all]")
@click.option("--lsn", metavar="LSN", help="Read as of this commit: 0/153D218, or a decimal number.")
@click.option(
    "--switched",
    is_flag=True,
    help="Read the revision of each --pipeline NAME (without revision) that readers are switched to.",
)
@click.option(
    "--level",
    type=click.Choice([level.value for level in ReadLevel]),
    default=ReadLevel.COMMITTED.value,
    show_default=True,
    help="committed: everything as of one commit; uncommitted: each pipeline at its newest commit; "
    "repeatable: as of one commit that stays readable, see --for.",
)
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="With --level repeatable: how long the commit stays readable. Takes a lease.",
)
@click.option(
    "--lease", "lease_id", metavar="ID", help="Read as of the commit of this lease; see `slackwater lease`."
)
@click.option(
    "--key",
    "keys",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only the document with this key; repeat for each column of the key.",
)
@click.option(
    "--sql", metavar="SELECT", help="Show the rows of this query over the views, which DuckDB evaluates."
)
@timeout_option(30, "Seconds to look for a commit that all pipelines show.")
@json_option("one JSON object with the unmodified documents")
def read(  # noqa: PLR0913 - click hands over each option by its name
    settings: Settings,
    folders: tuple[Path, ...],
    names: tuple[str, ...],
    kind: str,
    source: str | None,
    views: str | None,
    lsn: str | None,
    switched: bool,
    level: str,
    seconds: float,
    lease_id: str | None,
    keys: tuple[str, ...],
    sql: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Show views as of one commit: documents of one pipeline, or of several of one source.

    All documents show the same commit of the database, whether the outputs are topics, tables in PostgreSQL
    or tables in a lake, and even if some of the pipelines read the output of others. With --lsn, you choose
    the commit; the outputs must still keep its state. Otherwise it is the newest commit at which all of the
    pipelines can be read. A pipeline that is behind delays only reads of its own views, and is named in the
    message. With --level uncommitted, the command waits for nothing: it shows each pipeline at a commit of
    its own, and reports these commits. With --level repeatable, the pipelines keep the state, so that you can
    read it again later with --lease and the id in the answer. Each document is one line of JSON. Documents
    that need a schema registry are shown as their bytes in base64.

    \b
    Examples:
      slackwater read pipelines/orders --bootstrap localhost:9092
      slackwater read pipelines/orders --views orders_with_lines --key id=17
      slackwater read pipelines/shop pipelines/shop_tables --lsn 0/153D218 --json
      slackwater read --pipeline shop_lake --kind delta --views shop_views.order_details
      slackwater read pipelines/orders pipelines/stock --level uncommitted
      slackwater read pipelines/orders pipelines/stock --level repeatable --for 3600
      slackwater read --source inv --level repeatable --for 3600       all that derive from a database
      slackwater read pipelines/stock --lease 4f0c2a91d3e7
      slackwater read pipelines/orders pipelines/stock --lease 4f0c2a91d3e7 --sql 'SELECT … FROM …'
      slackwater read --pipeline shop --switched               the revision that readers are switched to

    \b
    With --sql, a view is named by its name in the output in double quotes, or by the last part of that name.
    Each row is a line of JSON, and they are shown as they are computed. docs/reading.md has examples.

    \b
    A value of --key that looks like a number, true, false or null is read as such, and all others as text.
    Put text that looks like a number in quotes: --key 'code="17"'.

    \b
    Exit codes:
      0  shown      1  failed, or that state is no longer kept
      2  wrong usage or settings      3  the commit is not visible yet (see `slackwater wait`)

    The locations of outputs are postgres.output_url for PostgreSQL, and delta.location and iceberg.catalog
    for lakes (see `slackwater config`). docs/reading.md describes what the levels promise.
    """
    _check_options(lsn, lease_id, ReadLevel(level))
    if sql is not None and (views or keys or level == ReadLevel.UNCOMMITTED):
        hint = "omit --views, --key and --level uncommitted: the query says what it reads, as of one commit"
        raise CommandConfigError("--sql was combined with another choice of documents", hint)
    at = None if lsn is None else CommitPosition(settings.timeline, lsn_of(lsn, "--lsn"))
    key = parse_key(keys)
    pipelines = pipelines_of(settings, folders, names, kind, source)
    if switched:
        pipelines = [_switched(settings, each) for each in pipelines]
    _check_scope(pipelines)
    wanted = names_in_outputs(views.split(",") if views else [], pipelines)
    if switched and not wanted:
        wanted = [name for each in pipelines for name in each.views.values()]
    with open_outputs(settings, pipelines) as outputs:
        limit = timedelta(seconds=timeout)
        lease = None
        if lease_id is not None or level == ReadLevel.REPEATABLE:
            with _leases(settings) as log:
                lease = (
                    take_lease(
                        log,
                        outputs,
                        wanted,
                        duration=timedelta(seconds=seconds),
                        holder=f"{getuser()} on {socket.gethostname()}",
                        timeout=limit,
                    )
                    if lease_id is None
                    else find_lease(log, lease_id, epoch_ms(SystemClock().now())).lease
                )
        if sql is not None:
            _show_query(outputs, sql, lease or at, limit, as_json=as_json)
            return
        found = read_views(outputs, wanted, at=lease or at, level=ReadLevel(level), key=key, timeout=limit)
    if as_json:
        click.echo(snapshot_json(found, lease))
    else:
        show_snapshot(Output(), found, lease)


def _check_options(lsn: str | None, lease_id: str | None, level: ReadLevel) -> None:
    if lsn is not None and lease_id is not None:
        problem = "only one of --lsn and --lease can be given"
        raise CommandConfigError(problem, "each of them determines the commit")
    if level is ReadLevel.UNCOMMITTED and (lsn is not None or lease_id is not None):
        problem = "with --lsn or --lease all views are read as of that commit"
        raise CommandConfigError(problem, f"omit --level {level}")
    if level is ReadLevel.REPEATABLE and lsn is not None:
        problem = "--level repeatable takes a lease on the newest common commit, not on --lsn"
        raise CommandConfigError(problem, "omit one of the two: earlier states cannot be leased")


def _switched(settings: Settings, pipeline: NamedPipeline) -> NamedPipeline:
    """Returns the revision of a pipeline that readers were switched to."""
    if pipeline.views or pipeline.kind == "postgres":
        raise CommandConfigError(
            f"--switched cannot be used for {pipeline.name!r}",
            "use it for topics and lakes, with --pipeline NAME; in PostgreSQL, readers query their views",
        )
    found = newest_switch(settings, pipeline.name, pipeline.kind)
    if found is None:
        raise InputError(
            f"readers of pipeline {pipeline.name!r} have not been switched to a revision yet",
            f"do this once: slackwater revise switch {pipeline.name} --to 1",
        )
    return replace(pipeline, name=found.pipeline, views=found.views)


def _check_scope(pipelines: Sequence[NamedPipeline]) -> None:
    for each in pipelines:
        if not each.is_of_one_commit:
            raise InputError(
                f'pipeline {each.name!r} has scope "aggregate": each document shows a commit of its own',
                "there is no commit that all of them show; see docs/views.md#scope",
            )


def parse_key(texts: Sequence[str]) -> dict[str, Any] | None:
    """Reads the columns of a key; None: none were given.

    Raises:
        CommandConfigError: One is not COLUMN=VALUE.
    """
    key: dict[str, Any] = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not column or not equals or column in key:
            raise CommandConfigError(f"got --key {text!r}", "expected COLUMN=VALUE, each column once")
        try:
            key[column] = json.loads(value)
        except ValueError:
            key[column] = value
    return key or None


_ROWS = 1_000
"""The number of rows that are fetched at a time."""


def _show_query(
    outputs: Sequence[PipelineOutput],
    sql: str,
    at: CommitPosition | Lease | None,
    timeout: timedelta,
    *,
    as_json: bool,
) -> None:
    """Shows the rows of a query over views as of one commit, while they are computed."""
    import duckdb  # only here is it needed to read

    from slackwater.api import open_views
    from slackwater.api.queries import short_name

    known = [view for each in outputs for view in each.views()]
    names = {view: f"{re.escape(view)}|{re.escape(short_name(view))}" for view in known}
    wanted = [view for view in known if re.search(rf"(?i)(?<!\w)({names[view]})(?!\w)", sql)]
    hint = f"the views are {', '.join(known)}; docs/reading.md says how SQL names them"
    if not wanted:
        raise InputError("the query names no view of these pipelines", hint)
    if at is None:
        look = partial(newest_common, views_by_output(outputs, wanted))
        at = repeated(look, timeout, None, (StateNotKeptError,)).position
    lease = at if isinstance(at, Lease) else None
    with open_views(outputs, wanted, at=at) as database:
        seen = outputs[0].newest()
        found = ViewSnapshot(seen.source if seen else "", at.position if isinstance(at, Lease) else at, {})
        try:
            rows = _documents_of(database, sql)
            if not as_json:
                show_snapshot(Output(), found, lease)
                for row in rows:
                    click.echo(row)
                return
            click.echo(f'{json.dumps(_head(found, lease))[:-1]}, "rows": [', nl=False)
            for number, row in enumerate(rows):
                click.echo(f"{', ' if number else ''}{row}", nl=False)
            click.echo("]}")
        except (duckdb.Error, TypeError) as error:
            raise InputError(f"the query cannot be evaluated: {error}", hint) from error


def _documents_of(database: "DuckDBPyConnection", query: str) -> Iterator[str]:
    """Yields the rows of a query as documents, in the form that they have in topics."""
    from slackwater.sql.duckdb_sql import Field, document_text

    found = database.sql(query)
    names = [f"c{number}" for number in range(len(found.columns))]
    fields = tuple(Field(*each) for each in zip(found.columns, names, found.types, strict=True))
    rows_of_query = f"({query.rstrip().rstrip(';')}\n) AS q({', '.join(names)})"
    rows = database.execute(f"SELECT {document_text(fields)} FROM {rows_of_query}")  # noqa: S608 - of the user
    while batch := rows.fetchmany(_ROWS):
        yield from (row for (row,) in batch)


def snapshot_json(snapshot: ViewSnapshot, lease: Lease | None = None) -> str:
    """Writes a snapshot as one object; documents keep their text, so that no number loses a digit.

    If it is not of one commit, ``ids`` names that of each view; ``lease`` is that by which it was read.
    """
    views = ", ".join(
        f"{json.dumps(view)}: [{', '.join(document_lines(documents))}]"
        for view, documents in snapshot.documents.items()
    )
    return f'{json.dumps(_head(snapshot, lease))[:-1]}, "views": {{{views}}}}}'


def _head(snapshot: ViewSnapshot, lease: Lease | None) -> dict[str, Any]:
    at = snapshot.position
    head: dict[str, Any] = {
        "source": snapshot.source,
        "id": commit_id(at.timeline, at.lsn),
        "timeline": at.timeline,
        "commit_lsn": at.lsn,
    }
    if not snapshot.is_consistent:
        head["ids"] = {view: commit_id(each.timeline, each.lsn) for view, each in snapshot.positions.items()}
    if lease is not None:
        head["lease"] = {"id": lease.id, "expires_ms": lease.expires_ms}
    return head


def show_snapshot(output: Output, snapshot: ViewSnapshot, lease: Lease | None = None) -> None:
    """Prints a snapshot for people: what it is of, then each view with its documents."""
    at = snapshot.position
    label = "commit" if snapshot.is_consistent else "commits from"
    rows = [("source", snapshot.source), (label, f"{at} ({commit_id(at.timeline, at.lsn)})")]
    if lease is not None:
        rows.append(("lease", f"{lease.id}, until {utc(lease.expires_ms)}"))
    output.table(rows)
    for view, documents in snapshot.documents.items():
        output.line()
        its_own = "" if snapshot.is_consistent else f" at {snapshot.positions[view]}"
        output.line(f"{view}{its_own}: {len(documents):,} document{'' if len(documents) == 1 else 's'}")
        for line in document_lines(documents):
            click.echo(line)


def document_lines(documents: Sequence[bytes]) -> list[str]:
    """Returns documents as JSON, in an order that depends on them alone."""
    return [
        json.dumps(b64encode(document).decode()) if document.startswith(b"\0") else document.decode()
        for document in sorted(documents)
    ]


@settings_command()
@pipelines_to_read
@click.option("--lsn", metavar="LSN", required=True, help="The commit: 0/153D218, or a decimal number.")
@timeout_option(30, "Seconds to wait; 0 checks once.")
@json_option("one JSON object")
def wait(  # noqa: PLR0913 - click hands over each option by its name
    settings: Settings,
    folders: tuple[Path, ...],
    names: tuple[str, ...],
    kind: str,
    source: str | None,
    lsn: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Wait until everything up to a commit is visible in the outputs of pipelines.

    To read your own write, take the LSN directly after the commit, write a message without rows behind it,
    and wait for the LSN.

    \b
    Examples:
      lsn=$(psql -At -c 'SELECT pg_current_wal_lsn()' -c "SELECT FROM pg_logical_emit_message(true, 'x', '')")
      slackwater wait pipelines/orders --lsn "$lsn" --bootstrap localhost:9092
      slackwater wait pipelines/shop pipelines/shop_tables --lsn "$lsn" --timeout 5 --json
      slackwater wait --pipeline shop_lake --kind delta --lsn 0/153D218 --timeout 0

    That LSN may be slightly after the commit. The message is a later commit, without which the wait would not
    end in an idle database; it changes nothing, needs no rights, and views do not see it.

    \b
    Exit codes:
      0  visible      1  failed
      2  wrong usage or settings      3  not visible in time

    The locations of outputs are postgres.output_url for PostgreSQL, and delta.location and iceberg.catalog
    for lakes (see `slackwater config`). For details see docs/consumers.md.
    """
    at = CommitPosition(settings.timeline, lsn_of(lsn, "--lsn"))
    pipelines = pipelines_of(settings, folders, names, kind, source)
    with open_outputs(settings, pipelines) as outputs:
        late: NotVisibleError | None = None
        try:
            wait_visible(outputs, at, timeout=timedelta(seconds=timeout))
        except NotVisibleError as error:
            late = error
        shown = {each.pipeline: each.newest() for each in outputs}
        rows = answer_rows(at, shown, is_visible=late is None)
        Output().report(answer(at, shown, is_visible=late is None), aligned(rows), as_json=as_json)
        if late is not None:
            raise late


Shown = Mapping[str, VisibleCommit | None]
"""By pipeline the newest commit that is visible; None: nothing is."""


def answer(at: CommitPosition, shown: Shown, *, is_visible: bool) -> dict[str, object]:
    """Returns the answer for tools."""
    reached = {
        name: None if seen is None else commit_id(seen.position.timeline, seen.position.lsn)
        for name, seen in shown.items()
    }
    return {"visible": is_visible, "id": commit_id(at.timeline, at.lsn), "pipelines": reached}


def answer_rows(at: CommitPosition, shown: Shown, *, is_visible: bool) -> list[tuple[str, ...]]:
    """Writes the answer for people, then how far each pipeline is."""
    rows: list[tuple[str, ...]] = [(f"{'visible' if is_visible else 'not visible'}: {at}",)]
    for name, seen in shown.items():
        progress = "shows nothing yet" if seen is None else f"shows {seen.position}"
        behind = "" if seen is not None and seen.position >= at else "behind"
        rows.append((name, progress, behind))
    return rows


_BROKERS = setting("kafka.bootstrap", "The brokers of the pipelines.")


@settings_group()
def lease() -> None:
    """Show, renew and end leases, which keep views readable at one commit.

    `slackwater read --level repeatable` takes a lease on the newest commit at which all of its pipelines can
    be read. From then on, the pipelines keep that state until the lease expires or you end it here. This
    costs space: topics keep replaced documents, and lakes keep their snapshots.

    \b
    Examples:
      slackwater read pipelines/orders pipelines/stock --level repeatable --for 3600
      slackwater lease list --bootstrap localhost:9092
      slackwater read pipelines/orders --lease 4f0c2a91d3e7
      slackwater lease renew 4f0c2a91d3e7 --for 3600
      slackwater lease end 4f0c2a91d3e7

    For details see docs/reading.md.
    """


@lease.command("list")
@_BROKERS
@json_option("one JSON array")
def list_leases(settings: Settings, as_json: bool) -> None:
    """List the active leases in the order in which they expire.

    \b
      held     all of its pipelines keep their views readable at the commit
      taken    at least one of them has not answered yet; only running pipelines answer
      refused  at least one of them does not keep that state

    \b
    Examples:
      slackwater lease list --bootstrap localhost:9092
      slackwater lease list --json | jq -r '.[] | [.lease.id, .lease.holder] | @tsv'
    """
    now_ms = epoch_ms(SystemClock().now())
    with _leases(settings) as log:
        known = [each for each in lease_standings(log.read(), now_ms) if each.state is not LeaseState.OVER]
    Output().report(known, lease_lines(known, now_ms), as_json=as_json)


@lease.command()
@_BROKERS
@click.argument("lease_id", metavar="ID")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=1),
    required=True,
    help="Seconds from now until the lease expires.",
    metavar="SECONDS",
)
def renew(settings: Settings, lease_id: str, seconds: float) -> None:
    """Change the time at which a lease expires.

    Waits until its pipelines have agreed. If one of them does not agree, the lease is unchanged.

    \b
    Example:
      slackwater lease renew 4f0c2a91d3e7 --for 3600
    """
    with _leases(settings) as log:
        found = renew_lease(log, lease_id, duration=timedelta(seconds=seconds))
    Output().line(f"lease {found.id} ends at {utc(found.expires_ms)}")


@lease.command()
@_BROKERS
@click.argument("lease_id", metavar="ID")
def end(settings: Settings, lease_id: str) -> None:
    """End a lease now, even if it is somebody else's: its readers find that the state is no longer kept.

    \b
    Example:
      slackwater lease end 4f0c2a91d3e7
    """
    with _leases(settings) as log:
        if not end_lease(log, lease_id):
            hint = "`slackwater lease list` shows the active leases"
            raise InputError(f"there is no lease {lease_id!r}", hint)
    Output().line(f"ended: {lease_id}")


def _leases(settings: Settings) -> AbstractContextManager[LeaseLog]:
    return open_leases(kafka_settings(settings, "where leases are kept"))


def lease_lines(leases: list[LeaseStanding], now_ms: int) -> list[str]:
    """Writes a line per lease, below a heading; a second one for each pipeline that does not hold it."""
    if not leases:
        return ["no active leases; `slackwater read --level repeatable` takes one"]
    rows = [("lease", "state", "source", "commit", "ends in", "pipelines", "holder")]
    notes = []
    for each in leases:
        found = each.lease
        commit, left = commit_id(found.timeline, found.commit_lsn), (found.expires_ms - now_ms) / 1000
        kept = found.id, each.state, found.source, commit
        rows.append((*kept, f"{left:,.0f} s", ", ".join(found.pipelines), found.holder))
        notes += [f"{found.id}: {name} refuses it: {reason}" for name, reason in each.refusals.items()]
        notes += [f"{found.id}: {name} has not answered" for name in each.waits_for]
    return [*aligned(rows), *notes]
