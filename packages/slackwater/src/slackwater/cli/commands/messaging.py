"""``slackwater messaging``."""

from datetime import UTC, datetime, timedelta

import click
import orjson

from slackwater.cli.databases import POSTGRES_URL, connected
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import setting, start_command
from slackwater.command.output import Output
from slackwater.protocol import SystemClock
from slackwater.settings.errors import CommandConfigError
from slackwater_messaging import AuditReport, AuditWindow, audit_messages, id_finder

_SHOWN = 20
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def messaging() -> None:
    """Check that the messages of a service are in their topics.

    \b
    Example:
      slackwater messaging audit --since 1h --topic paid --id key \\
          --query "SELECT id, paid_at FROM payments WHERE paid_at >= %(start)s AND paid_at < %(end)s"

    For details see docs/messaging.md.
    """


class _Moment(click.ParamType[datetime | timedelta]):
    """A time in ISO 8601, or a duration that counts back from now."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        text = str(value)
        number, unit = text[:-1], text[-1:]
        if number.isascii() and number.isdigit() and unit in _UNITS:
            return timedelta(seconds=int(number) * _UNITS[unit])
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r}: expected a time like 2026-11-25T12:00Z, or a duration like 90s, 10m, 1h, 7d"
            )
        return found if found.tzinfo else found.replace(tzinfo=UTC)


@messaging.command()
@POSTGRES_URL
@setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of the topics.")
@click.option("--query", required=True, metavar="SQL", help="SELECT of id and commit time; see above.")
@click.option("--topic", "topics", multiple=True, required=True, help="Topic of the messages; repeatable.")
@click.option(
    "--id",
    "place",
    default="key",
    show_default=True,
    metavar="WHERE",
    help="Location of the id in a record: key, header:NAME, or value:FIELD of JSON.",
)
@click.option(
    "--since", type=_Moment(), default="1h", show_default=True, help="Start of the window: a time, or an age."
)
@click.option(
    "--until", type=_Moment(), default="1m", show_default=True, help="End of the window: a time, or an age."
)
@click.option(
    "--late-after",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Messages that arrive this long after their commit are late.",
)
@click.option("--json", "as_json", is_flag=True, help="For tools: one JSON object with all ids.")
@click.pass_context
def audit(  # noqa: PLR0913 - click hands over each option by its name
    ctx: click.Context,
    query: str,
    topics: tuple[str, ...],
    place: str,
    since: datetime | timedelta,
    until: datetime | timedelta,
    late_after: float,
    as_json: bool,
) -> None:
    """Compare what a database has committed with what its topics contain, over a window of time.

    Reports messages that were lost, repeated, published without their data (ghosts), or late. Changes
    nothing. If your way of sending can lose messages, you need this check. Otherwise it is optional.

    The query returns two columns, the id of each message and the time of its commit, for messages in the
    interval from %(start)s (inclusive) to %(end)s (exclusive). To allow for clock differences and long
    transactions, the interval is extended by ten minutes on both sides, and topics are read from ten minutes
    before the window. Records without an id are ignored.

    The exit code is 1 if a message is lost, repeated or a ghost.

    \b
    Examples:
      slackwater messaging audit --since 1h --topic paid \\
          --query "SELECT id, paid_at FROM payments WHERE paid_at >= %(start)s AND paid_at < %(end)s"
      slackwater messaging audit --since 2026-11-25T00:00Z --until 2026-11-26T00:00Z --topic orders \\
          --id value:order.id --json --query "$(cat committed-orders.sql)"
    """
    settings = start_command(ctx)
    now = SystemClock().now()
    window = AuditWindow(
        start=_moment(since, now), end=_moment(until, now), late_after=timedelta(seconds=late_after)
    )
    if window.start >= window.end:
        problem = f"the window ends before it starts: {window.start:%F %T} to {window.end:%F %T}"
        raise CommandConfigError(
            problem, "--since has to be before --until; both have defaults relative to now"
        )
    kafka, output = kafka_settings(settings, "where the messages go"), Output()
    with connected(settings, "whose messages to compare", "asking for messages") as database:
        report = audit_messages(
            database,
            kafka,
            query=query,
            topics=topics,
            find_id=id_finder(place),
            window=window,
            progress=lambda n: None if as_json else output.progress(f"{n:,} records read"),
        )
    output.end_progress()
    if as_json:
        click.echo(orjson.dumps(_object(report)))
    else:
        _show(output, report, window)
    ctx.exit(0 if report.is_clean else 1)


def _moment(given: datetime | timedelta, now: datetime) -> datetime:
    return now - given if isinstance(given, timedelta) else given


def _object(report: AuditReport) -> dict[str, object]:
    return {
        "committed": report.committed,
        "lost": report.lost,
        "repeated": report.repeated,
        "ghosts": report.ghosts,
        "late": {each: delay.total_seconds() for each, delay in report.late},
    }


def _show(output: Output, report: AuditReport, window: AuditWindow) -> None:
    late = tuple(f"{each} (+{delay.total_seconds():g} s)" for each, delay in report.late)
    output.table(
        [
            ("committed", f"{report.committed:,} messages, {window.start:%F %T} to {window.end:%F %T %Z}"),
            *(
                (name, _shown(ids))
                for name, ids in {
                    "lost": report.lost,
                    "repeated": report.repeated,
                    "ghosts": report.ghosts,
                    "late": late,
                }.items()
            ),
        ]
    )


def _shown(ids: tuple[str, ...]) -> str:
    if not ids:
        return "0"
    more = f", and {len(ids) - _SHOWN:,} more (--json has all)" if len(ids) > _SHOWN else ""
    return f"{len(ids):,}: {', '.join(ids[:_SHOWN])}{more}"
