"""What ``slackwater revise compare`` says, with the topic of pipelines in memory."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from slackwater.cdc.envelope import End
from slackwater.cli import main, pipelines
from slackwater.cli.commands import revise
from slackwater.cli.given_pipelines import NamedPipeline
from slackwater.cli.revisions import (
    Registered,
    have_one_history,
    named_pipeline,
    revision_status,
    time_to_catch_up,
)
from slackwater.client import PipelineOutput, ReadableStates, TypedRows, ViewSnapshot, VisibleCommit
from slackwater.client.snapshot import Key
from slackwater.command.output import Output
from slackwater.control import PipelineState, Progress, Topology, first_source, known_pipelines, make_topology
from slackwater.protocol import (
    CommitPosition,
    PipelineEntry,
    PipelineRegistration,
    SlackwaterError,
    from_epoch_ms,
)
from slackwater.settings.model import Settings
from slackwater_lab.fakes.memory import InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

VIEW = replace(REGISTRATION.views[0], name="orders", output="orders", format="json", output_source="")
FIRST = replace(REGISTRATION, views=(VIEW, replace(VIEW, name="old_one", output="old_one")))
SECOND = replace(
    REGISTRATION, pipeline="orders.v2", revision=2, run="r2", views=(replace(VIEW, output="orders.v2"),)
)
THIRD = replace(SECOND, pipeline="orders.v3", revision=3, run="r3")
FUNCTION = replace(SECOND, pipeline="orders/7f1c02aa", run="r4", revision=4)
AT = CommitPosition(1, 0x500)


def are_two(first: str, second: str) -> bool:
    assert first != second
    return False


def entries(*registrations: PipelineRegistration) -> list[PipelineEntry]:
    return [PipelineEntry(each, offset, 0) for offset, each in enumerate(registrations)]


class Fixed:
    """An output with documents at one commit."""

    def __init__(self, pipeline: str, view: str, documents: Sequence[bytes], source: str = "inv") -> None:
        self.pipeline, self._view, self._documents, self._source = pipeline, view, documents, source

    def views(self) -> Sequence[str]:
        return [self._view]

    def newest(self) -> VisibleCommit:
        return VisibleCommit(self._source, AT)

    def states(self, views: Sequence[str]) -> ReadableStates:
        assert list(views) == [self._view]
        return ReadableStates(self.newest(), from_epoch_ms(0))

    def read(self, views: Sequence[str], at: CommitPosition | None, key: Key | None) -> ViewSnapshot:
        return ViewSnapshot(self._source, at or AT, {self._view: self._documents})

    def rows(self, view: str, at: CommitPosition) -> TypedRows:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Documents of the view by pipeline, for the command."""
    log, held = InMemoryPipelineLog(), dict[str, list[bytes]]()
    for each in (FIRST, SECOND):
        log.register(each)

    @contextmanager
    def opened(_settings: Settings, pipelines: Sequence[NamedPipeline]) -> Iterator[list[PipelineOutput]]:
        yield [Fixed(each.name, each.views["orders"], held[each.name]) for each in pipelines]

    @contextmanager
    def registered(_kafka: object) -> Iterator[InMemoryPipelineLog]:
        yield log

    monkeypatch.setattr(revise, "open_outputs", opened)
    monkeypatch.setattr(pipelines, "open_pipeline_log", registered)
    return held


def asked(*arguments: str) -> int:
    return main.run(["revise", "compare", "orders", "--bootstrap", "127.0.0.1:1", *arguments])


def test_differences_are_counted_and_shown(
    documents: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    documents["orders"] = [b'{"id":1,"a":1}', b'{"id":2,"a":2}', b'{"id":3,"a":3}']
    documents["orders.v2"] = [b'{"a":1.0,"id":1}', b'{"id":2,"a":20}', b'{"id":4,"a":4}']
    assert asked("--key", "orders=id") == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["view", "commit", "equal", "different", "only", "orders", "only", "orders.v2"],
        ["orders", "1/0/500", "1", "1", "1", "1"],
        ["views", "of", "one", "revision", "only:", "old_one"],
        [],
        ["orders:", "documents", "that", "differ", "by", "column:", "a", "1"],
        ["orders", '{"id":2,"a":2}'],
        ["orders.v2", '{"id":2,"a":20}'],
        ["orders", '{"id":3,"a":3}'],
        ["orders.v2", '{"id":4,"a":4}'],
    ]


def test_revisions_that_say_the_same_are_equal(
    documents: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    documents["orders"] = documents["orders.v2"] = [b'{"id":1,"a":1}']
    assert asked("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old"], found["new"], found["is_equal"]) == ("orders", "orders.v2", True)
    assert found["views_of_one"] == ["old_one"]
    assert found["views"]["orders"]["commit_lsn"] == AT.lsn
    assert found["views"]["orders"]["equal"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--views", "old_one"], 1, "view 'old_one' is not in both orders and orders.v2"),
        (["--key", "none=id"], 1, "view 'none' is not in both"),
        (["--key", "orders"], 2, "expected VIEW=COLUMN"),
        (["--key", "orders=a,"], 2, "expected VIEW=COLUMN"),
        (["--revisions", "1"], 2, "expected two numbers"),
        (["--revisions", "1,3"], 1, "pipeline 'orders' has no revision 3; registered: 1, 2"),
        (["--revisions", "1,1"], 1, "fewer than two revisions"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    code: int,
    told: str,
    documents: dict[str, list[bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not documents
    assert asked(*arguments) == code
    assert told in capsys.readouterr().err


def test_the_two_newest_revisions_are_compared_unless_others_are_named() -> None:
    registered = Registered(entries(THIRD, FIRST, SECOND, FUNCTION), 0, are_two)
    assert registered.pair("orders", None) == registered.pair("orders", (2, 3))
    pair = registered.pair("orders", (1, 3))
    assert (pair.old, pair.new) == (FIRST, THIRD)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (replace(SECOND, source="other"), "two sources: inv and other"),
        (replace(SECOND, scope="aggregate"), "scope 'aggregate'"),
    ],
)
def test_revisions_that_no_commit_shows_are_refused(second: PipelineRegistration, told: str) -> None:
    with pytest.raises(SlackwaterError, match=told):
        Registered(entries(FIRST, second), 0, are_two).pair("orders", None)


def test_outputs_are_named_as_they_know_themselves() -> None:
    table = replace(VIEW, kind="postgres", output="public.orders")
    assert named_pipeline(SECOND) == NamedPipeline("orders.v2", "kafka", {"orders": "orders.v2"})
    tables = named_pipeline(replace(SECOND, views=(table,)))
    assert tables == NamedPipeline("orders.v2", "postgres", {"orders": "orders"})
    with pytest.raises(SlackwaterError, match="of kind kafka, postgres"):
        named_pipeline(replace(SECOND, views=(VIEW, replace(table, name="t"))))
    with pytest.raises(SlackwaterError, match="of kind function"):
        named_pipeline(replace(SECOND, views=(replace(VIEW, kind="function"),)))


@pytest.mark.parametrize(
    ("before", "behind", "told"),
    [
        (10_000, 4_000, 2_000),
        (4_000, 10_000, None),
        (5, 5, None),
        (None, 5, None),
        (5, None, None),
        (9, 0, 0),
    ],
)
def test_the_time_to_catch_up_is_told_from_what_was_caught_up(
    before: int | None, behind: int | None, told: int | None
) -> None:
    assert time_to_catch_up(before, behind, 3_000) == told


def test_revisions_are_shown_with_who_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    log = InMemoryPipelineLog()
    for each in (FIRST, SECOND, FUNCTION):
        log.register(each)
    earlier, now = (make_topology(log.read(), {}, now_ms) for now_ms in (0, 3_000))
    found = revision_status(earlier, now, "orders", {"topics": "orders.v2"})
    assert [(each.pipeline, each.read_by) for each in found] == [("orders", ()), ("orders.v2", ("topics",))]
    Output().lines(revise.status_lines(found))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2][:2] + lines[2][-1:] == ["2", "orders.v2", "topics"]
    with pytest.raises(SlackwaterError, match="unknown pipeline 'none'"):
        revision_status(earlier, now, "none", {})


def test_revisions_of_a_chain_have_the_commits_of_the_source_at_its_beginning() -> None:
    def written(run: PipelineRegistration, source: str) -> PipelineRegistration:
        return replace(run, views=(replace(run.views[0], output_source=source),))

    up = (written(FIRST, "shop"), written(SECOND, "shop_v2"))
    down = tuple(
        replace(each, base_name="totals", pipeline=name, source=source)
        for each, name, source in zip(
            (FIRST, SECOND), ("totals", "totals.v2"), ("shop", "shop_v2"), strict=True
        )
    )
    pair = Registered(entries(*up, *down), 0, are_two).pair("totals", None)
    assert (pair.old.source, pair.new.source, pair.first_source) == ("shop", "shop_v2", "inv")
    assert Registered(entries(*up, *down), 0, are_two).source("totals") == "inv"
    assert Registered(entries(up[0], *down), 0, are_two).source("totals") is None
    with pytest.raises(SlackwaterError, match="the revisions are of two sources: shop and shop_v2"):
        Registered(entries(up[0], *down), 0, are_two).pair("totals", None)
    # A circle, as of pipelines whose outputs were named again, ends somewhere.
    circle = (replace(up[0], source="a"), replace(written(up[1], "a"), source="shop"))
    assert Registered(entries(*circle, *down), 0, are_two).source("none") is None
    assert first_source(known_pipelines(entries(*circle), 0), "shop") in ("a", "shop")


def test_revisions_of_two_sources_of_one_database_have_its_commits() -> None:
    other = replace(SECOND, source="inv_again")
    asked: list[tuple[str, str]] = []

    def is_one(first: str, second: str) -> bool:
        asked.append((first, second))
        return True

    assert Registered(entries(FIRST, other), 0, is_one).pair("orders", None).first_source == "inv"
    assert Registered(entries(other, FIRST), 0, is_one).source("orders") == "inv"
    assert asked == [("inv", "inv_again")] * 2
    later = replace(other, timeline=FIRST.timeline + 1)
    with pytest.raises(SlackwaterError, match="are of two sources"):
        Registered(entries(FIRST, later), 0, is_one).pair("orders", None)
    assert Registered(entries(FIRST, later), 0, is_one).source("orders") is None


def end(xid: int, commit_lsn: int) -> End:
    return End(xid, commit_lsn, 0, {})


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        ([(7, 700), (8, 800), (9, 900)], [(8, 800), (9, 900), (10, 1_000)], True),
        ([(7, 700), (9, 900)], [(8, 800), (9, 900)], True),
        ([(7, 700)], [(8, 800)], False),
        ([], [(8, 800)], False),
        ([(7, 700)], [], False),
        ([(7, 700), (8, 800)], [(7, 700), (8, 801)], False),
        ([(7, 700), (8, 800)], [(7, 700), (9, 800)], False),
        ([(7, 700)], [(7, 701)], False),
    ],
    ids=["later", "other tables", "nothing in common", "none", "none yet", "a copy", "a commit", "numbers"],
)
def test_connectors_of_one_database_have_transactions_in_common_and_none_that_differ(
    first: list[tuple[int, int]], second: list[tuple[int, int]], are_one: bool
) -> None:
    one, other = ([end(*each) for each in ends] for ends in (first, second))
    assert have_one_history(one, other) is have_one_history(iter(other), iter(one)) is are_one


def test_a_rollout_follows_a_revision_until_it_has_caught_up(capsys: pytest.CaptureFixture[str]) -> None:
    log = InMemoryPipelineLog()
    log.register(FIRST)
    base = make_topology(log.read(), {}, 0)
    log.register(SECOND)
    node = next(n for n in make_topology(log.read(), {}, 0).pipelines if n.name == "orders.v2")
    assert node.state is PipelineState.RUNNING

    def picture(behind_ms: int | None, made_ms: int, **changes: Any) -> Topology:
        behind = replace(node, progress=Progress.BEHIND, behind_ms=behind_ms, **changes)
        return replace(base, made_ms=made_ms, pipelines=(*base.pipelines, behind))

    gone = picture(None, 2_500, state=PipelineState.VANISHED)
    told = [base, picture(60_000, 1_000), picture(40_000, 2_000), gone, picture(4_999, 3_000)]
    waits: list[float] = []
    revise.follow_catch_up(iter(told).__next__, "orders", 2, Output(), waits.append)
    assert waits == [1, 1, 1, 1]
    assert capsys.readouterr().out.splitlines() == [
        "waiting until orders runs with revision = 2",
        "orders.v2 is 60.0 s behind and will catch up in about -",
        "orders.v2 is 40.0 s behind and will catch up in about -",
        "waiting until orders.v2 is started again: its state is vanished",
    ]
    pictures = iter(
        [picture(60_000, 0), picture(40_000, 1_000), picture(None, 2_000, state=PipelineState.FAILED)]
    )
    with pytest.raises(SlackwaterError, match="is not running: failed"):
        revise.follow_catch_up(pictures.__next__, "orders", 2, Output(), waits.append)
    assert "orders.v2 is 40.0 s behind and will catch up in about 2.0 s" in capsys.readouterr().out
