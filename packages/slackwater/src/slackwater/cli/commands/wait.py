"""``slackwater wait``."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import click
import orjson

from slackwater.cli.pipeline_outputs import named_pipelines, open_outputs, pipelines_to_read
from slackwater.cli.pipelines import of_one_chain
from slackwater.client import NotVisibleError, VisibleCommit, wait_visible
from slackwater.command.conversion import lsn_of
from slackwater.command.invocation import start_command
from slackwater.command.output import Output
from slackwater.protocol import CommitPosition, commit_id


@click.command()
@pipelines_to_read
@click.option("--lsn", metavar="LSN", required=True, help="The commit: 0/153D218, or a decimal number.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to wait; 0 checks once.",
)
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object.")
@click.pass_context
def wait(
    ctx: click.Context,
    folders: tuple[Path, ...],
    names: tuple[str, ...],
    kind: str,
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
    settings = start_command(ctx)
    at = CommitPosition(settings.timeline, lsn_of(lsn, "--lsn"))
    pipelines = named_pipelines(folders, names, kind)
    with open_outputs(settings, pipelines) as outputs:
        late: NotVisibleError | None = None
        try:
            wait_visible(of_one_chain(settings, outputs), at, timeout=timedelta(seconds=timeout))
        except NotVisibleError as error:
            late = error
        shown = {each.pipeline: each.newest() for each in outputs}
        if as_json:
            click.echo(answer_json(at, shown, is_visible=late is None))
        else:
            Output().table(answer_rows(at, shown, is_visible=late is None))
        if late is not None:
            raise late


Shown = Mapping[str, VisibleCommit | None]
"""By pipeline the newest commit that is visible; None: nothing is."""


def answer_json(at: CommitPosition, shown: Shown, *, is_visible: bool) -> bytes:
    """Writes the answer as one object."""
    return orjson.dumps(
        {
            "visible": is_visible,
            "id": commit_id(at.timeline, at.lsn),
            "pipelines": {
                name: None if seen is None else commit_id(seen.position.timeline, seen.position.lsn)
                for name, seen in shown.items()
            },
        }
    )


def answer_rows(at: CommitPosition, shown: Shown, *, is_visible: bool) -> list[tuple[str, ...]]:
    """Writes the answer for people, then how far each pipeline is."""
    rows: list[tuple[str, ...]] = [(f"{'visible' if is_visible else 'not visible'}: {at}",)]
    for name, seen in shown.items():
        progress = "shows nothing yet" if seen is None else f"shows {seen.position}"
        behind = "" if seen is not None and seen.position >= at else "behind"
        rows.append((name, progress, behind))
    return rows
