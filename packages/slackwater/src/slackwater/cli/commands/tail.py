"""``slackwater tail``."""

import json
import uuid
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta

import click

from slackwater.cli.pipelines import open_pipeline_log
from slackwater.cli.topics import known_topics
from slackwater.client import Commit, ConsumerSettings, OutputTopics, TransactionalConsumer
from slackwater.command.invocation import kafka_settings, setting, start_command
from slackwater.command.output import Output, json_option
from slackwater.control import known_runs
from slackwater.observe.stopping import stop_on_signals
from slackwater.protocol import InputError, RegisteredView, format_position, from_epoch_ms
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings

_LOOK = timedelta(seconds=1)
_KAFKA = "kafka"


@click.command()
@click.argument("view", metavar="VIEW")
@setting("kafka.bootstrap", "The brokers.")
@click.option("--from-beginning", is_flag=True, help="Start with the first existing commit.")
@click.option("--commits", type=click.IntRange(min=1), metavar="N", help="Stop after N commits.")
@json_option("one JSON object per commit")
@click.pass_context
def tail(ctx: click.Context, view: str, from_beginning: bool, commits: int | None, as_json: bool) -> None:
    """Show the changes of each commit to a view as they become visible.

    VIEW is a view that a pipeline publishes to Kafka, or the topic itself. Shows each whole commit with its
    LSN, its time and the documents that it changed, including their keys. Documents in Avro are shown as
    their bytes in base64. Runs until you press Ctrl-C. Reads with a consumer of its own, which does not
    disturb others.

    \b
    Examples:
      slackwater tail orders_with_lines --bootstrap localhost:9092
      slackwater tail orders_with_lines --from-beginning --commits 3
      slackwater tail orders_with_lines --json | jq -c .documents[]
    """
    settings, output = start_command(ctx), Output()
    kafka = kafka_settings(settings, "where the view is published")
    topic = topic_of(view, list(_published(settings)), known_topics(kafka))
    reading = ConsumerSettings(latest=not from_beginning, stores_positions=False)
    shown = 0
    with (
        stop_on_signals(f"the tail of {view}") as stop,
        TransactionalConsumer(
            kafka,
            OutputTopics(topic),
            group=f"slackwater-tail-{uuid.uuid4().hex}",
            settings=reading,
        ) as consumer,
    ):
        if not from_beginning:
            click.echo(f"{view}: waiting for the next commit", err=True)
        while not stop.event.is_set() and shown != commits:
            transaction = consumer.poll(_LOOK)
            if transaction is None:
                continue
            shown += 1
            changes = [(record.key(), record.value()) for record in transaction]
            output.lines(commit_lines(transaction.commit, changes, as_json=as_json))
    ctx.exit(stop.exit_code)


def _published(settings: Settings) -> Iterator[RegisteredView]:
    """Yields the views that pipelines have registered."""
    with open_pipeline_log(settings) as log:
        for run in known_runs(log.read()):
            yield from run.registration.views


def topic_of(name: str, views: Sequence[RegisteredView], topics: Collection[str]) -> str:
    """Returns the topic of a view, or the name itself, if it is a topic's.

    Raises:
        InputError: the view is in several topics, or in none.
    """
    published = sorted({each.output for each in views if each.name == name and each.kind == _KAFKA})
    if len(published) > 1:
        hint = f"specify a topic: {', '.join(published)}"
        raise InputError(f"several pipelines publish a view named {name}", hint)
    if published or name in topics:
        return published[0] if published else name
    elsewhere = [each.kind for each in views if name in (each.name, each.output)]
    if elsewhere:
        hint = "`slackwater read` shows tables as of a commit"
        raise InputError(f"view {name} is not in Kafka, but in {elsewhere[0]}", hint)
    raise unknown("view or topic", name, (each.name for each in views if each.kind == _KAFKA))


def commit_lines(
    commit: Commit, changes: Sequence[tuple[bytes | None, bytes | None]], *, as_json: bool
) -> Iterator[str]:
    """Writes a commit.

    A change without a document means that the key left the view.
    """
    if as_json:
        head = {
            "source": commit.source,
            "timeline": commit.timeline,
            "lsn": format_position(commit.lsn),
            "xid": commit.xid,
            "commit_ts_ms": commit.commit_ts_ms,
        }
        documents = ", ".join(
            f'{{"key": {_text(key)}, "document": {_text(value)}}}' for key, value in changes
        )
        yield f'{json.dumps(head)[:-1]}, "documents": [{documents}]}}'
        return
    at = f"{from_epoch_ms(commit.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC"
    yield f"{format_position(commit.lsn)}  {at}{'' if not commit.xid else f'  xid {commit.xid}'}"
    for key, value in changes:
        yield f"  {_text(key)}  {'deleted' if value is None else _text(value)}"


def _text(data: bytes | None) -> str:
    """Returns JSON as it is, and other bytes as a text in JSON."""
    if data is None:
        return "null"
    try:
        text = data.decode()
        json.loads(text)
    except ValueError:
        return json.dumps(b64encode(data).decode())
    return text
