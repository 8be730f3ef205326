"""``slackwater commits``."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec

from slackwater.cli.given_pipelines import OF_A_PIPELINE, pipeline_name
from slackwater.cli.topics import CommitLog
from slackwater.command.invocation import kafka_settings, lsn_of, setting, start_command
from slackwater.command.output import Output, aligned, json_option
from slackwater.protocol import (
    CommitPosition,
    InputError,
    SchemaLanguage,
    commit_schema,
    encode_commit_record,
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
from slackwater.settings.errors import CommandConfigError

_SHOWN = 20
_HEAD = ("commit", "committed at (UTC)", "xid", "documents", "where")


@click.command()
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
@click.pass_context
def commits(  # noqa: PLR0913 - click hands over each option by its name
    ctx: click.Context,
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
    settings = start_command(ctx)
    timeline = settings.timeline
    begin = None if from_lsn is None else CommitPosition(timeline, lsn_of(from_lsn, "--from"))
    asked = None if lsn is None else CommitPosition(timeline, lsn_of(lsn, "--lsn"))
    name = pipeline_name(folder, pipeline)
    kafka = kafka_settings(settings, "where the output is")
    output = Output()
    with CommitLog(kafka, name) as log:
        if place is not None:
            answer = _document(log, *place)
            _print(output, [_held(answer, f"offset {where}")], answer, as_json)
        elif asked is not None:
            answer = find_commit(*log.bounds(), log.record_from, asked)
            _print(output, list(lsn_lines(answer, asked)), answer, as_json)
        else:
            _show(output, _records(log, begin, last, follow=follow), as_json=as_json, follow=follow)


def _document(log: CommitLog, topic: str, partition: int, offset: int) -> Answer:
    low, end = log.bounds()
    return find_document(low, end, log.record_from, topic, partition, offset)


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
            batch = (
                ""
                if record.xid is not None
                else f", which covers everything since {_previous(answer.commit)}"
            )
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


def _previous(placed: PlacedCommit) -> str:
    return format_position(placed.record.previous_lsn)


def _records(
    log: CommitLog, begin: CommitPosition | None, last: int | None, *, follow: bool
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
    if as_json:
        for placed in found:
            click.echo(encode_commit_record(placed.record))
    elif follow:
        for placed in found:
            output.line("  ".join(commit_row(placed)))
    else:
        rows = [commit_row(placed) for placed in found]
        output.table([_HEAD, *rows] if rows else [("no commit records",)])


def _print(output: Output, lines: list[str], answer: Answer, as_json: bool) -> None:
    if as_json:
        record = None if answer.commit is None else msgspec.Raw(encode_commit_record(answer.commit.record))
        click.echo(msgspec.json.encode({"found": answer.found, "commit": record}))
        return
    output.lines(lines)
