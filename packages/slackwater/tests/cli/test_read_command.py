"""What ``slackwater read`` and ``slackwater wait`` say without a server."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from slackwater.cli import main
from slackwater.cli.commands.read import answer, answer_rows, document_lines, parse_key, snapshot_json
from slackwater.cli.given_pipelines import (
    INDEXES,
    KINDS,
    NamedPipeline,
    named_pipelines,
    names_in_outputs,
    open_outputs,
)
from slackwater.cli.pipelines import pipelines_of
from slackwater.client import ViewSnapshot, VisibleCommit
from slackwater.outputs.contract import SinkKind
from slackwater.protocol import CommitPosition, ConfigError, InputError
from slackwater.settings.errors import CommandConfigError
from slackwater.settings.model import KafkaSection, Settings
from slackwater_lab.fakes.memory import InMemoryPipelineLog
from slackwater_lab.fakes.topics import REGISTRATION

PIPELINES = Path(__file__).parents[4] / "pipelines"
AT = CommitPosition(1, 0x153D218)


def test_the_kinds_are_those_that_pipelines_can_have() -> None:
    assert [*KINDS, INDEXES] == [kind.value for kind in SinkKind]


@pytest.mark.parametrize("command", [("read",), ("wait", "--lsn", "0/1")])
def test_search_indexes_are_refused_by_name(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*command, "--pipeline", "p", "--kind", "opensearch"]) == 1
    assert "pipeline 'p' writes search indexes, which are not read here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "kind", "views"),
    [
        ("orders", "kafka", {"orders_with_lines": "orders_with_lines"}),
        ("order_totals", "kafka", {"order_totals": "order_totals.public.order_totals"}),
        ("shop_tables", "postgres", {"order_details": "order_details", "product_sales": "product_sales"}),
        (
            "shop_lake",
            "delta",
            {"order_details": "shop_views.order_details", "product_sales": "shop_views.product_sales"},
        ),
    ],
)
def test_a_folder_says_where_its_views_are(folder: str, kind: str, views: dict[str, str]) -> None:
    assert named_pipelines([PIPELINES / folder], [], "iceberg") == [NamedPipeline(folder, kind, views)]


def test_a_pipeline_that_nobody_has_registered_is_an_error_with_what_may_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = InMemoryPipelineLog()
    log.register(REGISTRATION)
    monkeypatch.setattr("slackwater.cuts.PipelineLog", lambda *_, **__: log)
    monkeypatch.setattr("slackwater.client.TopicOutput", lambda *_: SimpleNamespace(close=lambda: None))
    settings = Settings(kafka=KafkaSection(bootstrap="h:1"))

    def fail(name: str, problem: str) -> None:
        with open_outputs(settings, [NamedPipeline(name, "kafka")]):
            raise ConfigError(problem, "check it")

    with pytest.raises(InputError, match=r"unknown pipeline 'ordrs'; did you mean orders\?"):
        fail("ordrs", "no pipeline 'ordrs' has written to this Kafka")
    with pytest.raises(ConfigError, match="the topic is compacted"):
        fail("orders", "the topic is compacted")


def test_all_pipelines_that_derive_from_a_database_are_given_by_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = InMemoryPipelineLog()
    view = replace(
        REGISTRATION.views[0], name="totals", output="totals.public.totals", output_source="totals"
    )
    root = replace(REGISTRATION, pipeline="totals", run="1", views=(view,))
    table = replace(view, name="sizes", output="s.sizes", kind="postgres", output_source="")
    in_lake = replace(table, name="n", output="s.n", kind="delta")
    for each in (
        root,
        replace(root, pipeline="sizes", run="2", source="totals", views=(table,)),
        replace(root, pipeline="names", run="3", views=(in_lake,)),
        replace(root, pipeline="other", run="4", source="shop", views=(table,), scope="aggregate"),
    ):
        log.register(each)
    monkeypatch.setattr("slackwater.cli.pipelines.PipelineLog", lambda *_, **__: log)
    settings = Settings(kafka=KafkaSection(bootstrap="h:1"))
    assert pipelines_of(settings, [], [], "kafka", REGISTRATION.source) == [
        NamedPipeline("names", "delta", {"n": "s.n"}),
        NamedPipeline("sizes", "postgres", {"sizes": "sizes"}),
        NamedPipeline("totals", "kafka", {"totals": "totals.public.totals"}),
    ]
    (other,) = pipelines_of(settings, [], [], "kafka", "shop")
    assert not other.is_of_one_commit
    with pytest.raises(InputError, match=r"unknown source 'totals'.*beginning of the chain"):
        pipelines_of(settings, [], [], "kafka", "totals")
    with pytest.raises(CommandConfigError, match="--source was combined with pipelines"):
        pipelines_of(settings, [], ["a"], "kafka", "inv")
    assert pipelines_of(settings, [], ["a"], "kafka", None) == [NamedPipeline("a", "kafka")]


def test_pipelines_are_given_by_folder_or_name_and_once() -> None:
    assert named_pipelines([], ["a", "b"], "delta") == [
        NamedPipeline("a", "delta"),
        NamedPipeline("b", "delta"),
    ]
    with pytest.raises(CommandConfigError, match="no pipeline was specified"):
        named_pipelines([], [], "kafka")
    with pytest.raises(CommandConfigError, match="'orders' is specified twice"):
        named_pipelines([PIPELINES / "orders"], ["orders"], "kafka")


def test_views_are_named_as_in_the_folder_or_as_in_the_output() -> None:
    one = NamedPipeline("one", "kafka", {"orders": "one.orders", "lines": "lines"})
    two = NamedPipeline("two", "delta", {"orders": "views.orders", "totals": "views.totals"})
    assert names_in_outputs(["totals", "lines", "one.orders", "x"], [one, two]) == [
        "views.totals",
        "lines",
        "one.orders",
        "x",
    ]
    with pytest.raises(
        CommandConfigError, match=r"several pipelines have a view 'orders'; .* one\.orders, views"
    ):
        names_in_outputs(["orders"], [one, two])


def test_columns_of_a_key_are_numbers_texts_or_nothing() -> None:
    texts = ["id=17", "name=a=b", 'code="17"', "at=2026-01-01", "none=null", "empty="]
    assert parse_key(texts) == {
        "id": 17,
        "name": "a=b",
        "code": "17",
        "at": "2026-01-01",
        "none": None,
        "empty": "",
    }
    assert parse_key([]) is None


@pytest.mark.parametrize("texts", [["id"], ["=1"], ["id=1", "id=2"]])
def test_a_key_that_is_no_column_and_value_is_refused(texts: list[str]) -> None:
    with pytest.raises(CommandConfigError, match="expected COLUMN=VALUE, each column once"):
        parse_key(texts)


def test_documents_keep_every_digit() -> None:
    documents = [b'{"id":2,"total":1.10}', b'{"id":1,"total":123456789012345678901234567890.10}']
    found = snapshot_json(ViewSnapshot("inv", AT, {'a"b': documents, "empty": []}))
    assert json.loads(found, parse_float=Decimal) == {
        "source": "inv",
        "id": "00000001-000000000153D218",
        "timeline": 1,
        "commit_lsn": 0x153D218,
        "views": {
            'a"b': [
                {"id": 1, "total": Decimal("123456789012345678901234567890.10")},
                {"id": 2, "total": Decimal("1.10")},
            ],
            "empty": [],
        },
    }


def test_a_snapshot_at_several_commits_says_so() -> None:
    later = CommitPosition(1, AT.lsn + 1)
    found = ViewSnapshot("inv", AT, {"a": [b"1"], "b": []}, {"a": AT, "b": later})
    shown = json.loads(snapshot_json(found))
    assert (shown["id"], shown["ids"]) == (
        "00000001-000000000153D218",
        {"a": "00000001-000000000153D218", "b": "00000001-000000000153D219"},
    )
    assert "ids" not in json.loads(snapshot_json(replace(found, positions={"a": AT, "b": AT})))


def test_documents_that_need_a_registry_are_shown_as_bytes() -> None:
    assert document_lines([b"{}", b"\0\0\0\0\1\2"]) == ['"AAAAAAEC"', "{}"]


def test_the_answer_of_wait_says_how_far_each_pipeline_is() -> None:
    shown = {
        "a": VisibleCommit("inv", AT),
        "b": VisibleCommit("inv", CommitPosition(1, 5)),
        "c": None,
    }
    assert answer_rows(AT, shown, is_visible=False) == [
        ("not visible: 1/0/153D218",),
        ("a", "shows 1/0/153D218", ""),
        ("b", "shows 1/0/5", "behind"),
        ("c", "shows nothing yet", "behind"),
    ]
    assert answer(AT, shown, is_visible=True) == {
        "visible": True,
        "id": "00000001-000000000153D218",
        "pipelines": {"a": "00000001-000000000153D218", "b": "00000001-0000000000000005", "c": None},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["read"],
        ["read", "--pipeline", "p", "--lsn", "1", "--lease", "4f"],
        ["read", "--pipeline", "p", "--lsn", "1", "--level", "uncommitted"],
        ["read", "--pipeline", "p", "--level", "repeatable"],
        ["read", "--pipeline", "p", "--key", "id"],
        ["read", "--pipeline", "p", "--timeout", "-1"],
        ["read", "--pipeline", "p", "--source", "inv"],
        ["read", "--pipeline", "p", "--sql", "SELECT 1", "--views", "v"],
        ["read", "--pipeline", "p", "--sql", "SELECT 1", "--key", "id=1"],
        ["read", "--pipeline", "p", "--sql", "SELECT 1", "--level", "uncommitted"],
        ["read", "--pipeline", "p", "--kind", "mysql"],
        ["read", "--pipeline", "p"],
        ["read", "--pipeline", "p", "--kind", "postgres"],
        ["read", "--pipeline", "p", "--kind", "delta"],
        ["read", "--pipeline", "p", "--kind", "iceberg"],
        ["wait", "--lsn", "1"],
        ["wait", "--pipeline", "p"],
    ],
)
def test_what_is_missing_or_contradicts_itself_is_wrong_usage(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(arguments) == 2


def test_a_place_that_is_not_said_is_named_with_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["read", "--pipeline", "p", "--kind", "delta"]) == 2
    told = capsys.readouterr().err
    assert "missing setting delta.location" in told
    assert "SLACKWATER_DELTA_LOCATION" in told


def test_an_lsn_is_read_as_postgresql_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["wait", "--pipeline", "p", "--lsn", "soon", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "--lsn takes the LSN of a commit, as PostgreSQL writes it (0/153D218)" in capsys.readouterr().err


def test_views_that_no_commit_shows_together_are_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    (folder / "views").mkdir(parents=True)
    (folder / "pipeline.toml").write_text('name = "p"\nsource = "inv"\nscope = "aggregate"\n')
    (folder / "schema.sql").write_text("CREATE TABLE s.t (id bigint PRIMARY KEY);")
    (folder / "views" / "v.sql").write_text("SELECT TRANSACTIONALLY id FROM s.t")
    assert main.run(["read", str(folder), "--bootstrap", "127.0.0.1:1"]) == 1
    assert 'has scope "aggregate"' in capsys.readouterr().err
