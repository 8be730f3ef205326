"""``slackwater preview``."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import click

from slackwater.cdc.envelope import decode_change
from slackwater.cli.given_pipelines import pipeline_folder
from slackwater.client import ChangeTopics, Commit, ConsumerSettings, Transaction, TransactionalConsumer
from slackwater.command.invocation import kafka_settings, setting, start_command
from slackwater.command.output import Output
from slackwater.engine.local import ChangeEvent, LocalEngine
from slackwater.engine.payloads import Document
from slackwater.observe.stopping import stop_on_signals
from slackwater.protocol import format_position, from_epoch_ms

_LOOK = timedelta(seconds=1)
_NOW = timedelta(0)
MOST_EVENTS = 50_000
"""The number of change events of a backlog that are computed at once."""


@click.command()
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
@click.pass_context
def preview(ctx: click.Context, pipeline: str, most: int, commits: int | None) -> None:
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
    from slackwater.outputs.contract import Emit
    from slackwater.pipeline import load_pipeline

    settings, output = start_command(ctx), Output()
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
    ctx.exit(stop.exit_code)


def _together(consumer: TransactionalConsumer, most: int | None) -> tuple[list[Commit], list[ChangeEvent]]:
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


def change_events(transaction: Transaction) -> Iterator[ChangeEvent]:
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
    commits: Sequence[Commit], events: int, documents: dict[str, list[Document]], most: int
) -> Iterator[str]:
    """Writes what transactions change in the views.

    Of each view, at most this many documents are written.
    """
    newest = commits[-1]
    at = f"{from_epoch_ms(newest.commit_ts_ms):%Y-%m-%d %H:%M:%S.%f} UTC"
    count = "1 transaction" if len(commits) == 1 else f"{len(commits):,} transactions"
    yield f"{format_position(newest.lsn)}  {at}  {count}, {events:,} change events"
    for view, changed in documents.items():
        yield from _view_lines(view, changed, most)


def _view_lines(view: str, changed: Iterable[Document], most: int) -> Iterator[str]:
    documents = list(changed)
    for _, key, document in documents[:most]:
        text = "deleted" if document is None else document.decode()
        yield f"  {view}  {key.decode()}  {text}"
    if len(documents) > most:
        yield f"  {view}  and {len(documents) - most:,} more"
