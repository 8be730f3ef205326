"""``slackwater read``."""

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from slackwater.errors import CommandConfigError, CommandInputError
from slackwater.invocation import start_command
from slackwater.output import Output
from slackwater.pipeline_outputs import (
    NamedPipeline,
    named_pipelines,
    names_in_outputs,
    open_outputs,
    pipelines_to_read,
)
from slackwater_client import ReadLevel, ViewSnapshot, read_views
from slackwater_protocol import CommitPosition, commit_id, parse_position


@click.command()
@pipelines_to_read
@click.option("--views", metavar="NAME,…", help="Views, or output topics or tables.  [default: all]")
@click.option("--lsn", metavar="LSN", help="As of this commit: 0/153D218, or as a number.")
@click.option("--latest", is_flag=True, help="As of the newest commit that all of them show; the default.")
@click.option(
    "--level",
    type=click.Choice([level.value for level in ReadLevel]),
    default=ReadLevel.COMMITTED.value,
    show_default=True,
    help="committed: all of one commit; uncommitted: each pipeline at its newest.",
)
@click.option(
    "--key",
    "keys",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only the document of this key; once for each column of it.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to look for a commit that several pipelines show.",
)
@click.option("--json", "as_json", is_flag=True, help="For tools: one object, documents as they are.")
@click.pass_context
def read(  # noqa: PLR0913 - click hands over each option by its name
    ctx: click.Context,
    folders: tuple[Path, ...],
    names: tuple[str, ...],
    kind: str,
    views: str | None,
    lsn: str | None,
    latest: bool,
    level: str,
    keys: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Show views as of one commit: documents of one pipeline, or of several of one source.

    All documents are of the same commit of the database, whether the outputs are topics, tables in
    PostgreSQL or tables in a lake. With --lsn that is the commit, as long as the outputs keep its state;
    else the newest one at which all of the pipelines can be read. One that is behind holds up only reads
    of its own views, and the message names it. With --level uncommitted nothing is waited for: each
    pipeline is shown at a commit of its own, and the answer says at which. Each document is a line of
    JSON; one that needs a schema registry is its bytes in base64.

    \b
    Examples:
      slackwater read pipelines/orders --bootstrap localhost:9092
      slackwater read pipelines/orders --views orders_with_lines --key id=17
      slackwater read pipelines/shop pipelines/shop_tables --lsn 0/153D218 --json
      slackwater read --pipeline shop_lake --kind delta --views shop_views.order_details
      slackwater read pipelines/orders pipelines/stock --level uncommitted

    \b
    A value of --key that looks like a number, true, false or null is one; everything else is a text.
    A text that looks like a number stands in quotes: --key 'code="17"'.

    \b
    Exit codes:
      0  shown      1  failed, or that state is not kept
      2  wrong usage or settings      3  the commit is not visible yet (see `slackwater wait`)

    Outputs in PostgreSQL are found by postgres.output_url, those in lakes by delta.location and
    iceberg.catalog, see `slackwater config`. docs/consumers.md says which states an output keeps.
    """
    if lsn is not None and latest:
        raise CommandConfigError("of --lsn and --latest one can be given", "")
    if lsn is not None and level == ReadLevel.UNCOMMITTED:
        raise CommandConfigError("with --lsn all views are of that commit", "leave --level uncommitted out")
    settings = start_command(ctx)
    at = None if lsn is None else CommitPosition(settings.timeline, parse_position(lsn))
    key = parse_key(keys)
    pipelines = named_pipelines(folders, names, kind)
    _check_scope(pipelines)
    wanted = names_in_outputs(views.split(",") if views else [], pipelines)
    with open_outputs(settings, pipelines) as outputs:
        limit = timedelta(seconds=timeout)
        found = read_views(outputs, wanted, at=at, level=ReadLevel(level), key=key, timeout=limit)
    if as_json:
        click.echo(snapshot_json(found))
    else:
        show_snapshot(Output(), found)


def _check_scope(pipelines: Sequence[NamedPipeline]) -> None:
    for each in pipelines:
        if not each.is_of_one_commit:
            raise CommandInputError(
                f'pipeline {each.name!r} has scope "aggregate": each document is of a commit of its own',
                "no commit shows them together; docs/scope.md says more",
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


def snapshot_json(snapshot: ViewSnapshot) -> str:
    """Writes a snapshot as one object; documents keep their text, so that no number loses a digit.

    If it is not of one commit, ``ids`` names that of each view.
    """
    at = snapshot.position
    head = {
        "source": snapshot.source,
        "id": commit_id(at.timeline, at.lsn),
        "timeline": at.timeline,
        "commit_lsn": at.lsn,
    }
    if not snapshot.is_consistent:
        head["ids"] = {view: commit_id(each.timeline, each.lsn) for view, each in snapshot.positions.items()}
    views = ", ".join(
        f"{json.dumps(view)}: [{', '.join(document_lines(documents))}]"
        for view, documents in snapshot.documents.items()
    )
    return f'{json.dumps(head)[:-1]}, "views": {{{views}}}}}'


def show_snapshot(output: Output, snapshot: ViewSnapshot) -> None:
    """Prints a snapshot for people: what it is of, then each view with its documents."""
    at = snapshot.position
    label = "commit" if snapshot.is_consistent else "commits from"
    output.table([("source", snapshot.source), (label, f"{at} ({commit_id(at.timeline, at.lsn)})")])
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
