"""The view by itself: rows in, documents out, no Spark and no Kafka; and its documents with schemas."""

import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
import pytest

from slackwater.engine.local import LocalEngine
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.sinks import output_forms
from slackwater.sql.plan import EnginePlan

FOLDER = Path(__file__).parents[1]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def plan() -> EnginePlan:
    return load_pipeline(FOLDER).plan


def document(plan: EnginePlan, order: Row | None, lines: list[Row]) -> Any:
    """The view's document for one order; None if the view has none."""
    changes = [("inventory.order_lines", "c", 1, None, json.dumps(line).encode()) for line in lines]
    if order is not None:
        changes.append(("inventory.orders", "c", 1, None, json.dumps(order).encode()))
    documents = LocalEngine(plan).run(changes).get(0, [])
    return json.loads(documents[0][2] or b"null") if documents else None


def order_row(**changes: Any) -> Row:
    order = {"id": 1, "customer": "ada", "status": "new", "line_count": 2, "total": "30.50"}
    return {**order, "created_at": "2026-01-02T03:04:05.678900Z", **changes}


def line_row(line_id: int, **changes: Any) -> Row:
    return {"id": line_id, "order_id": 1, "product": "pen", "quantity": 1, "price": "1.50", **changes}


def test_an_order_has_its_lines_by_id(plan: EnginePlan) -> None:
    lines = [line_row(12, quantity=2, price="10.25"), line_row(11, price="10.00")]
    assert document(plan, order_row(), lines) == {
        "id": 1,
        "customer": "ada",
        "status": "new",
        "line_count": 2,
        "total": "30.50",
        "created_at": "2026-01-02T03:04:05.678900Z",
        "lines": [
            {"id": 11, "product": "pen", "quantity": 1, "price": "10.00"},
            {"id": 12, "product": "pen", "quantity": 2, "price": "10.25"},
        ],
    }


def test_an_order_without_lines_has_an_empty_list(plan: EnginePlan) -> None:
    assert document(plan, order_row(line_count=0, total="0.00"), [])["lines"] == []


def test_lines_without_an_order_make_no_document(plan: EnginePlan) -> None:
    assert document(plan, None, [line_row(11)]) is None


def test_documents_are_keyed_by_the_order(plan: EnginePlan) -> None:
    assert plan.views[0].key == ("id",)


def with_format(folder: Path, value: str) -> Path:
    """The pipeline with the line of its settings that is a comment, for one of the two formats."""
    shutil.copytree(FOLDER, folder)
    settings = (folder / "pipeline.toml").read_text()
    assert '# format = "avro"' in settings
    (folder / "pipeline.toml").write_text(settings.replace('# format = "avro"', f'format = "{value}"'))
    return folder


@pytest.mark.parametrize("value", ["avro", "json-schema"])
def test_with_a_format_that_has_schemas_readers_see_the_same_documents(value: str, tmp_path: Path) -> None:
    definition = load_pipeline(with_format(tmp_path / "orders", value))
    form = output_forms(definition)[0]
    changes = [
        ("inventory.orders", "c", 1, None, json.dumps(order_row()).encode()),
        ("inventory.order_lines", "c", 1, None, json.dumps(line_row(11)).encode()),
    ]
    (plain,) = LocalEngine(definition.plan).run(changes)[0]
    expected = json.loads(plain[2] or b"")
    assert form.value_schema is not None
    schema = json.loads(form.value_schema.text)
    encode = form.encoder()
    if value == "json-schema":
        assert encode is None  # the documents stay what they are
        jsonschema.validate(expected, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**expected, "total": 30.5}, schema)
        return
    assert encode is not None
    read: Any = fastavro.schemaless_reader(BytesIO(encode(plain)[2] or b""), schema, None)
    assert (read["id"], str(read["total"])) == (1, "30.50")
    assert read["created_at"].isoformat() == "2026-01-02T03:04:05.678900+00:00"
    assert [(line["id"], str(line["price"])) for line in read["lines"]] == [(11, "1.50")]
