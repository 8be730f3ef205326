"""Which views may share a topic, and which are refused, from the definition of a pipeline."""

from dataclasses import replace
from pathlib import Path

import pytest

from slackwater.kafka.registry import SubjectStrategy
from slackwater.outputs.contract import Emit
from slackwater.pipeline import PipelineDefinition, load_pipeline
from slackwater.pipeline.definition import pipeline_fingerprint, rights_of
from slackwater.protocol import ConfigError

SCHEMA = """
CREATE TABLE s.customers (id bigint PRIMARY KEY, name text NOT NULL, vip float);
CREATE TABLE s.orders (id bigint PRIMARY KEY, customer int, note text);
"""
CUSTOMERS = "SELECT TRANSACTIONALLY c.id AS customer, c.name, c.vip FROM s.customers c"
ORDERS = "SELECT TRANSACTIONALLY o.id AS number, o.customer::bigint AS customer, o.note FROM s.orders o"
HEAD = 'name = "p"\nsource = "s"\nemit = "{emit}"\n'
BOTH = HEAD + (
    '[outputs.orders]\ntopic = "t"\npartition_by = "customer"\n'
    '[outputs.customers]\ntopic = "t"\npartition_by = "customer"\n'
)


def load(
    folder: Path, toml: str = BOTH, customers: str = CUSTOMERS, orders: str = ORDERS, emit: str = "latest"
) -> PipelineDefinition:
    (folder / "views").mkdir(exist_ok=True)
    (folder / "schema.sql").write_text(SCHEMA)
    (folder / "views" / "customers.sql").write_text(customers)
    (folder / "views" / "orders.sql").write_text(orders)
    (folder / "pipeline.toml").write_text(toml.format(emit=emit))
    return load_pipeline(folder)


def test_views_that_are_partitioned_by_a_column_share_a_topic(tmp_path: Path) -> None:
    """Views are numbered by their names, and written in the order of pipeline.toml."""
    definition = load(tmp_path)
    assert [(each.view, each.name, each.place) for each in definition.outputs] == [
        ("customers", "t", 1),
        ("orders", "t", 0),
    ]
    assert [view.key for view in definition.plan.views] == [("customer",), ("number", "customer")]
    rights = [right.name for right in rights_of(definition) if str(right.operation) == "Write"]
    assert rights.count("t") == rights.count("t.commits") == 1


def test_a_view_alone_in_its_topic_may_be_partitioned_by_a_column(tmp_path: Path) -> None:
    toml = HEAD + '[outputs.orders]\npartition_by = "customer"\n'
    definition = load(tmp_path, toml)
    assert [view.key for view in definition.plan.views] == [("customer",), ("number", "customer")]
    before = load(tmp_path, HEAD).plan.views
    assert [view.key for view in before] == [("customer",), ("number",)]
    assert before[0].fingerprint == definition.plan.views[0].fingerprint, "the other view is what it was"


def test_another_column_needs_another_revision(tmp_path: Path) -> None:
    definition = replace(load(tmp_path), buckets=1)
    views = pipeline_fingerprint(definition, 1)["views"]
    assert isinstance(views, dict)
    assert views["orders"]["topic"] == "t (partitioned by customer)"


SHARED = "views 'customers' and 'orders' share topic 't': "


def with_first(line: str) -> str:
    """The first output has another line."""
    return BOTH.replace('"t"\n', f'"t"\n{line}\n', 1)


AVRO = BOTH.replace('topic = "t"', 'topic = "t"\nformat = "avro"')


@pytest.mark.parametrize(
    ("toml", "customers", "orders", "says"),
    [
        (BOTH, CUSTOMERS, ORDERS.replace("::bigint", ""), SHARED + "their columns partition_by are of types"),
        (BOTH, CUSTOMERS, ORDERS.replace("AS customer", "AS buyer"), "a column of documents and key"),
        (
            BOTH,
            CUSTOMERS,
            "SELECT TRANSACTIONALLY o.id AS customer, o.note FROM s.orders o",
            SHARED + "both have the key customer, so a document of one would replace one of the other",
        ),
        (
            BOTH.replace('"customer"', '"vip"'),
            CUSTOMERS,
            ORDERS.replace("::bigint AS customer", "::float AS vip"),
            "equal values of type DOUBLE as different texts",
        ),
        (with_first("partitions = 2"), CUSTOMERS, ORDERS, SHARED + "they differ in partitions"),
        (with_first("cloudevents = true"), CUSTOMERS, ORDERS, SHARED + "they differ in cloudevents"),
        (with_first('format = "avro"'), CUSTOMERS, ORDERS, SHARED + "they differ in format"),
        (AVRO, CUSTOMERS, ORDERS, SHARED + "the subject that is named after the topic is that of one schema"),
        (
            with_first('key_format = "string"'),
            CUSTOMERS,
            ORDERS,
            "view 'orders': partition_by = 'customer': the keys of the output are not JSON objects",
        ),
        (
            BOTH.replace('"t"\n', '"a.b.c"\nformat = "debezium"\n'),
            CUSTOMERS,
            ORDERS,
            "the keys of the output are not JSON objects as in documents",
        ),
        (
            BOTH.replace('"t"\n', '"t"\nsubject_strategy = "record"\n'),
            CUSTOMERS,
            ORDERS,
            "subject_strategy: it has no schemas",
        ),
        (
            BOTH.replace('partition_by = "customer"\n', "", 1),
            CUSTOMERS,
            ORDERS,
            "both write topic 't'; give each view its own; views that are partitioned by a column",
        ),
        (
            BOTH.replace('topic = "t"', 'topic = "t.commits"', 1),
            CUSTOMERS,
            ORDERS,
            "both write topic 't.commits'",
        ),
        ('scope = "aggregate"\n' + BOTH, CUSTOMERS, ORDERS, SHARED + "in this scope, documents of a batch"),
    ],
)  # fmt: skip
def test_what_cannot_share_a_topic_is_refused_with_the_reason(
    tmp_path: Path, toml: str, customers: str, orders: str, says: str
) -> None:
    emit = "transactions" if "debezium" in toml else "latest"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, customers, orders, emit)
    assert ": outputs: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize("strategy", ["record", "topic-record"])
def test_schemas_of_a_shared_topic_have_subjects_of_their_own(tmp_path: Path, strategy: str) -> None:
    toml = AVRO.replace('"avro"', f'"avro"\nsubject_strategy = "{strategy}"')
    definition = load(tmp_path, toml)
    assert {each.subject_strategy for each in definition.outputs} == {SubjectStrategy(strategy)}
    assert definition.emit is Emit.LATEST
