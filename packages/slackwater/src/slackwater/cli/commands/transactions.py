"""``slackwater transactions``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import orjson
from confluent_kafka import Message

from slackwater.cli.given_pipelines import OF_A_PIPELINE, pipeline_name
from slackwater.cli.topics import explained, written_topics
from slackwater.command.invocation import kafka_settings, start_command
from slackwater.command.output import Output, ago, json_option
from slackwater.kafka.reader import TopicReader
from slackwater.protocol import InputError, KafkaSettings, SystemClock, epoch_ms
from slackwater.protocol.keys import HEADER_PIPELINE, progress_topic

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OpenKafkaTransaction:
    """The oldest transaction of a partition that is neither committed nor aborted."""

    topic: str
    partition: int
    stable: int
    """The last stable offset: readers of committed records get as far as here."""
    end: int
    """The high watermark."""
    since_ms: int
    """Time of its first record, milliseconds since the epoch."""
    pipeline: str
    """The pipeline that its first record names; empty: none."""

    @property
    def lag(self) -> int:
        """Offsets that are held back."""
        return self.end - self.stable


def find_open_transactions(kafka: KafkaSettings, topics: Iterable[str]) -> list[OpenKafkaTransaction]:
    """Finds the oldest open transaction of each partition of these topics, also that of a healthy run.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    with (
        explained("which transactions are open"),
        TopicReader(kafka.client_config, _SECONDS, is_committed=False) as reader,
    ):
        known = reader.topics()
        places = [(topic, number) for topic in topics if topic in known for number in range(known[topic])]
        ends = reader.ends(places, is_committed=False)
        stable = reader.ends(places, is_committed=True)
        behind = {place: offset for place, offset in stable.items() if offset < ends[place]}
        return [
            _open_transaction(first, offset, ends[place])
            for place, offset in behind.items()
            # None: nothing but a transaction's end was behind it.
            if (first := next(reader.read({place: (offset, ends[place])}), None)) is not None
        ]


def _open_transaction(first: Message, stable: int, end: int) -> OpenKafkaTransaction:
    topic = first.topic() or ""
    return OpenKafkaTransaction(
        topic=topic,
        partition=first.partition() or 0,
        stable=stable,
        end=end,
        since_ms=first.timestamp()[1],
        pipeline=_pipeline(topic, first),
    )


def _pipeline(topic: str, record: Message) -> str:
    """Returns the pipeline that has written a record; its progress records have its name as their key."""
    key = (record.key() or b"").decode(errors="replace")
    if topic == progress_topic(key):
        return key
    return dict(_headers(record)).get(HEADER_PIPELINE, "")


def _headers(record: Message) -> Iterator[tuple[str, str]]:
    found = record.headers() or []
    for name, value in found.items() if isinstance(found, Mapping) else found:
        yield name, value.decode(errors="replace") if isinstance(value, bytes) else value or ""


_HEAD = ("partition", "readers blocked at", "held back", "open since", "written by")


@click.group()
def transactions() -> None:
    """Show or abort open Kafka transactions that block the readers of a pipeline.

    A read_committed consumer cannot read past the first record of an open transaction, whatever wrote
    it. Brokers abort such a transaction after its timeout, which is normally one minute for a pipeline and at
    most fifteen minutes. The next run of the pipeline aborts its own open transaction immediately.

    \b
    Example:
      slackwater transactions list pipelines/orders --bootstrap localhost:9092

    For details see docs/runbooks.md#readers-stand-still.
    """


@transactions.command("list")
@OF_A_PIPELINE
@json_option("one JSON object per blocked partition")
@click.pass_context
def list_(ctx: click.Context, folder: Path | None, pipeline: str | None, as_json: bool) -> None:
    """Show the oldest open transaction of each partition of a pipeline's topics.

    An active run has an open transaction for the duration of a batch, so look at how long it has been open.
    The exit code is 1 if there is any.

    \b
    Examples:
      slackwater transactions list pipelines/orders --bootstrap localhost:9092
      slackwater transactions list --pipeline orders --json
    """
    found = _find(kafka_settings(start_command(ctx), "where the output is"), pipeline_name(folder, pipeline))
    if as_json:
        for each in found:
            click.echo(orjson.dumps({**asdict(each), "lag": each.lag}))
    else:
        _show(found)
    ctx.exit(1 if found else 0)


@transactions.command()
@OF_A_PIPELINE
@click.pass_context
def abort(ctx: click.Context, folder: Path | None, pipeline: str | None) -> None:
    """Abort the open transaction of a pipeline whose run is gone, and show what is still open.

    Takes over the pipeline's transactional id for a moment, as its next run would. This does not harm an
    active run: it writes its batch again. Transactions of other producers are not aborted; the exit code is
    then 1.

    \b
    Example:
      slackwater transactions abort pipelines/orders --bootstrap localhost:9092
    """
    from slackwater.outputs.kafka.answers import SinkProducer
    from slackwater.outputs.kafka.settings import KafkaSinkSettings  # takes a second to import

    kafka = kafka_settings(start_command(ctx), "where the output is")
    name = pipeline_name(folder, pipeline)
    _find(kafka, name)
    producer = SinkProducer(KafkaSinkSettings(pipeline=name, outputs=(), kafka=kafka))
    try:
        producer.open()
    finally:
        producer.discard()
    left = _find(kafka, name)
    _show(left)
    foreign = sorted({f"{each.topic}/{each.partition}" for each in left if each.pipeline != name})
    if foreign:
        hint = (
            "Kafka's own kafka-transactions.sh finds their producers (describe-producers) and aborts them "
            "(abort); see docs/runbooks.md#readers-stand-still"
        )
        raise InputError(
            f"open transactions that were not started by pipeline {name!r}: {', '.join(foreign)}", hint
        )


def _find(kafka: KafkaSettings, pipeline: str) -> list[OpenKafkaTransaction]:
    return find_open_transactions(kafka, written_topics(kafka, pipeline))


def _show(found: Sequence[OpenKafkaTransaction]) -> None:
    output = Output()
    if not found:
        output.line("no transaction is open: readers see everything that was committed")
        return
    output.table([_HEAD, *map(_row, found)])


def _row(each: OpenKafkaTransaction) -> tuple[str, ...]:
    now_ms = epoch_ms(SystemClock().now())
    since = ago(each.since_ms, now_ms)
    writer = f"pipeline {each.pipeline}" if each.pipeline else "a producer that is not a pipeline"
    return f"{each.topic}/{each.partition}", str(each.stable), str(each.lag), since, writer
