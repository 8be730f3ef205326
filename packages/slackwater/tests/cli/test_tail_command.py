"""``slackwater tail``: which topic is meant, and how a commit is shown."""

import json

import pytest

from slackwater.cli.commands.tail import commit_lines, topic_of
from slackwater.client import Commit
from slackwater.protocol import InputError, RegisteredView

COMMIT = Commit(source="inv", timeline=1, lsn=0x1_0000_00FF, xid=7, commit_ts_ms=1_500)
CHANGES = [
    ("", b'{"id":1}', b'{"id":1,"total":"3.50"}'),
    ("", b'{"id":2}', None),
    ("", b'{"id":3}', b"\x00\x00\x00\x00\x05\xff"),
]


def view(name: str, output: str, kind: str = "kafka") -> RegisteredView:
    return RegisteredView(
        name=name, output=output, kind=kind, format="json", output_source="", tables=(), stages=()
    )


VIEWS = [
    view("orders", "orders_topic"),
    view("shared", "one"),
    view("shared", "two"),
    view("totals", "public.totals", "postgres"),
]


def test_a_view_is_found_by_its_name_and_by_its_topic() -> None:
    assert topic_of("orders", VIEWS, ["orders_topic"]) == "orders_topic"
    assert topic_of("orders_topic", VIEWS, ["orders_topic"]) == "orders_topic"
    assert topic_of("unregistered", VIEWS, ["unregistered"]) == "unregistered"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("shared", "several pipelines publish a view named shared; specify a topic: one, two"),
        ("totals", "view totals is not in Kafka, but in postgres; `slackwater read`"),
        (
            "ordrs",
            "unknown view or topic 'ordrs'; did you mean orders",
        ),
        ("xyz", "unknown view or topic 'xyz'; known: "),
    ],
)
def test_what_cannot_be_followed_is_said(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        topic_of(name, VIEWS, ["one", "two"])


def test_a_commit_is_shown_whole() -> None:
    assert list(commit_lines(COMMIT, CHANGES, as_json=False)) == [
        "1/FF  1970-01-01 00:00:01.500000 UTC  xid 7",
        '  {"id":1}  {"id":1,"total":"3.50"}',
        '  {"id":2}  deleted',
        '  {"id":3}  "AAAAAAX/"',
    ]


def test_changes_in_a_topic_of_several_views_are_shown_with_their_views() -> None:
    changes = [("orders", b'{"id":1}', None)]
    assert list(commit_lines(COMMIT, changes, as_json=False))[1:] == ['  orders  {"id":1}  deleted']
    [line] = commit_lines(COMMIT, changes, as_json=True)
    assert json.loads(line)["documents"] == [{"view": "orders", "key": {"id": 1}, "document": None}]


def test_programs_get_an_object_for_each_commit() -> None:
    [line] = commit_lines(COMMIT, CHANGES, as_json=True)
    assert json.loads(line) == {
        "source": "inv",
        "timeline": 1,
        "lsn": "1/FF",
        "xid": 7,
        "commit_ts_ms": 1500,
        "documents": [
            {"key": {"id": 1}, "document": {"id": 1, "total": "3.50"}},
            {"key": {"id": 2}, "document": None},
            {"key": {"id": 3}, "document": "AAAAAAX/"},
        ],
    }
