"""``slackwater indoubt``."""

from collections.abc import Mapping, Sequence

import click
import orjson

from slackwater.cli.databases import POSTGRES_URL, Database, connected
from slackwater.command.conversion import kafka_settings
from slackwater.command.invocation import Command, setting, start_command
from slackwater.command.output import Output, ago
from slackwater.protocol import KafkaSettings, SlackwaterError, SystemClock, epoch_ms
from slackwater.settings.errors import CommandConfigError
from slackwater_messaging.sending import PreparedTransaction, find_prepared, is_committed, resolve

_HEAD = ("prepared transaction", "sender", "since", "database", "Kafka")
_FOREIGN = "not from a sender: its owner has to decide"
_COMMITTED, _NOT_COMMITTED = "has committed it", "has not committed it"


@click.group()
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


def _of_both(command: Command) -> Command:
    """Adds what both commands are given."""
    brokers = setting(
        "kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="The brokers of the messages."
    )
    return brokers(POSTGRES_URL(command))


@indoubt.command("list")
@_of_both
@click.option("--json", "as_json", is_flag=True, help="For tools: one object per prepared transaction.")
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """Show all prepared transactions of the server, and what Kafka knows about those of senders.

    An active sender has a prepared transaction only for some milliseconds, so look at the age. Without
    brokers, Kafka is not queried. Transactions that were not created by a sender are listed as well, because
    they keep locks like any other. The exit code is 1 if there is any.

    \b
    Examples:
      slackwater indoubt list --postgres-url postgresql://app@localhost/shop --bootstrap localhost:9092
      slackwater indoubt list --json
    """
    settings = start_command(ctx)
    kafka = kafka_settings(settings, "of the messages") if settings.kafka.bootstrap else None
    with connected(settings, "whose transactions to show", "listing", autocommit=True) as database:
        found = find_prepared(database)
    told = {each.gid: _told(kafka, each) for each in found}
    if as_json:
        for each in found:
            click.echo(orjson.dumps(_object(each, told[each.gid])))
    else:
        _show(found, told)
    ctx.exit(1 if found else 0)


@indoubt.command("resolve")
@_of_both
@click.option("--sender", "senders", multiple=True, metavar="NAME", help="Name of the sender; repeatable.")
@click.option(
    "--all", "is_all", is_flag=True, help="All senders with prepared transactions in this database."
)
@click.pass_context
def resolve_(ctx: click.Context, senders: tuple[str, ...], is_all: bool) -> None:
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
    settings = start_command(ctx)
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


def _object(each: PreparedTransaction, told: str) -> dict[str, object]:
    return {
        "gid": each.gid,
        "sender": each.sender,
        "prepared_at": each.prepared_at.isoformat(),
        "owner": each.owner,
        "database": each.database,
        "kafka": {_COMMITTED: "committed", _NOT_COMMITTED: "not committed"}.get(told),
    }


def _show(found: Sequence[PreparedTransaction], told: Mapping[str, str]) -> None:
    output, now_ms = Output(), epoch_ms(SystemClock().now())
    rows = [
        (
            each.gid,
            each.sender or "-",
            ago(epoch_ms(each.prepared_at), now_ms),
            each.database,
            told[each.gid],
        )
        for each in found
    ]
    output.table([_HEAD, *rows] if rows else [("no transaction is prepared",)])
