"""``slackwater revise``."""

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from slackwater.conversion import kafka_settings
from slackwater.errors import CommandConfigError, CommandInputError, CommandTimeoutError
from slackwater.invocation import setting, start_command
from slackwater.output import Output
from slackwater.pipeline_outputs import KINDS, open_outputs
from slackwater.pipelines import open_pipeline_log, read_topology
from slackwater.readers import RevisionStatus, read_by, revision_status, switch_readers
from slackwater.revisions import (
    RevisionPair,
    name_in_output,
    named_pipeline,
    one_source,
    registered_revision,
    revision_pair,
)
from slackwater_client import (
    ComparedView,
    Difference,
    DocumentComparison,
    NotVisibleError,
    OfOneSource,
    PipelineOutput,
    compare_views,
)
from slackwater_protocol import CommitPosition, SystemClock, commit_id, epoch_ms

_RATE_SECONDS = 3.0
"""So long is it looked at how fast a revision catches up: runs report once a second."""
_PAUSE = threading.Event()
"""Is never set."""
_SHOWN = 200
"""Characters of a document that are shown to people."""

Compared = Mapping[str, tuple[CommitPosition, DocumentComparison]]
"""By view the commit and what was found."""


@click.group()
def revise() -> None:
    """Compare two revisions of a pipeline, and switch readers from one to the other.

    A pipeline whose views change is built anew beside the old one: `revision = 2` in pipeline.toml, and
    `slackwater run` again. Both publish at the commits of the same source, so what they say can be compared
    commit by commit before any reader moves. Readers of topics, of tables in PostgreSQL and of lakes then
    move at one commit, and back as easily.

    \b
    The way:
      slackwater revise switch shop --to 1                 once, before there is a second revision
      slackwater run pipelines/shop --checkpoint …         with revision = 2; leave revision 1 running
      slackwater revise status shop                        until shop.v2 is no longer behind
      slackwater revise compare shop
      slackwater revise switch shop --to 2
      slackwater revise switch shop --to 1                 takes it back

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
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@click.argument("pipelines", metavar="NAME...", nargs=-1, required=True)
@click.option("--to", "revision", type=click.IntRange(min=1), required=True, help="The revision to be read.")
@click.option("--schema", help="Of tables in PostgreSQL: where the views of readers are; made if missing.")
@click.option("--accept-earlier", is_flag=True, help="Also to a revision that is behind.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds to wait for the revision to catch up, and for readers in a transaction.",
)
@click.pass_context
def switch(
    ctx: click.Context,
    pipelines: tuple[str, ...],
    revision: int,
    schema: str | None,
    accept_earlier: bool,
    timeout: float,
) -> None:
    """Let readers read another revision of a pipeline, from one commit on.

    \b
    Readers of tables in PostgreSQL use views in a schema of their own, in place of the tables; the switch
      replaces all of them in one transaction.
    Readers of topics name the pipeline (PipelineViews of the Python client). The switch is one record; each
      reader finishes what it reads up to that commit, and goes on behind it in the other topics.
    Readers of a lake ask a table with one row which tables to read. The switch replaces the row.

    The switch waits until the revision has come as far as the one that is read, so that readers do not go
    back, and is refused if it has not in time. The first switch says which revision is read. Killed at any
    moment, it has happened or not; to do it again changes nothing. Several pipelines are switched one after
    the other, each by itself; when one is refused, the others before it stay switched: ask again.

    \b
    Examples:
      slackwater revise switch shop --to 1          before there is a second one
      slackwater revise switch shop --to 2
      slackwater revise switch shop --to 1          takes it back
      slackwater revise switch shop_tables --to 2 --schema reports
      slackwater revise switch orders totals --to 2                 a chain
      slackwater revise switch shop --to 1 --accept-earlier         revision 1 has stopped

    \b
    Exit codes:
      0  switched      1  failed, and that pipeline was not switched
      2  wrong usage or settings      3  the revision is behind, and was not switched to

    Tables are found by postgres.output_url, lakes by delta.location and iceberg.catalog. The user in
    PostgreSQL owns the views; besides, it needs CREATE on the database, SELECT on the tables and on
    slackwater.ledger_tables, SELECT and UPDATE on slackwater.ledger. The one in Kafka needs Create, Write
    and Read on the topic NAME.slackwater.readers, and Write on the transactional id of that name.
    """
    settings, limit, output = start_command(ctx), timedelta(seconds=timeout), Output()
    with open_pipeline_log(kafka_settings(settings, "where pipelines register")) as log:
        entries, now_ms = log.read(), epoch_ms(SystemClock().now())
    wanted = [registered_revision(entries, now_ms, name, revision) for name in pipelines]
    for each in wanted:
        try:
            where, done = switch_readers(
                settings,
                each,
                schema,
                accept_earlier=accept_earlier,
                source=one_source(entries, now_ms, each.base_name),
                timeout=limit,
            )
        except NotVisibleError as error:
            raise CommandTimeoutError(error.problem, error.hint) from error
        came_from = "" if done.before is None else f", before {done.before} at {done.left_at}"
        output.line(f"readers {where}: {each.pipeline} at {done.position}{came_from}")


@revise.command()
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of pipelines.")
@click.argument("pipeline", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
@click.pass_context
def status(ctx: click.Context, pipeline: str, as_json: bool) -> None:
    """Show the revisions of a pipeline: who runs, how far behind each is, and which one is read.

    The time to catch up is told from the newest reports of the run: it takes a few seconds to be known.

    \b
    Examples:
      slackwater revise status shop --bootstrap localhost:9092
      slackwater revise status shop --json
    """
    settings = start_command(ctx)
    kafka = kafka_settings(settings, "where pipelines register")
    earlier = now = read_topology(kafka, epoch_ms(SystemClock().now()))
    kinds = {v.kind for p in now.pipelines if p.base_name == pipeline for v in p.views if v.kind in KINDS}
    read: dict[str, str] = {}
    for kind in sorted(kinds):
        read.update(read_by(settings, pipeline, kind))
    if any(node.base_name == pipeline and node.behind_ms for node in now.pipelines):
        _PAUSE.wait(_RATE_SECONDS)
        now = read_topology(kafka, epoch_ms(SystemClock().now()))
    found = revision_status(earlier, now, pipeline, read)
    if as_json:
        click.echo(msgspec.json.encode({"pipeline": pipeline, "revisions": found}))
    else:
        show_status(Output(), found)


def show_status(output: Output, revisions: Sequence[RevisionStatus]) -> None:
    """Prints the revisions of a pipeline for people: a line each."""
    head = ("revision", "pipeline", "state", "shows", "behind", "caught up in", "read by")
    rows = [
        (
            str(each.revision),
            each.pipeline,
            str(each.state),
            each.shows or "-",
            _seconds(each.behind_ms),
            _seconds(each.caught_up_in_ms),
            ", ".join(each.read_by) or "nobody",
        )
        for each in revisions
    ]
    output.table([head, *rows])


def _seconds(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"


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
        ComparedView(
            OfOneSource(output, pair.first_source),
            name_in_output(each),
            is_change_event=each.format == "debezium",
        )
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
        "source": pair.first_source,
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
