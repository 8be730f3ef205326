"""``slackwater revise``."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from slackwater.conversion import kafka_settings
from slackwater.errors import CommandConfigError, CommandInputError, CommandTimeoutError
from slackwater.invocation import setting, start_command
from slackwater.output import Output
from slackwater.pipeline_outputs import open_outputs, tables_url
from slackwater.pipelines import open_pipeline_log
from slackwater.revisions import RevisionPair, name_in_output, named_pipeline, revision_pair
from slackwater_client import (
    ComparedView,
    Difference,
    DocumentComparison,
    NotVisibleError,
    PipelineOutput,
    compare_views,
)
from slackwater_protocol import CommitPosition, SystemClock, commit_id, epoch_ms

_SHOWN = 200
"""Characters of a document that are shown to people."""

Compared = Mapping[str, tuple[CommitPosition, DocumentComparison]]
"""By view the commit and what was found."""


@click.group()
def revise() -> None:
    """Compare two revisions of a pipeline, and switch readers from one to the other.

    A pipeline whose views change is built anew beside the old one: `revision = 2` in pipeline.toml, and
    `slackwater run` again. Both publish at the commits of the same source, so what they say can be compared
    commit by commit before any reader moves. Readers of tables in PostgreSQL then move in one transaction,
    and back as easily.

    \b
    The way:
      slackwater run pipelines/shop --checkpoint …         with revision = 2; leave revision 1 running
      slackwater topology                                  until shop.v2 is no longer behind
      slackwater revise compare shop
      slackwater revise switch shop --to 2 --schema reports
      slackwater revise switch shop --to 1 --schema reports        takes it back

    Read on in docs/revisions.md.
    """


@revise.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@click.argument("pipeline", metavar="NAME")
@click.option("--revisions", metavar="OLD,NEW", help="Which two.  [default: the two newest]")
@click.option("--views", metavar="NAME,…", help="Only these.  [default: all that both have]")
@click.option(
    "--key",
    "keys",
    metavar="VIEW=COLUMN,…",
    multiple=True,
    help="The columns that tell documents of a view apart; without, whole documents are counted.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to look for a commit that both show.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
@click.pass_context
def compare(
    ctx: click.Context,
    pipeline: str,
    revisions: str | None,
    views: str | None,
    keys: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Count what differs between two revisions of a pipeline, each view as of one commit.

    NAME is without the revision. The revisions have registered themselves in Kafka, with their views and
    outputs; views that only one of them has are listed. Each view is read from both at the newest commit at
    which both can be read, also while they go on; the answer names the commit. The order of columns and the
    spelling of numbers do not count. Nothing is changed.

    \b
    Examples:
      slackwater revise compare orders --bootstrap localhost:9092
      slackwater revise compare shop --key order_details=id --key product_sales=product
      slackwater revise compare shop --revisions 1,3 --views order_details --json

    \b
    Exit codes:
      0  no document differs      1  some do, or failed
      2  wrong usage or settings      3  nothing is visible yet in one of them

    Outputs in PostgreSQL are found by postgres.output_url, those in lakes by delta.location and
    iceberg.catalog, see `slackwater config`.
    """
    numbers, columns = parse_revisions(revisions), parse_keys(keys)
    settings = start_command(ctx)
    kafka = kafka_settings(settings, "where pipelines register")
    with open_pipeline_log(kafka) as log:
        pair = revision_pair(log.read(), epoch_ms(SystemClock().now()), pipeline, numbers)
    wanted = _wanted(pair, views.split(",") if views else [*pair.views], columns)
    both = [named_pipeline(each) for each in (pair.old, pair.new)]
    output, found = Output(), {}
    with open_outputs(settings, both) as opened:
        for view in wanted:
            if not as_json:
                output.progress(f"reading {view} from {both[0].name} and {both[1].name}")
            sides = _sides(pair, view, opened)
            limit = timedelta(seconds=timeout)
            found[view] = compare_views(*sides, columns.get(view, ()), timeout=limit)
    output.end_progress()
    if as_json:
        click.echo(comparison_json(pair, found))
    else:
        show_comparison(output, pair, found)
    return 0 if all(each.is_equal for _, each in found.values()) else 1


@revise.command()
@click.argument("pipeline", metavar="NAME")
@click.option("--to", "revision", type=click.IntRange(min=1), required=True, help="The revision to be read.")
@click.option("--schema", required=True, help="Where the views of readers are; made if missing.")
@click.option("--accept-earlier", is_flag=True, help="Also to a revision that is behind: readers go back.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to wait for the revision to catch up, and for readers in a transaction.",
)
@click.pass_context
def switch(
    ctx: click.Context, pipeline: str, revision: int, schema: str, accept_earlier: bool, timeout: float
) -> None:
    """Let readers of tables in PostgreSQL read another revision, all of its views from one moment on.

    Readers use views in a schema of their own, in place of the tables: one per view of the pipeline, and
    slackwater_ledger, which says of which revision and of which commit they are. The switch replaces all of
    them in one transaction. It waits until the revision has come as far as the one that is read, so that
    readers do not go back, and is refused if it has not in time. The first switch makes the views. Killed at
    any moment, it has changed all or nothing; to do it again changes nothing. Grants on the views stay.

    \b
    Examples:
      slackwater revise switch shop_tables --to 1 --schema reports     before there is a second one
      slackwater revise switch shop_tables --to 2 --schema reports
      slackwater revise switch shop_tables --to 1 --schema reports --accept-earlier     revision 1 has stopped

    \b
    Exit codes:
      0  switched      1  failed, nothing was changed
      2  wrong usage or settings      3  the revision is behind, nothing was changed

    The database is that of postgres.output_url. Its user owns the views; besides, it needs CREATE on the
    database, SELECT on the tables and on slackwater.ledger_tables, SELECT and UPDATE on slackwater.ledger.
    """
    from slackwater_client.table_switch import switch_tables
    from slackwater_spark.pipeline.settings import revision_name

    name = revision_name(pipeline, revision)
    url, limit = tables_url(start_command(ctx), name), timedelta(seconds=timeout)
    try:
        done = switch_tables(url, schema, name, accept_earlier=accept_earlier, timeout=limit)
    except NotVisibleError as error:
        raise CommandTimeoutError(error.problem, error.hint) from error
    came_from = "" if done.before is None else f", before {done.before} at {done.left_at}"
    Output().line(f"readers of schema {schema}: {name} at {done.position}{came_from}")


def parse_revisions(text: str | None) -> tuple[int, int] | None:
    """Reads OLD,NEW; raises CommandConfigError if it is not two numbers."""
    if text is None:
        return None
    numbers = text.split(",")
    if len(numbers) != 2 or not all(each.isdecimal() for each in numbers):
        raise CommandConfigError(f"got --revisions {text!r}", "expected two numbers: --revisions 1,2")
    return int(numbers[0]), int(numbers[1])


def parse_keys(texts: Sequence[str]) -> dict[str, list[str]]:
    """Reads the columns of each view's key; raises CommandConfigError if one is not VIEW=COLUMN,…."""
    found: dict[str, list[str]] = {}
    for text in texts:
        view, equals, columns = text.partition("=")
        if not view or not equals or not all(columns.split(",")) or view in found:
            raise CommandConfigError(f"got --key {text!r}", "expected VIEW=COLUMN,…, each view once")
        found[view] = columns.split(",")
    return found


def _wanted(pair: RevisionPair, views: Sequence[str], keys: Mapping[str, object]) -> Sequence[str]:
    for view in (*views, *keys):
        if view not in pair.views:
            raise CommandInputError(
                f"view {view!r} is not in both of {pair.old.pipeline} and {pair.new.pipeline}",
                f"both have {', '.join(pair.views) or 'no view'}",
            )
    if not views:
        raise CommandInputError(
            f"{pair.old.pipeline} and {pair.new.pipeline} have no view in common",
            "there is nothing to compare",
        )
    return list(dict.fromkeys(views))


def _sides(
    pair: RevisionPair, view: str, outputs: Sequence[PipelineOutput]
) -> tuple[ComparedView, ComparedView]:
    old, new = (
        ComparedView(output, name_in_output(each), is_change_event=each.format == "debezium")
        for output, each in zip(outputs, pair.of_view(view), strict=True)
    )
    return old, new


def comparison_json(pair: RevisionPair, found: Compared) -> str:
    """Writes a comparison as one object; documents of examples are texts."""
    views = {view: _view_json(at, each) for view, (at, each) in found.items()}
    is_equal = all(each.is_equal for _, each in found.values())
    head = {
        "old": pair.old.pipeline,
        "new": pair.new.pipeline,
        "source": pair.old.source,
        "is_equal": is_equal,
    }
    return json.dumps({**head, "views_of_one": list(pair.views_of_one), "views": views})


def _view_json(at: CommitPosition, found: DocumentComparison) -> dict[str, Any]:
    return {
        "id": commit_id(at.timeline, at.lsn),
        "timeline": at.timeline,
        "commit_lsn": at.lsn,
        "equal": found.equal,
        "different": found.different,
        "only_old": found.only_old,
        "only_new": found.only_new,
        "columns": dict(found.columns),
        "examples": [{"old": _text(each.old), "new": _text(each.new)} for each in found.examples],
    }


def show_comparison(output: Output, pair: RevisionPair, found: Compared) -> None:
    """Prints a comparison for people: a line per view, then columns and examples of those that differ."""
    old, new = pair.old.pipeline, pair.new.pipeline
    head = ("view", "commit", "equal", "different", f"only {old}", f"only {new}")
    rows = [
        (view, str(at), *(f"{n:,}" for n in (each.equal, each.different, each.only_old, each.only_new)))
        for view, (at, each) in found.items()
    ]
    output.table([head, *rows])
    if pair.views_of_one:
        output.line(f"views of one revision only: {', '.join(pair.views_of_one)}")
    for view, (_, each) in found.items():
        if each.is_equal:
            continue
        output.line()
        columns = ", ".join(f"{name} {count:,}" for name, count in each.columns.items())
        output.line(f"{view}: documents that differ by column: {columns}" if columns else f"{view}:")
        for example in each.examples:
            _show_example(output, old, new, example)


def _show_example(output: Output, old: str, new: str, example: Difference) -> None:
    sides = ((old, _text(example.old)), (new, _text(example.new)))
    output.table([("", name, text[:_SHOWN]) for name, text in sides if text is not None])


def _text(document: bytes | None) -> str | None:
    return None if document is None else document.decode()
