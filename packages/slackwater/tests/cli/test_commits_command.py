"""What ``slackwater commits`` says without a server."""

import json
from collections.abc import Mapping

import pytest

from slackwater.cli import main
from slackwater.cli.commands.commits import commit_row, lsn_lines, parse_place
from slackwater.protocol import CommitPosition, CommitRecord, InputError, OffsetRange
from slackwater.protocol.commit_lookup import Answer, Found, PlacedCommit


def placed(
    xid: int | None = None, offsets: Mapping[str, Mapping[int, OffsetRange]] | None = None
) -> PlacedCommit:
    record = CommitRecord(
        pipeline="p",
        source="s",
        timeline=1,
        commit_lsn=32,
        previous_lsn=16,
        xid=xid,
        commit_ts_ms=1,
        offsets=offsets or {},
        skipped=(5,),
    )
    return PlacedCommit(3, record)


@pytest.mark.parametrize(("language", "name"), [("json", "title"), ("avro", "name")])
def test_the_schema_is_printed_without_a_server(
    capsys: pytest.CaptureFixture[str], language: str, name: str
) -> None:
    assert main.run(["commits", "--schema", language]) == 0
    assert json.loads(capsys.readouterr().out)[name] == "commit"


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["p", "--pipeline", "p"],
        ["--pipeline", "p", "--last", "1", "--from", "1"],
        ["--pipeline", "p", "--follow", "--lsn", "1"],
    ],
)
def test_questions_that_contradict_each_other_are_wrong_usage(flags: list[str]) -> None:
    assert main.run(["commits", "--bootstrap", "127.0.0.1:1", *flags]) == 2


@pytest.mark.parametrize("text", ["orders", "orders/0", "orders/0/x", "/0/1", "orders/0/1/2", "orders/-1/2"])
def test_a_place_is_a_topic_a_partition_and_an_offset(text: str) -> None:
    assert parse_place("orders/0/17") == ("orders", 0, 17)
    with pytest.raises(InputError, match="expected TOPIC/PARTITION/OFFSET"):
        parse_place(text)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Found.NO_DOCUMENT, "transaction marker"),
        (Found.NO_COMMIT, "no commit record covers it"),
        (Found.SWEPT, "removed by retention"),
        (Found.BEFORE_FIRST, "before everything"),
    ],
)
def test_every_answer_has_words_of_its_own(found: Found, told: str) -> None:
    (line,) = lsn_lines(Answer(found, placed()), CommitPosition(1, 20))
    assert told in line
    (line,) = lsn_lines(Answer(Found.NOT_YET), CommitPosition(1, 20))
    assert "not visible yet" in line


def test_of_a_batch_it_is_said_what_it_stands_for() -> None:
    offsets = {"out": {2: OffsetRange(1, 7, 7)}}
    lines = list(lsn_lines(Answer(Found.HELD, placed(offsets=offsets)), CommitPosition(1, 20)))
    assert lines[0].endswith("which covers everything since 0/10")
    assert lines[1:] == [
        "no commit record ends at that LSN; this one covers (0/10, 0/20]",
        "out/2  begins at offset 7",
    ]
    exact = list(lsn_lines(Answer(Found.HELD, placed(xid=9)), CommitPosition(1, 32)))
    assert exact == ["LSN 1/0/20: in commit 1/0/20 (00000001-0000000000000020)", "it contains no documents"]


def test_a_row_of_the_table_names_skipped_transactions() -> None:
    assert commit_row(placed(xid=9)) == ("1/0/20", "1970-01-01 00:00:00.001", "9", "0", "-  skipped xids: 5")
