"""``slackwater revise``."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from slackwater.cli.commands.pipeline import check_retirable, remove_pipeline
from slackwater.cli.given_pipelines import NamedPipeline, open_outputs
from slackwater.cli.main import settings_group
from slackwater.cli.pipelines import open_pipeline_log, read_registered, read_topology
from slackwater.cli.revisions import (
    Registered,
    RevisionPair,
    RevisionStatus,
    named_pipeline,
    readers_of,
    revision_status,
    switch_readers,
)
from slackwater.client import ComparedView, DocumentComparison, PipelineOutput, compare_views
from slackwater.command.invocation import setting, timeout_option
from slackwater.command.output import Output, aligned, json_option
from slackwater.control import PipelineState, Progress, Topology
from slackwater.protocol import CommitPosition, InputError, SystemClock, commit_id, epoch_ms
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings

_RATE_SECONDS = 3.0
"""The time over which it is measured how fast a revision catches up: runs report once a second."""
_RATE_PICTURES = 10
"""The number of looks, one a second, over which the speed of catching up is computed."""
_CAUGHT_UP_MS = 5_000
"""Revisions that are less behind are compared: the comparison waits for a common commit."""
_SHOWN = 200
"""Characters of a document that are shown to people."""

Compared = Mapping[str, tuple[CommitPosition, DocumentComparison]]
"""By view the commit and what was found."""


_BROKERS = setting("kafka.bootstrap", "The brokers of the pipelines.")
_KEYS = click.option(
    "--key",
    "keys",
    metavar="VIEW=COLUMN,…",
    multiple=True,
    help="Columns that identify the documents of a view; without them, whole documents are counted.",
)


@settings_group()
def revise() -> None:
    """Compare two revisions of a pipeline, and switch readers from one to the other.

    When the views of a pipeline change, you build the pipeline again beside the old one: set `revision = 2`
    in pipeline.toml and start `slackwater run`. Both revisions publish at the commits of the same source, so
    you can compare them commit by commit before any reader moves. Readers of topics, of tables in PostgreSQL
    and of lakes then move at one commit, and can move back just as easily.

    \b
    Typical sequence:
      slackwater revise switch shop --to 1                 once, before there is a second revision
      slackwater run pipelines/shop --checkpoint …         with revision = 2; leave revision 1 running
      slackwater revise rollout shop --to 2                waits for it, compares, and switches
      slackwater revise switch shop --to 1                 switches back
      slackwater revise retire shop --revision 1           when nobody will need to switch back

    For details see docs/revisions.md.
    """


@revise.command()
@_BROKERS
@click.argument("pipeline", metavar="NAME")
@click.option("--revisions", metavar="OLD,NEW", help="The revisions to compare.  [default: the two newest]")
@click.option("--views", metavar="NAME,…", help="Only these views.  [default: all that both have]")
@_KEYS
@timeout_option(30, "Seconds to look for a commit that both show.")
@json_option("one JSON object")
def compare(
    settings: Settings,
    pipeline: str,
    revisions: str | None,
    views: str | None,
    keys: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Count the differences between two revisions of a pipeline, each view as of one commit.

    NAME is the name without the revision. The revisions have registered themselves in Kafka, with their views
    and outputs. Views that only one of them has are listed. Each view is read from both revisions at the
    newest commit at which both can be read, even while they run, and the answer contains the commit. The
    order of columns and the spelling of numbers are ignored. Nothing is changed.

    \b
    Examples:
      slackwater revise compare orders --bootstrap localhost:9092
      slackwater revise compare shop --key order_details=id --key product_sales=product
      slackwater revise compare shop --revisions 1,3 --views order_details --json

    \b
    Exit codes:
      0  no document differs      1  some documents differ, or failed
      2  wrong usage or settings      3  one of the revisions does not show anything yet

    The locations of outputs are postgres.output_url for PostgreSQL, and delta.location and iceberg.catalog
    for lakes (see `slackwater config`).
    """
    numbers, columns = parse_revisions(revisions), parse_keys(keys)
    pair = read_registered(settings).pair(pipeline, numbers)
    wanted = _wanted(pair, views.split(",") if views else [*pair.views], columns)
    output, limit = Output(), timedelta(seconds=timeout)
    found = _compared(settings, pair, wanted, columns, limit, None if as_json else output)
    output.report(_comparison(pair, found), _comparison_lines(pair, found), as_json=as_json)
    return 0 if all(each.is_equal for _, each in found.values()) else 1


@revise.command()
@_BROKERS
@click.argument("pipelines", metavar="NAME...", nargs=-1, required=True)
@click.option("--to", "revision", type=click.IntRange(min=1), required=True, help="The revision to read.")
@click.option("--schema", help="For tables in PostgreSQL: schema of the readers' views; created if missing.")
@click.option("--accept-earlier", is_flag=True, help="Switch even to a revision that is behind.")
@timeout_option(30, "Seconds to wait for the revision to catch up, and for readers within a transaction.")
def switch(
    settings: Settings,
    pipelines: tuple[str, ...],
    revision: int,
    schema: str | None,
    accept_earlier: bool,
    timeout: float,
) -> None:
    """Switch the readers of a pipeline to another revision, from one commit on.

    \b
    Readers of tables in PostgreSQL use views in a separate schema instead of the tables. The switch replaces
      all of these views in one transaction.
    Readers of topics use the name of the pipeline (PipelineViews of the Python client). The switch is one
      record. Each reader finishes reading up to that commit, and continues after it in the other topics.
    Readers of a lake look up the tables to read in a table with a single row. The switch replaces this row.
    Readers of search indexes use the aliases NAME.<view>. The switch moves them in one request.

    The switch waits until the new revision has caught up with the one that is read, so that readers do not go
    back in time, and is refused if it does not catch up in time. The first switch determines which revision
    is read. If the command is killed, the switch has either happened or not, and it is safe to repeat it.
    Several pipelines are switched one after the other, independently. If one is refused, those before it stay
    switched: run the command again.

    \b
    Examples:
      slackwater revise switch shop --to 1          before there is a second revision
      slackwater revise switch shop --to 2
      slackwater revise switch shop --to 1          switches back
      slackwater revise switch shop_tables --to 2 --schema reports
      slackwater revise switch orders totals --to 2                 a chain of pipelines
      slackwater revise switch shop --to 1 --accept-earlier         revision 1 has stopped

    \b
    Exit codes:
      0  switched      1  failed, and that pipeline was not switched
      2  wrong usage or settings      3  the revision is behind, and was not switched to

    The locations are postgres.output_url for PostgreSQL, delta.location and iceberg.catalog for lakes, and
    opensearch.url for indexes. The PostgreSQL user owns the views, and also needs CREATE on the database,
    SELECT on the tables and on slackwater.ledger_tables, and SELECT and UPDATE on slackwater.ledger. The user
    in Kafka needs Create, Write and Read on the topic NAME.slackwater.readers, and Write on the transactional
    id of that name.
    """
    settings, limit, output = settings, timedelta(seconds=timeout), Output()
    registered = read_registered(settings)
    wanted = {name: registered.revision(name, revision) for name in pipelines}
    for name, each in wanted.items():
        where, done = switch_readers(
            settings,
            registered,
            name,
            revision,
            schema,
            accept_earlier=accept_earlier,
            timeout=limit,
        )
        came_from = "" if done.before is None else f", before {done.before} at {done.left_at}"
        output.line(f"readers {where}: {each.pipeline} at {done.position}{came_from}")


@revise.command()
@_BROKERS
@click.argument("pipeline", metavar="NAME")
@json_option("one JSON object")
def status(settings: Settings, pipeline: str, as_json: bool) -> None:
    """Show the revisions of a pipeline: which ones run, how far behind they are, and which one is read.

    The time to catch up is estimated from the latest reports of the run, so it takes a few seconds to appear.

    \b
    Examples:
      slackwater revise status shop --bootstrap localhost:9092
      slackwater revise status shop --json
    """
    earlier = now = read_topology(settings)
    read = readers_of(settings, now, pipeline)
    if any(pipeline in node.base_names and node.behind_ms for node in now.pipelines):
        time.sleep(_RATE_SECONDS)
        now = read_topology(settings)
    found = revision_status(earlier, now, pipeline, read)
    Output().report({"pipeline": pipeline, "revisions": found}, status_lines(found), as_json=as_json)


@revise.command()
@_BROKERS
@click.argument("pipeline", metavar="NAME")
@click.option(
    "--revision", "number", type=click.IntRange(min=1), required=True, help="The revision to remove."
)
@click.option(
    "--keep-for",
    type=click.FloatRange(min=0),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="Refuse if its last run was seen less than this many seconds ago.",
)
@click.option("--yes", is_flag=True, help="Remove it; otherwise only show what would be removed.")
def retire(settings: Settings, pipeline: str, number: int, keep_for: float, yes: bool) -> None:
    """Remove a revision that is no longer read: its topics or tables, and its entry in the topology.

    NAME is the name without the revision. The command is refused while the revision runs, while readers are
    switched to it, until it has been silent for as long as --keep-for, and if it is the only revision.
    Readers that use its topics or tables directly cannot be detected, so you have to know whether there are
    any. This cannot be undone.

    Without --yes, nothing is removed. If the command is killed halfway, run it again: it continues with what
    is left. Lake tables, and checkpoints that cannot be reached from here, are listed, and you remove them
    yourself.

    \b
    Examples:
      slackwater revise retire shop --revision 1
      slackwater revise retire shop --revision 1 --keep-for 3600 --yes
    """
    now_ms = epoch_ms(SystemClock().now())
    with open_pipeline_log(settings) as log:
        revisions = Registered(log.read(), now_ms).revisions(pipeline)
        gone = check_retirable(revisions, number, now_ms, timedelta(seconds=keep_for)).registration
        if gone.base_name != pipeline:
            names = f"{gone.base_name}, {', '.join(gone.revision_of)}"
            raise InputError(
                f"{gone.pipeline!r} is this revision of several pipelines: {names}; nothing was removed",
                f"when readers of none of them need it: slackwater pipeline delete {gone.pipeline} --outputs",
            )
        remove_pipeline(settings, log, gone.pipeline, Output(), done="retired", yes=yes)


def status_lines(revisions: Sequence[RevisionStatus]) -> list[str]:
    """Writes the revisions of a pipeline for people: a line each."""
    head = ("revision", "pipeline", "state", "shows", "behind", "caught up in", "read by")
    rows = [head]
    for each in revisions:
        behind, left = _seconds(each.behind_ms), _seconds(each.caught_up_in_ms)
        named, read_by = (str(each.revision), each.pipeline, each.state), ", ".join(each.read_by)
        rows.append((*named, each.shows or "-", behind, left, read_by or "nobody"))
    return aligned(rows)


def _seconds(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"


@revise.command()
@_BROKERS
@click.argument("pipeline", metavar="NAME")
@click.option("--to", "revision", type=click.IntRange(min=2), required=True, help="The new revision.")
@click.option("--schema", help="For tables in PostgreSQL: schema of the readers' views.")
@_KEYS
@click.option("--yes", is_flag=True, help="Switch without asking even if documents differ.")
@timeout_option(60, "Seconds to look for a commit that both show, and to wait for the switch.")
def rollout(
    settings: Settings,
    pipeline: str,
    revision: int,
    schema: str | None,
    keys: tuple[str, ...],
    yes: bool,
    timeout: float,
) -> None:
    """Wait until a revision has caught up, compare it with the previous one, and switch readers to it.

    You run the new revision beside the old one, wherever your pipelines run, by starting `slackwater run`
    with `revision = N` in pipeline.toml. This command waits until it has registered and is at most 5 seconds
    behind its source, showing the estimated time. It then compares the revisions, and asks before it switches
    if documents differ. It stores nothing: if it is killed, run it again, and it continues from what it
    finds.

    \b
    Examples:
      slackwater revise rollout shop --to 2
      slackwater revise rollout shop --to 2 --key order_details=id --yes
      slackwater revise rollout shop_tables --to 2 --schema reports

    \b
    Exit codes:
      0  readers read the revision      1  documents differ and were not accepted, or failed
      2  wrong usage or settings      3  the revision is behind, and readers were not switched
    """
    columns, settings, output = parse_keys(keys), settings, Output()
    follow_catch_up(lambda: read_topology(settings), pipeline, revision, output, time.sleep)
    registered = read_registered(settings)
    older = max((n for n in registered.revisions(pipeline) if n < revision), default=None)
    if older is None:
        hint = (
            "there is no earlier revision to compare with; use: slackwater revise switch "
            f"{pipeline} --to {revision}"
        )
        raise InputError(f"pipeline {pipeline!r} has no revision before {revision}", hint)
    pair = registered.pair(pipeline, (older, revision))
    limit = timedelta(seconds=timeout)
    found = _compared(settings, pair, _wanted(pair, [*pair.views], columns), columns, limit, output)
    output.lines(_comparison_lines(pair, found))
    if not yes and not all(each.is_equal for _, each in found.values()):
        if not sys.stdin.isatty():
            hint = f"inspect them; to switch anyway: slackwater revise switch {pipeline} --to {revision}"
            raise InputError(f"documents of {pair.new.pipeline} differ; readers were not switched", hint)
        click.confirm(f"documents differ; switch readers to {pair.new.pipeline} anyway?", abort=True)
    options = [f"--schema {schema}"] if schema else []
    given = {"revision": revision, "schema": schema, "accept_earlier": False, "timeout": timeout}
    click.get_current_context().invoke(switch, settings=settings, pipelines=(pipeline,), **given)
    back = " ".join(["slackwater revise switch", pipeline, f"--to {older}", *options])
    output.line(f"to switch back, keep {pair.old.pipeline} running and use: {back}")


def follow_catch_up(
    look: Callable[[], Topology],
    pipeline: str,
    revision: int,
    output: Output,
    wait: Callable[[float], object],
) -> None:
    """Waits until a revision of a pipeline has caught up, and says when that will be.

    Raises:
        InputError: There is no such pipeline, or the revision has failed.
    """
    pictures: deque[Topology] = deque(maxlen=_RATE_PICTURES)
    while True:
        pictures.append(look())
        known = {e.revision: e for e in revision_status(pictures[0], pictures[-1], pipeline, {})}
        found = known.get(revision)
        if found is None:
            output.progress(f"waiting until {pipeline} runs with revision = {revision}")
        elif found.state is PipelineState.FAILED:
            raise InputError(
                f"pipeline {found.pipeline!r} is not running: {found.state}",
                "`slackwater topology` shows why; start it, and run this command again",
            )
        elif found.state is not PipelineState.RUNNING:
            output.progress(f"waiting until {found.pipeline} is started again: its state is {found.state}")
        elif found.progress is Progress.UP_TO_DATE or (
            found.behind_ms is not None and found.behind_ms <= _CAUGHT_UP_MS
        ):
            output.end_progress()
            return
        else:
            behind, left = _seconds(found.behind_ms), _seconds(found.caught_up_in_ms)
            output.progress(f"{found.pipeline} is {behind} behind and will catch up in about {left}")
        wait(1)


def _compared(
    settings: Settings,
    pair: RevisionPair,
    views: Sequence[str],
    keys: Mapping[str, Sequence[str]],
    limit: timedelta,
    output: Output | None,
) -> Compared:
    """Compares views of two revisions; shows what it does, where it may."""
    both, found = [named_pipeline(each) for each in (pair.old, pair.new)], {}
    with open_outputs(settings, both) as opened:
        for view in views:
            if output is not None:
                output.progress(f"reading {view} from {both[0].name} and {both[1].name}")
            old, new = _sides(pair, view, both, opened)
            key, source = keys.get(view, ()), pair.first_source
            found[view] = compare_views(old, new, key, source=source, timeout=limit)
    if output is not None:
        output.end_progress()
    return found


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
            raise InputError(
                f"view {view!r} is not in both {pair.old.pipeline} and {pair.new.pipeline}",
                f"both have {', '.join(pair.views) or 'no view'}",
            )
    if not views:
        raise InputError(
            f"{pair.old.pipeline} and {pair.new.pipeline} have no view in common",
            "there is nothing to compare",
        )
    return list(dict.fromkeys(views))


def _sides(
    pair: RevisionPair, view: str, named: Sequence[NamedPipeline], outputs: Sequence[PipelineOutput]
) -> tuple[ComparedView, ComparedView]:
    old, new = (
        ComparedView(output, pipeline.views[view], is_change_event=each.format == "debezium")
        for output, pipeline, each in zip(outputs, named, pair.of_view(view), strict=True)
    )
    return old, new


def _comparison(pair: RevisionPair, found: Compared) -> dict[str, Any]:
    """Returns a comparison for programs; documents of examples are texts."""
    return {
        "old": pair.old.pipeline,
        "new": pair.new.pipeline,
        "source": pair.first_source,
        "is_equal": all(each.is_equal for _, each in found.values()),
        "views_of_one": pair.views_of_one,
        "views": {view: _view(at, each) for view, (at, each) in found.items()},
    }


def _view(at: CommitPosition, found: DocumentComparison) -> dict[str, Any]:
    examples = [{"old": _text(each.old), "new": _text(each.new)} for each in found.examples]
    counts = {name: getattr(found, name) for name in ("equal", "different", "only_old", "only_new")}
    commit = {"id": commit_id(at.timeline, at.lsn), "timeline": at.timeline, "commit_lsn": at.lsn}
    return {**commit, **counts, "columns": found.columns, "examples": examples}


def _comparison_lines(pair: RevisionPair, found: Compared) -> Iterator[str]:
    """Writes a comparison for people: a line per view, then columns and examples of those that differ."""
    old, new = pair.old.pipeline, pair.new.pipeline
    rows: list[Sequence[str]] = [("view", "commit", "equal", "different", f"only {old}", f"only {new}")]
    for view, (at, each) in found.items():
        counts = (each.equal, each.different, each.only_old, each.only_new)
        rows.append((view, str(at), *(f"{n:,}" for n in counts)))
    yield from aligned(rows)
    if pair.views_of_one:
        yield f"views of one revision only: {', '.join(pair.views_of_one)}"
    for view, (_, each) in found.items():
        if each.is_equal:
            continue
        yield ""
        columns = ", ".join(f"{name} {count:,}" for name, count in each.columns.items())
        yield f"{view}: documents that differ by column: {columns}" if columns else f"{view}:"
        for example in each.examples:
            sides = ((old, _text(example.old)), (new, _text(example.new)))
            yield from aligned(("", name, text[:_SHOWN]) for name, text in sides if text is not None)


def _text(document: bytes | None) -> str | None:
    return None if document is None else document.decode()
