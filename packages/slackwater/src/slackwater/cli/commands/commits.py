"""``slackwater commits`` and ``transactions``: what the topics of a pipeline hold of its transactions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import msgspec
import orjson
from confluent_kafka import KafkaException, Message

from slackwater.cli.given_pipelines import OF_A_PIPELINE, pipeline_name
from slackwater.cli.main import settings_command, settings_group
from slackwater.cli.topics import explained
from slackwater.command.invocation import kafka_settings, lsn_of, setting
from slackwater.command.output import Output, ago, aligned, json_option
from slackwater.kafka.reader import TopicReader
from slackwater.kafka.retry import ABSENT_CODES, code_of
from slackwater.protocol import (
    CommitPosition,
    InputError,
    KafkaSettings,
    SchemaLanguage,
    SystemClock,
    TopicState,
    commit_schema,
    decode_commit_record,
    decode_progress_record,
    encode_commit_record,
    epoch_ms,
    format_position,
    from_epoch_ms,
)
from slackwater.protocol.commit_lookup import (
    Answer,
    Found,
    PlacedCommit,
    beginnings,
    find_commit,
    find_document,
    first_reached,
    has_reached_lsn,
)
from slackwater.protocol.keys import HEADER_PIPELINE, commit_topic, progress_topic
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import Settings

_SECONDS = 30.0
_SUFFIX = commit_topic("")
_SHOWN = 20
_COMMITS = ("commit", "committed at (UTC)", "xid", "documents", "where")


class _CommitLog:
    """The commit records of a pipeline. Not thread-safe; Kafka's errors are passed on.

    Every commit topic of a pipeline holds the same records: one of them is read.
    """

    def __init__(self, reader: TopicReader, pipeline: str) -> None:
        self._reader = reader
        self._place = _commit_topic(reader, pipeline), 0

    def bounds(self) -> tuple[int, int]:
        """Returns the first offset of the commit topic, and the one behind the last."""
        return self._reader.bounds(self._place)

    def record_from(self, start: int, end: int) -> PlacedCommit | None:
        """See :data:`slackwater.protocol.commit_lookup.RecordFrom`."""
        return next(self.records(start, end), None)

    def records(self, start: int, end: int | None = None) -> Iterator[PlacedCommit]:
        """Yields the records from an offset on; without an end it waits for new ones for ever."""
        place, reader = self._place, self._reader
        found = reader.follow(place, start) if end is None else reader.read({place: (start, end)})
        return map(_placed, found)

    def last(self, count: int) -> list[PlacedCommit]:
        """Returns the newest records, oldest first."""
        return list(map(_placed, self._reader.newest(self._place, count)))


def _placed(message: Message) -> PlacedCommit:
    return PlacedCommit(message.offset() or 0, decode_commit_record(message.value() or b""))


def _commit_topic(reader: TopicReader, pipeline: str) -> str:
    topics, known = _topics(reader, pipeline), reader.topics()
    names = sorted(t for t in topics if t.endswith(_SUFFIX) and t.removesuffix(_SUFFIX) in topics)
    for name in names:
        if name in known:
            return name
    hint = "start the pipeline once with this version, or see docs/runbooks.md#output-changed"
    reason = f"its progress record names {', '.join(names) or 'no commit topic'}, and none exists"
    raise InputError(f"the commits of pipeline {pipeline!r} cannot be found: {reason}", hint)


def _topics(reader: TopicReader, pipeline: str) -> Mapping[str, TopicState]:
    """Returns what the newest progress record says of the outputs and their commit topics."""
    topic = progress_topic(pipeline)
    reason = f"topic {topic} is empty"
    try:
        for found in reader.newest((topic, 0)):
            return decode_progress_record(found.value() or b"").topics
    except KafkaException as error:
        if code_of(error) not in ABSENT_CODES:
            raise
        reason = f"topic {topic} does not exist"
    hint = "check the name (from revision 2 on it ends in .v<revision>) and the brokers"
    raise InputError(f"no pipeline {pipeline!r} has written to this Kafka: {reason}", hint)


@settings_command()
@OF_A_PIPELINE
@setting("timeline", "Timeline of the given LSNs.  [default: 1]")
@click.option("--last", type=click.IntRange(min=1), help=f"The newest N records.  [default: {_SHOWN}]")
@click.option("--from", "from_lsn", metavar="LSN", help="All records from this commit on.")
@click.option("--follow", is_flag=True, help="Continue with new records until interrupted.")
@click.option("--where", metavar="TOPIC/PARTITION/OFFSET", help="Show the commit that contains this record.")
@click.option("--lsn", metavar="LSN", help="Show where this commit begins in each topic and partition.")
@json_option("the unmodified records, one per line")
@click.option(
    "--schema",
    type=click.Choice([each.value for each in SchemaLanguage]),
    help="Print the schema of the records.",
)
def commits(  # noqa: PLR0913 - click hands over each option by its name
    settings: Settings,
    folder: Path | None,
    pipeline: str | None,
    last: int | None,
    from_lsn: str | None,
    follow: bool,
    where: str | None,
    lsn: str | None,
    as_json: bool,
    schema: str | None,
) -> None:
    """Show a pipeline's commit records: where each transaction begins and ends in its output.

    A commit record becomes visible together with the documents that it describes. Records are located by
    bisection, so only a few records are read, however many there are.

    \b
    Examples:
      slackwater commits pipelines/orders --bootstrap localhost:9092
      slackwater commits --pipeline orders --from 0/153D218 --follow --json
      slackwater commits --pipeline orders --where orders_with_lines/0/17
      slackwater commits --pipeline orders --lsn 0/153D218
      slackwater commits --schema json

    docs/commits.md explains every field and how to read whole transactions from any language.
    """
    if schema is not None:
        click.echo(commit_schema(SchemaLanguage(schema)), nl=False)
        return
    questions = [flag for flag in (where, lsn, from_lsn, last) if flag is not None]
    if len(questions) > 1 or (follow and (where or lsn)):
        problem = "only one of --where, --lsn, --from and --last can be given"
        raise CommandConfigError(problem, "use --follow with --from or --last")
    place = None if where is None else parse_place(where)
    timeline = settings.timeline
    begin = None if from_lsn is None else CommitPosition(timeline, lsn_of(from_lsn, "--from"))
    asked = None if lsn is None else CommitPosition(timeline, lsn_of(lsn, "--lsn"))
    name = pipeline_name(folder, pipeline)
    kafka = kafka_settings(settings, "where the output is")
    output = Output()
    with explained(f"the commits of {name}"), TopicReader(kafka.client_config, _SECONDS) as reader:
        log = _CommitLog(reader, name)
        if place is not None:
            low, end = log.bounds()
            answer = find_document(low, end, log.record_from, *place)
            output.report(_answer_json(answer), [_held(answer, f"offset {where}")], as_json=as_json)
        elif asked is not None:
            answer = find_commit(*log.bounds(), log.record_from, asked)
            output.report(_answer_json(answer), lsn_lines(answer, asked), as_json=as_json)
        else:
            _show(output, _records(log, begin, last, follow=follow), as_json=as_json, follow=follow)


def parse_place(text: str) -> tuple[str, int, int]:
    """Reads ``topic/partition/offset``.

    Raises:
        InputError: it is something else.
    """
    topic, *numbers = text.split("/")
    if not topic or len(numbers) != 2 or not all(each.isascii() and each.isdigit() for each in numbers):
        raise InputError(f"got --where {text!r}", "expected TOPIC/PARTITION/OFFSET, like orders/0/17")
    return topic, int(numbers[0]), int(numbers[1])


def lsn_lines(answer: Answer, asked: CommitPosition) -> Iterator[str]:
    """Says where a commit begins."""
    yield _held(answer, f"LSN {asked}")
    if answer.found is not Found.HELD or answer.commit is None:
        return
    record = answer.commit.record
    if record.commit_lsn != asked.lsn:
        yield (
            f"no commit record ends at that LSN; this one covers "
            f"({format_position(record.previous_lsn)}, {format_position(record.commit_lsn)}]"
        )
    rows = [
        (f"{topic}/{partition}", f"begins at offset {offset}")
        for topic, partitions in beginnings(record).items()
        for partition, offset in partitions.items()
    ]
    yield from aligned(rows) or ["it contains no documents"]


def commit_row(placed: PlacedCommit) -> tuple[str, ...]:
    """Writes a commit record for people, in the columns of the table."""
    record = placed.record
    at = from_epoch_ms(record.commit_ts_ms)
    where = ", ".join(
        f"{topic}/{partition}: {held.first_offset}-{held.last_offset}"
        for topic, ranges in record.offsets.items()
        for partition, held in ranges.items()
    )
    skipped = f"  skipped xids: {', '.join(map(str, record.skipped))}" if record.skipped else ""
    xid = "-" if record.xid is None else str(record.xid)
    return (
        str(placed.position),
        f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3],
        xid,
        str(record.record_count),
        (where or "-") + skipped,
    )


def _held(answer: Answer, what: str) -> str:
    if answer.commit is None:
        return f"{what}: not visible yet, because nothing that is written reaches it"
    record = answer.commit.record
    name = f"commit {answer.commit.position} ({record.commit_id})"
    match answer.found:
        case Found.HELD:
            since = f", which covers everything since {format_position(record.previous_lsn)}"
            batch = since if record.xid is None else ""
            return f"{what}: in {name}{batch}"
        case Found.NO_DOCUMENT:
            return (
                f"{what}: not a document, but a transaction marker or an aborted record; the "
                f"next commit is {name}"
            )
        case Found.NO_COMMIT:
            return f"{what}: no commit record covers it; the next one is {name}"
        case Found.SWEPT:
            return f"{what}: its commit record was removed by retention; the oldest remaining one is {name}"
        case _:
            return f"{what}: before everything that the pipeline has written; the first commit is {name}"


def _records(
    log: _CommitLog, begin: CommitPosition | None, last: int | None, *, follow: bool
) -> Iterator[PlacedCommit]:
    low, end = log.bounds()
    start = end
    if begin is not None:
        placed = first_reached(low, end, log.record_from, has_reached_lsn(begin))
        start = end if placed is None else placed.offset
        yield from log.records(start, end) if start < end else ()
    else:
        newest = log.last(last or _SHOWN)
        yield from newest
        end = max(newest[-1].offset + 1, low) if newest else low
    if follow:
        yield from log.records(end)


def _show(output: Output, found: Iterable[PlacedCommit], *, as_json: bool, follow: bool) -> None:
    if as_json or follow:
        for each in found:
            click.echo(encode_commit_record(each.record) if as_json else "  ".join(commit_row(each)))
    else:
        rows = list(map(commit_row, found))
        output.table([_COMMITS, *rows] if rows else [("no commit records",)])


def _answer_json(answer: Answer) -> dict[str, object]:
    record = None if answer.commit is None else msgspec.Raw(encode_commit_record(answer.commit.record))
    return {"found": answer.found, "commit": record}


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
        found = []
        for place, offset in stable.items():
            first = next(reader.read({place: (offset, ends[place])}), None) if offset < ends[place] else None
            if first is not None:  # else nothing but a transaction's end is behind it
                since_ms, writer = first.timestamp()[1], _writer(first)
                found.append(OpenKafkaTransaction(*place, offset, ends[place], since_ms, writer))
        return found


def _writer(record: Message) -> str:
    """Returns the pipeline that has written a record; its progress records have its name as their key."""
    key = (record.key() or b"").decode(errors="replace")
    if record.topic() == progress_topic(key):
        return key
    name = dict(record.headers() or {}).get(HEADER_PIPELINE) or ""
    return name.decode(errors="replace") if isinstance(name, bytes) else name


_TRANSACTIONS = ("partition", "readers blocked at", "held back", "open since", "written by")


@settings_group()
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
def list_(settings: Settings, folder: Path | None, pipeline: str | None, as_json: bool) -> int:
    """Show the oldest open transaction of each partition of a pipeline's topics.

    An active run has an open transaction for the duration of a batch, so look at how long it has been open.
    The exit code is 1 if there is any.

    \b
    Examples:
      slackwater transactions list pipelines/orders --bootstrap localhost:9092
      slackwater transactions list --pipeline orders --json
    """
    found = _find(kafka_settings(settings, "where the output is"), pipeline_name(folder, pipeline))
    if as_json:
        for each in found:
            click.echo(orjson.dumps({**asdict(each), "lag": each.lag}))
    else:
        _show_open(found)
    return 1 if found else 0


@transactions.command()
@OF_A_PIPELINE
def abort(settings: Settings, folder: Path | None, pipeline: str | None) -> None:
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

    kafka = kafka_settings(settings, "where the output is")
    name = pipeline_name(folder, pipeline)
    _find(kafka, name)
    producer = SinkProducer(KafkaSinkSettings(pipeline=name, outputs=(), kafka=kafka))
    try:
        producer.open()
    finally:
        producer.discard()
    left = _find(kafka, name)
    _show_open(left)
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
    """Finds the open transactions of all topics that a pipeline writes."""
    with explained(f"which topics {pipeline} writes"), TopicReader(kafka.client_config, _SECONDS) as reader:
        topics = sorted(_topics(reader, pipeline))
    return find_open_transactions(kafka, [*topics, progress_topic(pipeline)])


def _show_open(found: Sequence[OpenKafkaTransaction]) -> None:
    now_ms = epoch_ms(SystemClock().now())
    rows = [
        (
            f"{each.topic}/{each.partition}",
            str(each.stable),
            str(each.lag),
            ago(each.since_ms, now_ms),
            f"pipeline {each.pipeline}" if each.pipeline else "a producer that is not a pipeline",
        )
        for each in found
    ]
    nothing = ("no transaction is open: readers see everything that was committed",)
    Output().table([_TRANSACTIONS, *rows] if rows else [nothing])
