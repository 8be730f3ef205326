"""``slackwater acl``."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click
import orjson

from slackwater_command.conversion import sources_of
from slackwater_command.invocation import setting, start_command
from slackwater_command.settings import Settings
from slackwater_protocol.rights import (
    Right,
    acl_commands,
    operator_rights,
    producer_rights,
    reader_rights,
    sidecar_rights,
    strimzi_user,
    viewer_rights,
)
from slackwater_sidecar.command import sidecar_settings

Command = TypeVar("Command", bound=Callable[..., object])
_BROKERS = "localhost:9092"


def _printed(command: Command) -> Command:
    """Adds the options of what every role prints."""
    for add in (
        click.option(
            "--as",
            "form",
            type=click.Choice(["commands", "json", "strimzi"]),
            default="commands",
            show_default=True,
            help="Commands of Kafka's kafka-acls.sh, a JSON array, or Strimzi's KafkaUser as JSON.",
        ),
        click.option("--user", required=True, metavar="NAME", help="The user of Kafka, without `User:`."),
        setting("kafka.bootstrap", "--bootstrap", metavar="HOST:PORT", help="Brokers, for the commands."),
    ):
        command = add(command)
    return command


_SOURCE = setting("source", "--source", metavar="NAME", help="The connector's topic.prefix.")


@click.group()
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
@_printed
@_SOURCE
@click.pass_context
def sidecar(ctx: click.Context, user: str, form: str) -> None:
    """Print what a sidecar needs: of all tables of its source, or of those that sidecar.tables names.

    \b
    Example:
      slackwater acl sidecar --source inv --user sidecar-inv
    """
    settings = start_command(ctx)
    found: list[Right] = []
    for source in sources_of(settings):
        own = sidecar_settings(_with_brokers(settings), source)
        found += sidecar_rights(own.source_topics, own.tables)
    _print(settings, user, found, form)


@acl.command()
@_printed
@click.argument("folder", metavar="DIR")
@click.pass_context
def pipeline(ctx: click.Context, folder: str, user: str, form: str) -> None:
    """Print what the runs of the pipeline in DIR need.

    \b
    Example:
      slackwater acl pipeline pipelines/orders --user orders
    """
    from slackwater.pipeline_folders import pipeline_folder
    from slackwater_spark.pipeline import load_pipeline
    from slackwater_spark.pipeline.rights import rights_of

    settings = start_command(ctx)
    _print(settings, user, rights_of(load_pipeline(pipeline_folder(folder))), form)


@acl.command()
@_printed
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC", help="An output; repeat.")
@click.option("--group", metavar="NAME", help="Consumer group of a service; without, views are read.")
@click.option("--pipeline", "name", metavar="NAME", help="The pipeline, without revision.")
@click.pass_context
def reader(
    ctx: click.Context, topics: tuple[str, ...], group: str | None, name: str | None, user: str, form: str
) -> None:
    """Print what a service needs that reads outputs.

    With --pipeline also what reading views at a commit and following switches between revisions needs.

    \b
    Examples:
      slackwater acl reader --topic orders_with_lines --group mailer --user mailer
      slackwater acl reader --topic orders_with_lines --pipeline orders --user reports
    """
    _print(start_command(ctx), user, reader_rights(topics, group, name), form)


@acl.command()
@_printed
@click.argument("source", metavar="NAME")
@click.option("--group", metavar="NAME", help="Consumer group whose positions are stored in transactions.")
@click.pass_context
def producer(ctx: click.Context, source: str, group: str | None, user: str, form: str) -> None:
    """Print what a service needs that writes transactions of its own as the source NAME.

    \b
    Example:
      slackwater acl producer billing --user billing
    """
    _print(start_command(ctx), user, producer_rights(source, group), form)


@acl.command()
@_printed
@_SOURCE
@click.pass_context
def viewer(ctx: click.Context, user: str, form: str) -> None:
    """Print what the control plane needs, and whoever looks with topology, status, delay and doctor.

    \b
    Example:
      slackwater acl viewer --source inv --user control-plane
    """
    settings = start_command(ctx)
    _print(settings, user, viewer_rights(sources_of(settings)), form)


@acl.command()
@_printed
@_SOURCE
@click.pass_context
def operator(ctx: click.Context, user: str, form: str) -> None:
    """Print what an operator needs: to look, and to decide about sources, leases and pipelines.

    \b
    Example:
      slackwater acl operator --source inv --user ada
    """
    settings = start_command(ctx)
    _print(settings, user, operator_rights(sources_of(settings)), form)


def _with_brokers(settings: Settings) -> Settings:
    """Returns settings that name brokers: nobody asks them, but other settings are made with them."""
    if settings.kafka.bootstrap is not None:
        return settings
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap": _BROKERS})})


def _print(settings: Settings, user: str, rights: Sequence[Right], form: str) -> None:
    if form == "json":
        click.echo(orjson.dumps(rights, option=orjson.OPT_INDENT_2))
    elif form == "strimzi":
        click.echo(orjson.dumps(strimzi_user(user, rights), option=orjson.OPT_INDENT_2))
    else:
        for line in acl_commands(user, rights, settings.kafka.bootstrap or _BROKERS):
            click.echo(line)
