"""``slackwater tail`` and ``preview``: what each commit changes in views, as it comes."""

import json
import uuid
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from slackwater.cdc.envelope import decode_change
from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.cli.main import settings_command
from slackwater.cli.pipelines import open_pipeline_log
from slackwater.cli.topics import known_topics
from slackwater.client import (
    ChangeTopics,
    Commit,
    ConsumerSettings,
    OutputTopics,
    Transaction,
    TransactionalConsumer,
)
from slackwater.client.transaction import view_of
from slackwater.command.invocation import kafka_settings, setting
from slackwater.command.output import Output, json_option
from slackwater.control import known_runs
from slackwater.observe.stopping import stop_on_signals
from slackwater.protocol import InputError, RegisteredView, format_position, from_epoch_ms
from slackwater.settings.errors import unknown
from slackwater.settings.model import Settings

if TYPE_CHECKING:  # a tail does not need Spark's libraries
    from slackwater.engine.local import ChangeEvent
    from slackwater.engine.payloads import Document

_LOOK = timedelta(seconds=1)
_NOW = timedelta(0)
MOST_EVENTS = 50_000
"""The number of change events of a backlog that are computed at once."""
_KAFKA = "kafka"


@settings_command()
@click.argument("view", metavar="VIEW")
@setting("kafka.bootstrap", "The brokers.")
@click.option("--from-beginning", is_flag=True, help="Start with the first existing commit.")
@click.option("--commits", type=click.IntRange(min=1), metavar="N", help="Stop after N commits.")
@json_option("one JSON object per commit")
def tail(settings: Settings, view: str, from_beginning: bool, commits: int | None, as_json: bool) -> int:
    """Show the changes of each commit to a view as they become visible.

    VIEW is a view that a pipeline publishes to Kafka, or the topic itself. Shows each whole commit with its
    LSN, its time and the documents that it changed, including their keys; in a topic of several views also
    with their views. Documents in Avro are shown as
    their bytes in base64. Runs until you press Ctrl-C. Reads with a consumer of its own, which does not
    disturb others.

    \b
    Examples:
      slackwater tail orders_with_lines --bootstrap localhost:9092
      slackwater tail orders_with_lines --from-beginning --commits 3
      slackwater tail orders_with_lines --json | jq -c .documents[]
    """
    output = Output()
    kafka = kafka_settings(settings, "where the view is published")
    topic = topic_of(view, list(_published(settings)), known_topics(kafka))
    reading = ConsumerSettings(latest=not from_beginning, stores_positions=False)
    shown = 0
    with (
        stop_on_signals(f"the tail of {view}") as stop,
        TransactionalConsumer(
            kafka, OutputTopics(topic), group=f"slackwater-tail-{uuid.uuid4().hex}", settings=reading
        ) as consumer,
    ):
        if not from_beginning:
            click.echo(f"{view}: waiting for the next commit", err=True)
        while not stop.event.is_set() and shown != commits:
            transaction = consumer.poll(_LOOK)
            if transaction is None:
                continue
            shown += 1
            found = ((view_of(record), record.key(), record.value()) for record in transaction)
            changes = [each for each in found if view == topic or each[0] in ("", view)]
            output.lines(commit_lines(transaction.commit, changes, as_json=as_json))
    return stop.exit_code


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
    commit: Commit, changes: Sequence[tuple[str, bytes | None, bytes | None]], *, as_json: bool
) -> Iterator[str]:
    """Writes a commit, given view, key and document of each change.

    A change without a document means that the key left the view. The view is empty in a topic of one.
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
            f'{{{_member(view)}"key": {_text(key)}, "document": {_text(value)}}}'
            for view, key, value in changes
        )
        yield f'{json.dumps(head)[:-1]}, "documents": [{documents}]}}'
        return
    at = f"{from_epoch_ms(commit.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC"
    yield f"{format_position(commit.lsn)}  {at}{'' if not commit.xid else f'  xid {commit.xid}'}"
    for view, key, value in changes:
        lead = f"  {view}" if view else ""
        yield f"{lead}  {_text(key)}  {'deleted' if value is None else _text(value)}"


def _member(view: str) -> str:
    return f'"view": {json.dumps(view)}, ' if view else ""


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


@settings_command()
@click.argument("pipeline", metavar="DIR")
@setting("kafka.bootstrap", "The brokers of the source.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of documents that are shown at once.",
)
@click.option("--commits", type=click.IntRange(min=1), metavar="N", help="Stop after N transactions.")
def preview(settings: Settings, pipeline: str, most: int, commits: int | None) -> int:
    """Show the results of the views in DIR over a running source, without publishing anything.

    Reads the source's topics from the beginning, whole transactions only, and computes the views in this
    process, without Spark, checkpoint, output or registration. It then continues with each new transaction
    until you press Ctrl-C. A sidecar has to be running for the source.

    All rows that the views read are kept in memory, so this is meant for sources of a few hundred thousand
    rows. The connector's records have to be in JSON.

    \b
    Examples:
      slackwater preview revenue --bootstrap localhost:9092
      slackwater preview revenue --most 3
    """
    from slackwater.engine.local import LocalEngine
    from slackwater.outputs.contract import Emit
    from slackwater.pipeline import load_pipeline

    output = Output()
    definition = load_pipeline(pipeline_folder(pipeline))
    kafka = kafka_settings(settings, "where the source is")
    engine = LocalEngine(
        definition.plan,
        buckets=1,
        every_commit=definition.emit is Emit.TRANSACTIONS,
        evaluators=definition.evaluators,
    )
    inputs = ChangeTopics(source=definition.source, tables=definition.tables, routed=definition.topics)
    group, reading = f"slackwater-preview-{uuid.uuid4().hex}", ConsumerSettings(stores_positions=False)
    names, seen = [view.name for view in definition.plan.views], 0
    with (
        stop_on_signals(f"the preview of {definition.name}") as stop,
        TransactionalConsumer(kafka, inputs, group=group, settings=reading) as consumer,
    ):
        output.line(f"{definition.name}: reading source {definition.source}; nothing is published")
        while not stop.event.is_set() and (commits is None or seen < commits):
            transactions, events = _together(consumer, None if commits is None else commits - seen)
            if not transactions:
                continue
            seen += len(transactions)
            documents = engine.run(events, first_lsn=transactions[0].lsn)
            shown = {names[number]: of_view for number, of_view in documents.items()}
            output.lines(preview_lines(transactions, len(events), shown, most))
    return stop.exit_code


def _together(consumer: TransactionalConsumer, most: int | None) -> "tuple[list[Commit], list[ChangeEvent]]":
    """Waits for a transaction, and takes those already behind it, so that a backlog is read quickly."""
    commits: list[Commit] = []
    events: list[ChangeEvent] = []
    transaction = consumer.poll(_LOOK)
    while transaction is not None:
        commits.append(transaction.commit)
        events += change_events(transaction)
        if len(events) >= MOST_EVENTS or len(commits) == most:
            break
        transaction = consumer.poll(_NOW)
    return commits, events


def change_events(transaction: Transaction) -> "Iterator[ChangeEvent]":
    """Yields the changes of a transaction, as the engine takes them.

    Raises:
        BadInputError: a record is no change event.
    """
    for record in transaction:
        change = decode_change(record.value() or b"")
        before = None if change.before is None else bytes(change.before)
        after = None if change.after is None else bytes(change.after)
        yield change.table, change.op, transaction.commit.lsn, before, after, change.lsn, change.schema


def preview_lines(
    commits: Sequence[Commit], events: int, documents: "dict[str, list[Document]]", most: int
) -> Iterator[str]:
    """Writes what transactions change in the views.

    Of each view, at most this many documents are written.
    """
    newest = commits[-1]
    at = f"{from_epoch_ms(newest.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC"
    count = "1 transaction" if len(commits) == 1 else f"{len(commits):,} transactions"
    yield f"{format_position(newest.lsn)}  {at}  {count}, {events:,} change events"
    for view, changed in documents.items():
        for _, key, document in changed[:most]:
            text = "deleted" if document is None else document.decode()
            yield f"  {view}  {key.decode()}  {text}"
        if len(changed) > most:
            yield f"  {view}  and {len(changed) - most:,} more"
