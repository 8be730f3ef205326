"""``slackwater acl`` and ``slackwater token``: who may do what, in Kafka and in the control plane."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import update_wrapper

import click
import orjson

from slackwater.cli.commands.sidecar import sidecar_settings
from slackwater.cli.main import settings_group
from slackwater.command.boundary import options
from slackwater.command.invocation import setting, sources_of
from slackwater.command.listening import Role, new_token
from slackwater.protocol import SourceTopics, rights
from slackwater.protocol.keys import commit_topic, cut_log_topic, table_name
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings
from slackwater_sidecar.settings import SidecarSettings

_BROKERS = "localhost:9092"


_printed = options(
    setting("kafka.bootstrap", "Brokers, for the commands."),
    click.option("--user", required=True, metavar="NAME", help="The user of Kafka, without `User:`."),
    click.option(
        "--as",
        "form",
        type=click.Choice(["commands", "json", "strimzi"]),
        default="commands",
        show_default=True,
        help="Commands of Kafka's kafka-acls.sh, a JSON array, or Strimzi's KafkaUser as JSON.",
    ),
)
"""The options of what every role prints."""


def _role(rights_of: Callable[..., Sequence[rights.Right]]) -> Callable[..., None]:
    """Makes the function of a command of what returns the rights for its settings and options."""

    def show(settings: Settings, user: str, form: str, **given: object) -> None:
        found = rights_of(settings, **given)
        if form == "json":
            click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        elif form == "strimzi":
            click.echo(orjson.dumps(rights.strimzi_user(user, found), option=orjson.OPT_INDENT_2))
        else:
            for line in rights.acl_commands(user, found, settings.kafka.bootstrap or _BROKERS):
                click.echo(line)

    return _printed(update_wrapper(show, rights_of))


_SOURCE = setting("source", "The connector's topic.prefix.")


@settings_group()
def acl() -> None:
    """Print the rights in Kafka that a role needs, and no others.

    Nothing is asked and nothing is changed: the lists follow from names and settings. Create is for topics
    that the role makes when they are not there; where topics are made by hand, leave it out.

    \b
    Examples:
      slackwater acl sidecar --source inv --user sidecar-inv
      slackwater acl pipeline pipelines/orders --user orders --as strimzi
      slackwater acl reader --topic orders_with_lines --group mailer --user mailer
    """


@acl.command()
@_role
@_SOURCE
def sidecar(settings: Settings) -> list[rights.Right]:
    """Print what a sidecar needs: of all tables of its source, or of those that sidecar.tables names.

    \b
    Example:
      slackwater acl sidecar --source inv --user sidecar-inv
    """
    made = [each for each in sources_of(settings) if _sidecar(settings, each).commit_format]
    more = [right for source in made for right in rights.source_commit_rights(source)]
    return _of_sources(settings, rights.sidecar_rights, more)


@acl.command()
@_role
@click.argument("folder", metavar="DIR")
def pipeline(_: Settings, folder: str) -> Sequence[rights.Right]:
    """Print what the runs of the pipeline in DIR need.

    Standard error names the rights in a search cluster, if its outputs are indexes.

    \b
    Example:
      slackwater acl pipeline pipelines/orders --user orders
    """
    from slackwater.cli.given_pipelines import pipeline_folder
    from slackwater.outputs.contract import SinkKind
    from slackwater.outputs.search.ledger import needed_rights
    from slackwater.pipeline import load_pipeline
    from slackwater.pipeline.definition import rights_of

    definition = load_pipeline(pipeline_folder(folder))
    if indexes := [each.name for each in definition.outputs if each.kind is SinkKind.OPENSEARCH]:
        click.echo(f"in the search cluster: {needed_rights(definition.name, indexes)}", err=True)
    return rights_of(definition)


@acl.command()
@_role
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="An output; repeat.")
@click.option(
    "--commits",
    multiple=True,
    metavar="TOPIC",
    help="Topic of commit records; repeat.  [default: that of the first output, the only one that is read]",
)
@click.option("--source", metavar="NAME", help="Debezium's own topics of this connector are read.")
@click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Of --source; repeat.")
@click.option("--group", metavar="NAME", help="Consumer group of a service; without, views are read.")
@click.option("--by-unit", is_flag=True, help="The members of the group share the work by unit (ByUnit).")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Whose views are read, with its revision."
)
@click.option(
    "--earlier", is_flag=True, help="Views of compacted topics are read at other commits than the newest."
)
@click.option("--lease", is_flag=True, help="Leases are taken; with compacted topics also give --earlier.")
@click.option("--switched", metavar="NAME", help="Switches between revisions of this pipeline are followed.")
def reader(  # noqa: PLR0913 - click hands over each option by its name
    settings: Settings,
    topics: tuple[str, ...],
    commits: tuple[str, ...],
    source: str | None,
    tables: tuple[str, ...],
    group: str | None,
    by_unit: bool,
    pipelines: tuple[str, ...],
    earlier: bool,
    lease: bool,
    switched: str | None,
) -> list[rights.Right]:
    """Print what a service needs that reads outputs, or whole transactions of a connector's own topics.

    Members of a consumer group need --group. A service that follows switches between revisions needs the
    topics and the topics of commit records of all revisions, and --switched. A service that reads views as of
    a commit needs --pipeline. To read several pipelines together, it reads earlier commits: --earlier.

    \b
    Examples:
      slackwater acl reader --topic orders_with_lines --group mailer --user mailer
      slackwater acl reader --topic billing.public.invoice --commits billing.commits --group b --user b
      slackwater acl reader --source inv --table inventory.orders --group audit --user audit
      slackwater acl reader --topic orders_with_lines --pipeline orders --user reports
    """
    _check_reader(topics, source, tables, group, pipelines)
    logs = commits or tuple(map(commit_topic, topics[:1]))
    if source is not None:
        inputs = _topics_of(settings, source)
        topics, logs = (*topics, *map(inputs.data, map(table_name, tables))), (*logs, cut_log_topic(source))
    if group is not None:
        found = rights.consumer_rights((*topics, *logs), group, is_by_unit=by_unit)
    else:
        found = rights.reader_rights(topics, logs, pipelines, reads_earlier=earlier, takes_leases=lease)
    return found + ([] if switched is None else rights.switched_rights(switched))


def _check_reader(
    topics: Sequence[str], source: str | None, tables: Sequence[str], group: str | None, names: Sequence[str]
) -> None:
    if not topics and not tables:
        raise CommandConfigError("nothing that is read was given", "give --topic, or --source and --table")
    if (source is None) != (not tables):
        raise CommandConfigError("only one of --source and --table was given", "give both, or none of them")
    if group is None and not names:
        hint = "give --group for members of a consumer group, or --pipeline for readers of its views"
        raise CommandConfigError("neither --group nor --pipeline was given", hint)


@acl.command()
@_role
@click.argument("way", type=click.Choice([each.value for each in rights.SendingWay]))
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="TOPIC", help="A destination; repeat."
)
@click.option("--name", metavar="NAME", help="Of the sender or relay; all but polling relays have one.")
@click.option("--pool", "is_pool", is_flag=True, help="It is the name of a SenderPool of such senders.")
@click.option("--source", metavar="NAME", help="With capture: the connector's topic.prefix.")
@click.option("--table", metavar="SCHEMA.TABLE", help="With capture: the outbox.")
def sender(
    settings: Settings,
    way: str,
    topics: tuple[str, ...],
    name: str | None,
    is_pool: bool,
    source: str | None,
    table: str | None,
) -> list[rights.Right]:
    """Print what a service needs that sends messages with its database transactions, or its relay.

    \b
      polling   the relay of an outbox (PollingRelay)          capture   a CaptureRelay
      chained   a ChainedSender                                saved     a SavedSender
      proven    a ProvenSender; its listener is a receiver     prepared  a PreparedSender

    With polling and capture only the relay talks to Kafka, the service does not. `slackwater indoubt resolve`
    needs the rights of the sender whose transactions it resolves.

    \b
    Examples:
      slackwater acl sender saved --topic paid --name shop-1 --user shop
      slackwater acl sender saved --topic paid --name shop-1 --pool --user shop
      slackwater acl sender capture --topic paid --name shop-relay --source inv --table public.outbox --user r
    """
    used = rights.SendingWay(way)
    if name is None and used is not rights.SendingWay.POLLING:
        raise CommandConfigError("no --name was given", "give the name of the sender or relay")
    if is_pool and used in (rights.SendingWay.POLLING, rights.SendingWay.CAPTURE):
        raise CommandConfigError(f"--pool was given for {way}", "a relay has no pool: leave it out")
    captured: list[str] = []
    if used is rights.SendingWay.CAPTURE:
        if source is None or table is None:
            raise CommandConfigError("the captured outbox was not given", "give --source and --table")
        captured = [_topics_of(settings, source).data(table_name(table)), cut_log_topic(source)]
    return rights.sender_rights(used, topics, name or "", captured, is_pool=is_pool)


@acl.command()
@_role
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="TOPIC", help="What is read; repeat."
)
@click.option("--group", metavar="NAME", help="Consumer group; without, the topics are audited.")
@click.option("--output", "outputs", multiple=True, metavar="TOPIC", help="What a processor writes; repeat.")
@click.option("--id", "own_id", metavar="ID", help="The transactional id of a processor.")
def receiver(
    settings: Settings,
    topics: tuple[str, ...],
    group: str | None,
    outputs: tuple[str, ...],
    own_id: str | None,
) -> list[rights.Right]:
    """Print what a service needs that receives messages: receivers, listeners, processors, audits.

    A processor that writes messages within Kafka (TransactionalProcessor) also needs --output and --id.
    `slackwater messaging audit` joins no group: leave out --group.

    \b
    Examples:
      slackwater acl receiver --topic paid --group bookkeeping --user bookkeeping
      slackwater acl receiver --topic paid --group enrich --output enriched --id enrich-1 --user enrich
      slackwater acl receiver --topic paid --user audit
    """
    if bool(outputs) != (own_id is not None) or (outputs and group is None):
        hint = "a processor needs --group, --output and --id; others need neither --output nor --id"
        raise CommandConfigError("the options of a processor are not complete", hint)
    if group is None:
        return rights.audit_rights(topics)
    if own_id is None:
        return rights.consumer_rights(topics, group)
    return rights.processor_rights(topics, outputs, group, own_id)


@acl.command()
@_role
@click.argument("source", metavar="NAME")
@click.option("--group", metavar="NAME", help="Consumer group whose positions are stored in transactions.")
def producer(_: Settings, source: str, group: str | None) -> list[rights.Right]:
    """Print what a service needs that writes transactions of its own as the source NAME.

    \b
    Example:
      slackwater acl producer billing --user billing
    """
    return rights.producer_rights(source, group)


@acl.command()
@_role
@_SOURCE
def viewer(settings: Settings) -> list[rights.Right]:
    """Print the rights of the control plane, and of users of topology, status, delay and doctor.

    \b
    Example:
      slackwater acl viewer --source inv --user control-plane
    """
    return _of_sources(settings, rights.viewer_rights)


@acl.command()
@_role
@_SOURCE
@click.option("--switches", metavar="NAME", help="Readers of this pipeline are switched between revisions.")
@click.option(
    "--pipeline", "revisions", multiple=True, metavar="NAME", help="A revision of --switches; repeat."
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="An output of a revision; repeat.")
def operator(
    settings: Settings, switches: str | None, revisions: tuple[str, ...], topics: tuple[str, ...]
) -> list[rights.Right]:
    """Print what an operator needs: to look, and to decide about sources, leases and pipelines.

    With --switches also what `slackwater revise switch` needs where the outputs are topics.

    \b
    Examples:
      slackwater acl operator --source inv --user ada
      slackwater acl operator --source inv --switches shop --pipeline shop --pipeline shop.v2 \\
          --topic order_details --topic order_details.v2 --user ada
    """
    if (switches is not None) != bool(revisions and topics):
        raise CommandConfigError("the options of switches are not complete", "give all of them, or none")
    found = [] if switches is None else rights.switching_rights(switches, revisions, topics)
    return _of_sources(settings, rights.operator_rights, found)


def _topics_of(settings: Settings, source: str) -> SourceTopics:
    return _sidecar(settings, source).source_topics


def _sidecar(settings: Settings, source: str) -> SidecarSettings:
    """Returns the settings of a sidecar; brokers that are not named are not asked either."""
    if settings.kafka.bootstrap is None:
        settings = replace(settings, kafka=replace(settings.kafka, bootstrap=_BROKERS))
    return sidecar_settings(settings, source)


def _of_sources(
    settings: Settings,
    rights_of: Callable[[SourceTopics, Iterable[str] | None], list[rights.Right]],
    more: Iterable[rights.Right] = (),
) -> list[rights.Right]:
    found = set(more)
    for source in sources_of(settings):
        own = _sidecar(settings, source)
        found.update(rights_of(own.source_topics, own.tables))
    return sorted(found)


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--role", type=click.Choice([str(role) for role in Role]), default=str(Role.VIEWER), show_default=True
)
def token(name: str, role: str) -> None:
    """Create an access token for the control plane, for the person or program NAME.

    Prints the entry for the file that control.tokens refers to and, on standard error, the token itself. The
    file contains only a hash of the token, so the token is shown only once. A viewer can read, and an
    operator can also make decisions. The control plane applies changes of the file immediately: a token that
    was removed is no longer accepted.

    \b
    Examples:
      slackwater token grafana >> /etc/slackwater/tokens.toml
      slackwater token ada --role operator >> /etc/slackwater/tokens.toml
      curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8086/api/v1/topology

    For details see docs/control-plane.md.
    """
    made, entry = new_token(name, Role(role))
    click.echo(entry)
    click.echo(f"the token of {name}, which is not shown again: {made}", err=True)
