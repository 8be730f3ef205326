"""``slackwater source``."""

import getpass
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from slackwater.cli.decisions import (
    Decision,
    Plan,
    decisions_in,
    plan_pass,
    plan_skip,
    plan_timeline,
    refusal_in,
)
from slackwater.cli.doctor.examination import Sources, examine, open_sources
from slackwater.command.invocation import YES, lsn_of, required, setting, start_command
from slackwater.command.options import options
from slackwater.command.output import Output, aligned, utc
from slackwater.control import known_pipelines
from slackwater.cuts import FrontierStatus, TopicUnavailableError
from slackwater.protocol import (
    PassDecision,
    PublishedCut,
    SkipDecision,
    epoch_ms,
    format_position,
)


@click.group()
def source() -> None:
    """Make a decision for a source: skip a transaction, begin a timeline, skip a damaged record.

    These are decisions that no sidecar may make by itself. `slackwater doctor` tells you when one is needed.
    Decisions are records in the source's cut log. Every sidecar applies them, within a second or when it
    starts, and every pipeline sees their effect. They cannot be undone.

    \b
    Example:
      slackwater source show --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379

    For details see the sections open-transaction, regressed and cut-log of docs/runbooks.md.
    """


_of_a_source = options(
    setting("source", "The connector's topic.prefix."),
    setting("kafka.bootstrap", "The brokers that Debezium writes to."),
    setting("redis.url", "redis://host:port, where the sidecar publishes."),
)
_decides = options(
    click.option("--reason", default="", metavar="TEXT", help="Stored with the decision."), YES
)


@source.command()
@_of_a_source
@click.pass_context
def show(ctx: click.Context) -> None:
    """Show the newest cut, the state and all decisions of a source.

    \b
    Example:
      slackwater source show --source inv --bootstrap localhost:9092 --redis-url redis://localhost:6379
    """
    with _opened(ctx) as sources:
        name = sources.topics.source
        status = sources.store.status(name)
        Output().lines(_show_lines(name, sources.log.newest(), status, decisions_in(sources.log)))


@source.command()
@_of_a_source
@click.option(
    "--to", "to_lsn", required=True, metavar="LSN", help="Commit LSN, such as 0/153D218, or decimal."
)
@_decides
@click.pass_context
def skip(ctx: click.Context, to_lsn: str, reason: str, yes: bool) -> None:
    """Skip all incomplete transactions up to a commit LSN.

    Use this for transactions whose rows will never arrive. `slackwater doctor` shows which ones and why. In
    every pipeline, rows of these transactions that were read become visible, and missing rows stay missing.
    The cut and the commit records of all pipelines list the skipped transactions.

    While the state is `misconfigured` it also says that all values up to that LSN are right, although the
    connector had a wrong setting: use it only if you know that.

    The command is refused if the LSN is above every END record that was read, if it is below a commit that
    was read while the connector had a wrong setting, or if no transaction is open up to that LSN and the
    state is not `misconfigured`.

    \b
    Example:
      slackwater source skip --source inv --to 0/153D218 --reason "rows dropped by a transform, ticket 17"
    """
    lsn = lsn_of(to_lsn, "--to")
    with _opened(ctx) as sources:
        plan = plan_skip(examine(sources), lsn, refusal_in(sources.log))
        _take(sources, plan, "Skip them?", reason=reason, yes=yes)


@source.command(name="new-timeline")
@_of_a_source
@click.option("--without-snapshot", is_flag=True, help="Proceed although no new snapshot was seen.")
@_decides
@click.pass_context
def new_timeline(ctx: click.Context, without_snapshot: bool, reason: str, yes: bool) -> None:
    """Begin a new timeline after LSNs went back: after a failover, a restore, a move to another database.

    The command is refused unless the state is `regressed`. The connector must have started a new snapshot
    after that point, because the data in the pipelines is that of the old database. If there is no new
    snapshot, use --without-snapshot, but only if both databases had the same content at that point.

    Prints what you have to do with the pipelines: they start over.

    \b
    Example:
      slackwater source new-timeline --source inv --reason "restored from backup of Monday"
    """
    with _opened(ctx) as sources:
        decided = decisions_in(sources.log)
        plan = plan_timeline(examine(sources), decided, without_snapshot=without_snapshot)
        begun = plan.decision.timeline
        _take(sources, plan, f"Begin timeline {begun}?", reason=reason, yes=yes)
        Output().lines(_pipeline_lines(sources.topics.source, begun, _registered(sources)))


@source.command(name="pass-record")
@_of_a_source
@click.option("--offset", required=True, type=int, metavar="N", help="Offset of the record in the cut log.")
@_decides
@click.pass_context
def pass_record(ctx: click.Context, offset: int, reason: str, yes: bool) -> None:
    """Skip a damaged record of the cut log. Its content is lost for all sidecars and pipelines.

    If the record was a cut, and no other cut lists its transactions, pipelines that have not read past it
    fail with an error that lists the missing commits. The command is refused if the record is readable.

    \b
    Example:
      slackwater source pass-record --source inv --offset 4711 --reason "written by hand, ticket 18"
    """
    with _opened(ctx) as sources:
        plan = plan_pass(sources.topics.source, sources.log, offset)
        _take(sources, plan, "Skip it?", reason=reason, yes=yes)


@contextmanager
def _opened(ctx: click.Context) -> Iterator[Sources]:
    settings = start_command(ctx)
    name = required(settings.source, "source", "which source")
    with open_sources(settings, name) as sources:
        yield sources


def _take(sources: Sources, plan: Plan[Decision], question: str, *, reason: str, yes: bool) -> None:
    """Says what a decision would do, and records it if the user agrees."""
    output = Output()
    output.lines(plan.lines)
    if not yes:
        click.confirm(question, abort=True)
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    (offset,) = sources.log.append_records([plan.taken(epoch_ms(sources.clock.now()), who, reason)])
    output.line(f"decided; recorded in the cut log at offset {offset}. Sidecars apply it within a second.")


def _show_lines(
    source: str, newest: PublishedCut | None, status: FrontierStatus | None, decided: Sequence[Decision]
) -> Iterator[str]:
    """Writes the newest cut, the state and the decisions of a source."""
    rows = [("source", source)]
    if status is not None:
        detail = f": {status.detail}" if status.detail else ""
        rows.append(("state", f"{status.state}{detail}"))
    if newest is None:
        rows.append(("newest cut", "none yet"))
    else:
        cut = newest.cut
        rows.append(("newest cut", f"{format_position(cut.lsn)} on timeline {cut.timeline}"))
        rows.append(("in the cut log", f"at offset {newest.log_offset}"))
    yield from aligned(rows)
    if not decided:
        yield "decisions: none"
        return
    yield ""
    table = [("decided", "by", "what", "reason")]
    yield from aligned(table + [(utc(d.wall_ms), d.decided_by, _what(d), d.reason or "-") for d in decided])


def _registered(sources: Sources) -> str:
    """Returns the names of the source's pipelines, for people."""
    try:
        found = known_pipelines(sources.pipelines.read(), epoch_ms(sources.clock.now()))
    except TopicUnavailableError as error:
        return f"not known: {error}"
    names = [p.registration.pipeline for p in found if p.registration.source == sources.topics.source]
    return ", ".join(names) or "none"


def _pipeline_lines(source: str, timeline: int, registered: str) -> Iterator[str]:
    """Writes what has to be done with the pipelines of a source."""
    yield f"Pipelines of {source} end at the last cut of the old timeline. For each of them:"
    yield "  1. stop it"
    yield f"  2. set timeline = {timeline} in slackwater.toml (or SLACKWATER_TIMELINE={timeline})"
    yield "  3. start it with a new --checkpoint, and a new output topic (a new revision) if readers must"
    yield "     not see documents of the old database until they are replaced"
    yield f"Registered: {registered}"


def _what(decision: Decision) -> str:
    if isinstance(decision, SkipDecision):
        return f"skip to {format_position(decision.to_lsn)} on timeline {decision.timeline}"
    if isinstance(decision, PassDecision):
        return f"read on past offset {decision.log_offset} of the cut log"
    return f"begin timeline {decision.timeline} at transaction offset {decision.transaction_offset}"
