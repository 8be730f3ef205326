"""``slackwater messaging`` and ``slackwater indoubt``: what senders of messages have left where."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import click
import orjson

from slackwater.cli.main import settings_group
from slackwater.command.boundary import options
from slackwater.command.invocation import (
    POSTGRES_URL,
    Database,
    connected,
    kafka_settings,
    setting,
)
from slackwater.command.output import Output, ago, aligned, json_option
from slackwater.protocol import KafkaSettings, SlackwaterError, SystemClock, epoch_ms
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings
from slackwater_messaging import (
    AuditWindow,
    DeadLetter,
    DeadLetters,
    PreparedTransaction,
    audit_messages,
    find_prepared,
    id_finder,
    is_committed,
    resolve,
)

_SHOWN = 20
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@settings_group()
def messaging() -> None:
    """Check that the messages of a service are in their topics, and handle those that are dead letters.

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
@setting("kafka.bootstrap", "The brokers of the topics.")
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
@json_option("one JSON object with all ids")
def audit(  # noqa: PLR0913 - click hands over each option by its name
    settings: Settings,
    query: str,
    topics: tuple[str, ...],
    place: str,
    since: datetime | timedelta,
    until: datetime | timedelta,
    late_after: float,
    as_json: bool,
) -> int:
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
    seconds = {each: delay.total_seconds() for each, delay in report.late}
    ids = {"lost": report.lost, "repeated": report.repeated, "ghosts": report.ghosts}
    shown = {**ids, "late": [f"{each} (+{late:g} s)" for each, late in seconds.items()]}
    head = f"{report.committed:,} messages, {window.start:%F %T} to {window.end:%F %T %Z}"
    rows = [("committed", head), *((name, _shown(found)) for name, found in shown.items())]
    output.report({"committed": report.committed, **ids, "late": seconds}, aligned(rows), as_json=as_json)
    return 0 if report.is_clean else 1


def _moment(given: datetime | timedelta, now: datetime) -> datetime:
    return now - given if isinstance(given, timedelta) else given


def _shown(ids: Sequence[str]) -> str:
    if not ids:
        return "0"
    more = f", and {len(ids) - _SHOWN:,} more (--json has all)" if len(ids) > _SHOWN else ""
    return f"{len(ids):,}: {', '.join(ids[:_SHOWN])}{more}"


@settings_group()
def dead_letters() -> None:
    """Show the messages that a service could not process or send, and hand them back.

    A receiver or relay with dead letters moves a message there after some attempts, with the reason. Correct
    what is wrong, and hand the messages back.

    \b
    Examples:
      slackwater messaging dead-letters list --postgres-url postgresql://app@localhost/shop
      slackwater messaging dead-letters show 17
      slackwater messaging dead-letters retry --all

    For details see docs/receiving-messages.md.
    """


messaging.add_command(dead_letters, "dead-letters")
_of_letters = options(
    POSTGRES_URL,
    click.option("--table", default="dead_letters", show_default=True, help="The table of dead letters."),
)
_ids = click.argument("ids", type=int, nargs=-1)
_LETTERS_HEAD = ("id", "origin", "topic", "key", "attempts", "died", "state", "reason")


@dead_letters.command("list")
@_of_letters
@json_option("one object per dead letter")
def list_letters(settings: Settings, table: str, as_json: bool) -> int:
    """Show all dead letters, oldest first. The exit code is 1 if there is any.

    \b
    Example:
      slackwater messaging dead-letters list --json
    """
    found, output, now_ms = _letters(settings, table, None), Output(), epoch_ms(SystemClock().now())
    rows = [
        (
            *(str(each.id), each.origin, each.message.topic, _text(each.message.key), str(each.attempts)),
            *(ago(epoch_ms(each.died_at), now_ms), each.state, each.reason.partition("\n")[0]),
        )
        for each in found
    ]
    if as_json:
        for each in found:
            click.echo(orjson.dumps(_letter_object(each)))
    else:
        output.table([_LETTERS_HEAD, *rows] if rows else [("there are no dead letters",)])
    return 1 if found else 0


@dead_letters.command("show")
@_of_letters
@_ids
def show_letters(settings: Settings, table: str, ids: tuple[int, ...]) -> None:
    """Show dead letters with their content and the whole reason, as JSON.

    \b
    Example:
      slackwater messaging dead-letters show 17 18
    """
    for each in _letters(settings, table, ids):
        click.echo(orjson.dumps(_letter_object(each), option=orjson.OPT_INDENT_2))


@dead_letters.command("retry")
@_of_letters
@_ids
@click.option("--all", "is_all", is_flag=True, help="All dead letters.")
def retry_letters(settings: Settings, table: str, ids: tuple[int, ...], is_all: bool) -> None:
    """Hand dead letters back: receivers process them within some seconds, and relays send them.

    \b
    Examples:
      slackwater messaging dead-letters retry 17 18
      slackwater messaging dead-letters retry --all
    """
    if bool(ids) == is_all:
        raise CommandConfigError("no dead letter was specified", "give their ids, or --all")
    with _letters_in(settings, table) as (database, letters):
        click.echo(f"{letters.retry(database, None if is_all else ids):,} handed back")


@dead_letters.command("delete")
@_of_letters
@_ids
def delete_letters(settings: Settings, table: str, ids: tuple[int, ...]) -> None:
    """Delete dead letters for ever.

    \b
    Example:
      slackwater messaging dead-letters delete 17
    """
    with _letters_in(settings, table) as (database, letters):
        click.echo(f"{letters.delete(database, ids):,} deleted")


@contextmanager
def _letters_in(settings: Settings, table: str) -> Iterator[tuple[Database, DeadLetters]]:
    letters = DeadLetters(table)
    with connected(settings, "whose dead letters", "asking for dead letters", autocommit=True) as database:
        letters.check(database)
        yield database, letters


def _letters(settings: Settings, table: str, ids: Sequence[int] | None) -> Sequence[DeadLetter]:
    with _letters_in(settings, table) as (database, letters):
        return letters.find(database, ids)


def _letter_object(each: DeadLetter) -> dict[str, object]:
    message = each.message
    content = {"topic": message.topic, "key": _text(message.key), "value": _text(message.value)}
    headers = [[name, _text(value)] for name, value in message.headers]
    told = {"id": each.id, "origin": each.origin, "state": each.state, "attempts": each.attempts}
    return {**told, **content, "headers": headers, "died_at": each.died_at.isoformat(), "reason": each.reason}


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="backslashreplace")


_HEAD = ("prepared transaction", "sender", "since", "database", "Kafka")
_FOREIGN = "not from a sender: its owner has to decide"
_COMMITTED, _NOT_COMMITTED = "has committed it", "has not committed it"


@settings_group()
def indoubt() -> None:
    """Show and resolve prepared transactions that message senders have left in a database.

    A service that dies between PREPARE TRANSACTION and COMMIT PREPARED leaves a transaction that keeps its
    locks and holds back VACUUM until it is resolved. The service resolves it at its next start under the same
    name. Use this command for services that do not come back. The sender's outcome topic records whether the
    messages of each transaction were committed.

    \b
    Examples:
      slackwater indoubt list --postgres-url postgresql://app@localhost/shop --bootstrap localhost:9092
      slackwater indoubt resolve --sender billing-1

    For details see docs/messaging.md.
    """


_of_both = options(setting("kafka.bootstrap", "The brokers of the messages."), POSTGRES_URL)


@indoubt.command("list")
@_of_both
@json_option("one object per prepared transaction")
def list_(settings: Settings, as_json: bool) -> int:
    """Show all prepared transactions of the server, and what Kafka knows about those of senders.

    An active sender has a prepared transaction only for some milliseconds, so look at the age. Without
    brokers, Kafka is not queried. Transactions that were not created by a sender are listed as well, because
    they keep locks like any other. The exit code is 1 if there is any.

    \b
    Examples:
      slackwater indoubt list --postgres-url postgresql://app@localhost/shop --bootstrap localhost:9092
      slackwater indoubt list --json
    """
    kafka = kafka_settings(settings, "of the messages") if settings.kafka.bootstrap else None
    with connected(settings, "whose transactions to show", "listing", autocommit=True) as database:
        found = find_prepared(database)
    told = {each.gid: _told(kafka, each) for each in found}
    if as_json:
        for each in found:
            click.echo(orjson.dumps(_prepared_object(each, told[each.gid])))
    else:
        _show_prepared(found, told)
    return 1 if found else 0


@indoubt.command("resolve")
@_of_both
@click.option("--sender", "senders", multiple=True, metavar="NAME", help="Name of the sender; repeatable.")
@click.option(
    "--all", "is_all", is_flag=True, help="All senders with prepared transactions in this database."
)
def resolve_(settings: Settings, senders: tuple[str, ...], is_all: bool) -> None:
    """Commit or roll back the prepared transactions of senders, according to the outcome in Kafka.

    Takes over the sender's name in Kafka for a moment, as its next start would. This does not harm a service
    that is active under the name: its current transaction is resolved too, and it receives an error for this
    or for its next transaction, of which nothing remains.

    \b
    Examples:
      slackwater indoubt resolve --sender billing-1
      slackwater indoubt resolve --all
    """
    if bool(senders) == is_all:
        raise CommandConfigError("no sender was specified", "use --sender NAME or --all")
    kafka = kafka_settings(settings, "of the messages")
    with connected(settings, "whose transactions to decide", "deciding", autocommit=True) as database:
        for sender in senders or _senders(database):
            outcomes = resolve(database, kafka, sender)
            for gid, outcome in outcomes.items():
                click.echo(f"{gid}: {outcome}")
            if not outcomes:
                click.echo(f"{sender}: no prepared transaction in this database")


def _senders(database: Database) -> Sequence[str]:
    found = [each.sender for each in find_prepared(database) if each.sender is not None and each.is_here]
    return list(dict.fromkeys(found))


def _told(kafka: KafkaSettings | None, each: PreparedTransaction) -> str:
    if each.sender is None:
        return _FOREIGN
    if kafka is None:
        return "was not queried: specify --bootstrap"
    try:
        is_done = is_committed(kafka, each.sender, each.gid)
    except SlackwaterError as error:
        return f"cannot tell: {error}"
    return _COMMITTED if is_done else _NOT_COMMITTED


def _prepared_object(each: PreparedTransaction, told: str) -> dict[str, object]:
    return {
        "gid": each.gid,
        "sender": each.sender,
        "prepared_at": each.prepared_at.isoformat(),
        "owner": each.owner,
        "database": each.database,
        "kafka": {_COMMITTED: "committed", _NOT_COMMITTED: "not committed"}.get(told),
    }


def _show_prepared(found: Sequence[PreparedTransaction], told: Mapping[str, str]) -> None:
    output, now_ms = Output(), epoch_ms(SystemClock().now())
    rows = [
        (each.gid, each.sender or "-", ago(epoch_ms(each.prepared_at), now_ms), each.database, told[each.gid])
        for each in found
    ]
    output.table([_HEAD, *rows] if rows else [("no transaction is prepared",)])
