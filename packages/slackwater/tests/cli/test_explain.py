"""``slackwater explain``: the text for people, the object for tools, refusals."""

import json
import shutil
from pathlib import Path

import pytest

from slackwater.cli import main

PIPELINES = Path(__file__).parents[4] / "pipelines"
ORDERS = """\
pipeline orders: 1 view over 2 tables of source inv, in 1 stage on 1 level; emit = latest, scope = strict

a batch takes 1 exchange, one per level
  level 1   stage 1

stage 1, keyed by id bigint: computes groups from their rows, joins
  reads     inventory.orders as o, by id: id bigint, customer text, status text, line_count integer,
            total numeric(12,2), created_at timestamp with time zone
  reads     inventory.order_lines as l, by order_id: id bigint, order_id bigint, product text,
            quantity integer, price numeric(10,2)
  keeps     the rows of inventory.orders and the rows of inventory.order_lines
  keeps     a digest of each key's newest document (emit = latest)
  computes  if only o changed, all rows of the key are evaluated
  computes  if only l changed, all rows of the key are evaluated
  sends     changed documents to view orders_with_lines

view orders_with_lines: topic orders_with_lines, 4 partitions; made by stage 1
  order     per key only: a plain consumer reads different keys of two commits in any order
            (docs/views.md, Several partitions)
  key       id          BIGINT
  column    id          BIGINT
  column    customer    VARCHAR
  column    status      VARCHAR
  column    line_count  INTEGER
  column    total       DECIMAL(12,2)
  column    created_at  TIMESTAMP WITH TIME ZONE
  column    lines       STRUCT(id BIGINT, product VARCHAR, quantity INTEGER, price DECIMAL(10,2))[]
"""
FILES = {
    "pipeline.toml": 'name = "p"\nsource = "inv"\n[outputs.labels]\npublish = false\n',
    "schema.sql": """
        CREATE TABLE s.items (id bigint PRIMARY KEY, kind text, price numeric(10, 2));
        CREATE TABLE s.kinds (kind text PRIMARY KEY, label text);
    """,
    "views/labels.sql": "SELECT TRANSACTIONALLY k.kind, upper(k.label) AS label FROM s.kinds k",
    "views/items.sql": (
        "SELECT TRANSACTIONALLY i.price, k.label FROM s.items i LEFT JOIN labels k ON k.kind = i.kind"
    ),
    "views/total.sql": "SELECT TRANSACTIONALLY count(*) AS n, sum(i.price) AS worth FROM s.items i",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "p"


def explained(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> str:
    assert main.run(["explain", str(folder), *options]) == 0
    return capsys.readouterr().out


def test_a_view_of_one_key_is_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, PIPELINES / "orders") == ORDERS


def test_stages_say_where_their_rows_come_from_and_go(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = explained(capsys, folder)
    assert text.startswith("pipeline p: 2 views over 2 tables of source inv, in 4 stages on 2 levels")
    assert "stage 1, keyed by id bigint: computes columns of rows\n  reads     s.items as i, by id:" in text
    assert "computes  each changed row by itself\n  sends     changed rows to stage 2 as stage 1" in text
    assert "sends     what changes add to groups to stage 4" in text
    assert "keyed by nothing: one group: adds up what changes" in text
    assert "keeps     for the one group, not its rows: the number of rows" in text
    assert "an exact sum and a number for sum(i.price)" in " ".join(text.split())


def test_stages_that_a_batch_runs_together_stand_on_one_level(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = explained(capsys, folder)
    assert (
        "a batch takes 2 exchanges, one per level\n  level 1   stages 1, 3\n  level 2   stages 2, 4\n\n"
        in text
    )
    assert json.loads(explained(capsys, folder, "--json"))["levels"] == [[1, 3], [2, 4]]


def test_a_stage_that_views_share_is_shown_once(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    dear = (
        "WITH g AS (SELECT kind, sum(price) AS worth FROM s.items GROUP BY kind) "
        "SELECT TRANSACTIONALLY k.kind, g.worth FROM s.kinds k JOIN g ON g.kind = k.kind"
    )
    (folder / "views" / "all.sql").write_text(dear.replace("JOIN", "LEFT JOIN"))
    (folder / "views" / "dear.sql").write_text(dear)
    (folder / "views" / "items.sql").unlink()
    (folder / "views" / "total.sql").unlink()
    text = explained(capsys, folder)
    assert text.startswith("pipeline p: 2 views over 2 tables of source inv, in 4 stages on 3 levels")
    assert "sends     changed rows to stage 3 as stage 2 and stage 4 as stage 2\n" in text
    assert "view all: topic all; made by stages 1, 2, 3\n" in text
    assert "view dear: topic dear; made by stages 1, 2, 4\n" in text


def test_a_column_of_the_identity_that_is_not_selected_is_in_the_record_key_only(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = explained(capsys, folder)
    view = text[text.index("view items:") : text.index("view total:")]
    assert "(in the record key only)" in view
    assert "column    price  DECIMAL(10,2)" in view


def test_a_view_that_is_not_published_has_no_topic(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    text = explained(capsys, folder)
    assert "view labels:" not in text
    assert "reads     s.kinds as k" in text


def test_hints_say_what_would_be_cheaper_and_what_runs_in_one_task(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    hints = " ".join(explained(capsys, folder).partition("hints\n")[2].split())
    assert "ALTER TABLE s.items REPLICA IDENTITY FULL would save 1 stage" in hints
    assert "ALTER TABLE s.kinds" not in hints
    assert "stage 4 has one group, so it runs in one task; what changes add to it is summed up" in hints


def test_a_hint_that_is_followed_is_gone(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    schema = folder / "schema.sql"
    schema.write_text(schema.read_text() + "ALTER TABLE s.items REPLICA IDENTITY FULL;")
    text = explained(capsys, folder)
    assert "in 3 stages" in text
    assert "would save" not in text


def test_statements_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert "SELECT" not in explained(capsys, folder)
    assert "  SQL (rows)\n    SELECT" in explained(capsys, folder, "--sql")


def test_tools_get_one_object(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = json.loads(explained(capsys, folder, "--json"))
    assert [stage["number"] for stage in found["stages"]] == [1, 2, 3, 4]
    assert found["stages"][1]["inputs"][0]["stage"] == 1
    assert found["stages"][0]["sql"]["rows"].startswith("SELECT")
    assert found["views"][1]["columns"] == {"n": "BIGINT", "worth": "DECIMAL(38,2)"}
    assert len(found["hints"]) == 2


def test_a_view_that_is_not_supported_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    view = folder / "views" / "total.sql"
    view.write_text("SELECT TRANSACTIONALLY count(*) AS n,\n  random() AS r FROM s.items i")
    assert main.run(["explain", str(folder)]) == 1
    assert f"{view}:2:3 at `random()`" in capsys.readouterr().err


def test_what_only_latest_keeps_is_not_said_of_transactions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(PIPELINES / "orders", tmp_path / "orders")
    definition = folder / "pipeline.toml"
    definition.write_text(definition.read_text().replace('"latest"  ', '"transactions"  '))
    text = explained(capsys, folder, "--sql")
    assert "emit = transactions" in text
    assert "latest" not in text
    assert "SQL (latest)" in explained(capsys, PIPELINES / "orders", "--sql"), "the test can fail"


def test_one_partition_keeps_the_order(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    definition = folder / "pipeline.toml"
    definition.write_text(definition.read_text() + "[outputs.items]\npartitions = 1\n")
    text = explained(capsys, folder)
    items, total = text.index("view items:"), text.index("view total:")
    assert "one partition: documents are read in the order" in text[items:total]
    assert "per key only" in text[total:]


def test_the_shop_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, PIPELINES / "shop")
    assert "pipeline shop: 3 views over 4 tables of source shop, in 4 stages on 2 levels" in text
    assert "sends     changed rows to stage 2 as stage 1" in text
    assert "hints" not in text


def test_a_revision_is_explained_under_its_own_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(PIPELINES / "orders", tmp_path / "orders")
    (folder / "pipeline.toml").write_text('name = "orders"\nsource = "inv"\nrevision = 2\n')
    text = explained(capsys, folder)
    assert text.startswith("pipeline orders.v2: ")
    assert "view orders_with_lines: topic orders_with_lines.v2;" in text


def test_the_documentation_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (PIPELINES.parent / "docs" / "views.md").read_text()
    shown = text.partition("$ slackwater explain pipelines/orders\n")[2].partition("```")[0]
    assert shown == explained(capsys, PIPELINES / "orders")
