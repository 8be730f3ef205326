import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from slackwater.engine.settings import Scope
from slackwater.outputs.contract import Emit, Format, KeyFormat, SinkKind
from slackwater.outputs.search.ledger import index_of
from slackwater.pipeline import PipelineDefinition, ViewOutput, load_pipeline, pipeline_definition
from slackwater.pipeline.checkpoint import Checkpoint, fingerprint_changes
from slackwater.pipeline.definition import keys_move, pipeline_fingerprint, rights_of
from slackwater.pipeline.explain import explain, explanation_lines
from slackwater.pipeline.settings import revision_checkpoint
from slackwater.pipeline.toml_table import MAX_FILE_BYTES
from slackwater.protocol import ConfigError
from slackwater.protocol.keys import search_ledger
from slackwater.sql.errors import SqlTextError
from slackwater.sql.plan import DocumentsOutput
from slackwater.sql.postgres import parse_catalog

ORDERS_PIPELINE = Path(__file__).parents[4] / "pipelines" / "orders"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the orders pipeline to spoil."""
    copy = tmp_path / "orders"
    shutil.copytree(ORDERS_PIPELINE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def write(folder: Path, text: str) -> None:
    (folder / "pipeline.toml").write_text(text)


def test_the_orders_pipeline_loads() -> None:
    definition = load_pipeline(ORDERS_PIPELINE)
    assert (definition.name, definition.source, definition.emit) == ("orders", "inv", Emit.LATEST)
    assert definition.outputs == (ViewOutput("orders_with_lines", "orders_with_lines", 4),)
    assert (definition.buckets, definition.revision) == (None, 1)
    assert definition.tables == ("inventory.order_lines", "inventory.orders")


def test_only_name_and_source_are_required(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"')
    definition = load_pipeline(folder)
    assert (definition.emit, definition.buckets) == (Emit.LATEST, None)
    assert definition.outputs == (ViewOutput("orders_with_lines", "orders_with_lines"),)


@pytest.mark.parametrize(
    ("name", "index", "says"),
    [
        ("Shop", "i", r"name: an index is named after it: 'Shop': expected lower-case letters"),
        ("-shop", "i", r"name: an index is named after it: '-shop'"),
        ("s" * 151, "i", r"name: an index is named after it: 's+': .* at most 150"),
        *(
            ("shop", index, f"outputs: index of view 'orders_with_lines': {index!r}: expected lower-case")
            for index in ("Orders", "_i", "-i", "+i", ".i", "i/j", "i j", "i#", "i:", "i*", "ä", "i" * 151)
        ),
        ("shop", "slackwater.shop", "index of view 'orders_with_lines': 'slackwater.shop'"),
        ("shop", "shop.orders_with_lines", "index of view 'orders_with_lines': 'shop.orders_with_lines'"),
    ],
)
def test_names_that_a_cluster_refuses_or_that_have_another_meaning_are_refused(
    folder: Path, name: str, index: str, says: str
) -> None:
    write(folder, f'name = "{name}"\nsource = "inv"\n[output]\nkind = "opensearch"\nindex = "{index}"')
    with pytest.raises(ConfigError, match=re.escape(says) if "+" in index or "*" in index else says):
        load_pipeline(folder)


def test_the_longest_names_are_accepted_by_a_cluster_with_what_is_added(folder: Path) -> None:
    name, index = "s" * 147, "i" * 150
    write(
        folder,
        f'name = "{name}"\nrevision = 2\nsource = "inv"\n[output]\nkind = "opensearch"\nindex = "{index}"',
    )
    definition = load_pipeline(folder)
    for alias in (definition.outputs[0].name, search_ledger(definition.name)):
        assert len(f"{index_of(alias)}.run-{2**31}-{'0' * 32}") <= 255
    assert (definition.base_name, definition.name) == (name, f"{name}.v2")


SOURCE = 'name = "o"\nsource = "inv"\nemit = "transactions"\n[output]\nformat = "debezium"\n'


def test_documents_of_an_output_that_is_a_source_come_with_those_before_them(folder: Path) -> None:
    write(folder, SOURCE)
    definition = load_pipeline(folder)
    assert definition.outputs[0].name == "o.public.orders_with_lines"
    assert [stage.output for stage in definition.plan.stages] == [DocumentsOutput(0, with_before=True)]
    before = pipeline_fingerprint(replace(definition, buckets=1), 1)
    write(folder, SOURCE.replace("debezium", "json") + 'topic = "o.public.orders_with_lines"')
    now = pipeline_fingerprint(replace(load_pipeline(folder), buckets=1), 1)
    checkpoint = Checkpoint(str(folder / "checkpoint"))
    checkpoint.claim(before)
    (change,) = checkpoint.changes(now)
    assert change[1:] == ("o.public.orders_with_lines (debezium)", "o.public.orders_with_lines")


def test_another_form_of_commit_records_needs_another_revision(folder: Path) -> None:
    """So the topic in Avro has all commits of the output."""
    checkpoint = Checkpoint(str(folder / "checkpoint"))
    write(folder, 'name = "o"\nsource = "inv"')
    checkpoint.claim(pipeline_fingerprint(replace(load_pipeline(folder), buckets=1), 1))
    write(folder, 'name = "o"\nsource = "inv"\n[output]\ncommit_format = "avro"')
    definition = replace(load_pipeline(folder), buckets=1)
    (change,) = checkpoint.changes(pipeline_fingerprint(definition, 1))
    assert change[1:] == ("orders_with_lines", "orders_with_lines (commits avro)")
    assert "Create on topic orders_with_lines.commits-avro" in map(str, rights_of(definition))


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ('"transactions"', '"latest"', "emit", 'needs every transaction; set emit = "transactions"'),
        ("emit", 'scope = "aggregate"\nemit', "scope", "needs whole transactions"),
        ('"o"', '"inv"', "source", "'inv' is the prefix of the source that is read"),
    ],
)
def test_what_no_source_can_be_made_of_is_refused(
    folder: Path, old: str, new: str, key: str, says: str
) -> None:
    write(folder, SOURCE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_pipeline(folder)
    assert f": {key}: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("SELECT TRANSACTIONALLY o.customer FROM inventory.orders o", "has column 'o.id', which it does"),
        ("SELECT TRANSACTIONALLY count(*) AS n FROM inventory.orders o", "it has no key"),
    ],
)
def test_a_view_without_its_key_is_no_table_of_a_source(folder: Path, view: str, says: str) -> None:
    write(folder, SOURCE)
    (folder / "views" / "orders_with_lines.sql").write_text(view)
    with pytest.raises(ConfigError, match=says):
        load_pipeline(folder)


def test_tables_of_a_source_have_one_prefix(folder: Path) -> None:
    (folder / "views" / "other.sql").write_text("SELECT TRANSACTIONALLY o.id FROM inventory.orders o")
    first, table = SOURCE.split("[output]")
    write(folder, f'{first}[outputs.other]{table}topic = "a.b.c"\n[outputs.orders_with_lines]{table}')
    with pytest.raises(ConfigError, match="have different prefixes: 'a' and 'o'; a source has one prefix"):
        load_pipeline(folder)


def test_the_scope_is_strict_unless_said_otherwise(folder: Path) -> None:
    assert load_pipeline(folder).scope is Scope.STRICT
    write(folder, 'name = "o"\nsource = "inv"\nscope = "aggregate"')
    assert load_pipeline(folder).scope is Scope.AGGREGATE


def test_tables_may_have_topics_of_other_names(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"\n[topics]\n"inventory.orders" = "routed"')
    assert load_pipeline(folder).topics == {"inventory.orders": "routed"}
    write(folder, 'name = "o"\nsource = "inv"\n[topics]\n\'"inventory"."orders"\' = "routed"')
    assert load_pipeline(folder).topics == {"inventory.orders": "routed"}


def test_tables_whose_topics_have_the_same_name_are_refused(folder: Path) -> None:
    (folder / "schema.sql").write_text(
        'CREATE TABLE s."a b" (id int PRIMARY KEY); CREATE TABLE s."a_b" (id int PRIMARY KEY);'
    )
    view = 'SELECT TRANSACTIONALLY a.id, b.id AS b FROM s."a b" a LEFT JOIN s.a_b b ON a.id = b.id'
    for path in (folder / "views").iterdir():
        path.write_text(view)
    write(folder, 'name = "o"\nsource = "inv"')
    with pytest.raises(ConfigError, match=r"table s\.a b: its topic inv\.s\.a_b .* of table s\.a_b"):
        load_pipeline(folder)
    write(folder, 'name = "o"\nsource = "inv"\n[topics]\n"s.a b" = "elsewhere"')
    assert load_pipeline(folder).topics == {"s.a b": "elsewhere"}


def test_a_revision_has_a_name_outputs_and_a_checkpoint_of_its_own(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"\nrevision = 2')
    definition = load_pipeline(folder)
    assert definition.name == "o.v2"
    assert definition.outputs == (ViewOutput("orders_with_lines", "orders_with_lines.v2"),)
    assert revision_checkpoint("/var/lib/o/", definition.revision) == "/var/lib/o.v2"


def test_a_topic_that_is_named_is_taken_in_every_revision(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"\nrevision = 3\n[output]\ntopic = "mine"')
    assert load_pipeline(folder).outputs == (ViewOutput("orders_with_lines", "mine"),)


def test_the_first_revision_is_named_as_it_is(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"')
    definition = load_pipeline(folder)
    assert (definition.name, revision_checkpoint("c", definition.revision)) == ("o", "c")


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ('nmae = "o"', "nmae", "did you mean name?"),
        ('name = "o"\nsource = "inv"\ncolour = 1', "colour", "known: name, source"),
        ('name = "o"\nsource = "inv"\n[output]\ntopics = "x"', "output.topics", "did you mean topic?"),
        ('source = "inv"', "name", "expected a text, got nothing"),
        ("name = 7", "name", "expected a text, got 7"),
        ('name = "a b"\nsource = "inv"', "name", "is part of Kafka topic names"),
        (
            'name = "o"\nsource = "inv"\nemit = "all"',
            "emit",
            "expected 'latest' or 'transactions', got 'all'",
        ),
        (
            'name = "o"\nsource = "inv"\nscope = "both"',
            "scope",
            "expected 'strict' or 'aggregate', got 'both'",
        ),
        (
            'name = "o"\nsource = "inv"\n[topics]\n"orders" = "x"',
            "topics.orders",
            "expected schema.table",
        ),
        (
            'name = "o"\nsource = "inv"\n[topics]\n"inventory.order" = "x"',
            "topics.inventory.order",
            "did you mean inventory.orders or",
        ),
        ('name = "o"\nsource = "inv"\n[topics]\n"inventory.orders" = 1', "topics.inventory.orders", "got 1"),
        ('name = "o"\nsource = "inv"\nrevision = 0', "revision", "from 1 to 2147483647, got 0"),
        ('name = "o"\nsource = "inv"\nbuckets = 0', "buckets", "a whole number from 1 to 65536, got 0"),
        ('name = "o"\nsource = "inv"\nbuckets = true', "buckets", "a whole number from 1 to 65536, got True"),
        ('name = "o"\nsource = "inv"\noutput = "x"', "output", "expected a table, got 'x'"),
        ('name = "o"\nsource = "inv"\noutputs.o = 1', "outputs.o", "expected a table, got 1"),
        ("name = 7\ncolour = 1", "colour", "pipeline.toml: name: expected a text, got 7\n"),
        ("name = ", "", "not readable as TOML"),
    ],
)
def test_a_wrong_definition_is_named_by_file_and_key(folder: Path, text: str, key: str, says: str) -> None:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_pipeline(folder)
    place = f"{folder / 'pipeline.toml'}: {key}: " if key else f"{folder / 'pipeline.toml'}: "
    assert str(caught.value).startswith(place)
    assert says in str(caught.value)


def test_a_folder_without_a_definition_is_no_pipeline(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.toml: no such file"):
        load_pipeline(tmp_path)


def test_a_pipeline_without_tables_says_how_to_get_them(folder: Path) -> None:
    (folder / "schema.sql").unlink()
    with pytest.raises(ConfigError, match="slackwater schema pull"):
        load_pipeline(folder)


def test_tables_may_be_declared_in_several_files(folder: Path) -> None:
    (folder / "schema").mkdir()
    (folder / "schema.sql").rename(folder / "schema" / "inventory.sql")
    assert load_pipeline(folder).tables == ("inventory.order_lines", "inventory.orders")


def test_a_pipeline_without_a_view_is_refused(folder: Path) -> None:
    (folder / "views" / "orders_with_lines.sql").unlink()
    with pytest.raises(ConfigError, match="no view"):
        load_pipeline(folder)


def test_an_output_has_to_say_which_of_two_views_it_is_of(folder: Path) -> None:
    shutil.copy(folder / "views" / "orders_with_lines.sql", folder / "views" / "other.sql")
    with pytest.raises(ConfigError, match=r"there are several views \(orders_with_lines, other\)"):
        load_pipeline(folder)


def test_an_unknown_table_in_the_view_is_named_with_its_place(folder: Path) -> None:
    view = folder / "views" / "orders_with_lines.sql"
    view.write_text(view.read_text().replace("inventory.order_lines", "inventory.order_line"))
    with pytest.raises(SqlTextError, match="order_line") as caught:
        load_pipeline(folder)
    assert str(view) in str(caught.value)


def add_view(folder: Path, name: str, sql: str) -> None:
    (folder / "views" / f"{name}.sql").write_text(sql)


def test_views_of_a_folder_may_read_each_other(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"\n[outputs.spending]\ntopic = "spent"\npartitions = 2')
    add_view(
        folder,
        "spending",
        "SELECT TRANSACTIONALLY o.customer, sum(o.total) AS n FROM orders_with_lines o GROUP BY o.customer",
    )
    definition = load_pipeline(folder)
    assert definition.outputs == (
        ViewOutput("orders_with_lines", "orders_with_lines"),
        ViewOutput("spending", "spent", 2),
    )
    assert [view.name for view in definition.plan.views] == ["orders_with_lines", "spending"]
    assert len(definition.plan.stages) > 1


def test_a_view_that_is_not_published_costs_nothing_by_itself(folder: Path) -> None:
    alone = len(load_pipeline(folder).plan.stages)
    add_view(folder, "ids", "SELECT TRANSACTIONALLY o.id FROM inventory.orders o")
    write(folder, 'name = "o"\nsource = "inv"\n[outputs.ids]\npublish = false')
    definition = load_pipeline(folder)
    assert [view.name for view in definition.plan.views] == ["orders_with_lines"]
    assert len(definition.plan.stages) == alone


def test_views_that_read_each_other_in_a_circle_are_refused(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"')
    add_view(folder, "a", "SELECT TRANSACTIONALLY b.id FROM b")
    add_view(folder, "b", "SELECT TRANSACTIONALLY a.id FROM a")
    with pytest.raises(SqlTextError, match="reads"):
        load_pipeline(folder)


def test_scope_aggregate_is_for_views_of_one_stage_over_rows(folder: Path) -> None:
    write(folder, 'name = "o"\nsource = "inv"\nscope = "aggregate"')
    add_view(folder, "counted", "SELECT TRANSACTIONALLY count(*) AS n FROM inventory.orders o")
    told = r"pipeline\.toml: scope: .*Use scope 'strict'; `slackwater explain`"
    with pytest.raises(ConfigError, match=told):
        load_pipeline(folder)


def test_a_pipeline_may_be_made_without_a_folder() -> None:
    catalog = parse_catalog({"s.sql": "CREATE TABLE s.t (id bigint PRIMARY KEY, n int);"})
    views = {
        "a": "SELECT TRANSACTIONALLY t.id, t.n FROM s.t t",
        "b": "SELECT TRANSACTIONALLY sum(a.n) AS n FROM a",
    }
    definition = pipeline_definition(name="p", source="inv", catalog=catalog, views=views)
    assert definition.outputs == (ViewOutput("a", "a"), ViewOutput("b", "b"))
    assert definition.tables == ("s.t",)
    only = pipeline_definition(
        name="p", source="inv", catalog=catalog, views=views, outputs=[ViewOutput("b", "total", 1)]
    )
    assert [view.name for view in only.plan.views] == ["b"]


TABLES = parse_catalog({"s.sql": "CREATE TABLE s.t (id bigint PRIMARY KEY, n int);"})
ROWS = {"a": "SELECT TRANSACTIONALLY t.id, t.n FROM s.t t"}


def test_outputs_without_a_folder_have_the_same_forms() -> None:
    output = ViewOutput("a", "p.public.a", format=cast(Format, "debezium"))
    definition = pipeline_definition(
        name="p", source="inv", catalog=TABLES, views=ROWS, emit=Emit.TRANSACTIONS, outputs=[output]
    )
    assert [stage.output for stage in definition.plan.stages] == [DocumentsOutput(0, with_before=True)]
    assert definition.outputs[0].is_source


@pytest.mark.parametrize(
    ("output", "emit", "says"),
    [
        (ViewOutput("a", "p.public.a", format=Format.DEBEZIUM), Emit.LATEST, "emit: .* every transaction"),
        (
            ViewOutput("a", "a", format=Format.AVRO, cloudevents=True),
            Emit.LATEST,
            "cloudevents cannot be combined",
        ),
        (ViewOutput("a", "a", format=Format.DEBEZIUM), Emit.TRANSACTIONS, "expected prefix.schema.table"),
        (
            ViewOutput("a", "s.a", kind=SinkKind.POSTGRES, history=True),
            Emit.LATEST,
            "needs every transaction",
        ),
        (
            ViewOutput("a", "p.public.a", format=Format.DEBEZIUM, key_format=KeyFormat.AVRO),
            Emit.TRANSACTIONS,
            "key_format 'avro' cannot be combined",
        ),
    ],
)
def test_outputs_without_a_folder_have_the_same_limits(output: ViewOutput, emit: Emit, says: str) -> None:
    with pytest.raises(ConfigError, match=f"pipeline 'p': .*{says}"):
        pipeline_definition(name="p", source="inv", catalog=TABLES, views=ROWS, emit=emit, outputs=[output])


RESERVED = {
    "inv.slackwater.cuts": "reserved",
    "other.slackwater.progress": "reserved",
    "other.slackwater.readers": "reserved",
    "slackwater.pipelines": "reserved",
    "slackwater.leases": "reserved",
    "__consumer_offsets": "reserved",
    "inv.transaction": "the transaction topic",
    "inv.notifications": "notifications",
    "inv.inventory.orders": "the topic of table inventory.orders",
    "inv.inventory.unread": "a table of source 'inv' by its name",
    "sent.elsewhere": "the topic of table inventory.order_lines",
}


@pytest.mark.parametrize("topic", RESERVED)
def test_an_output_has_no_name_of_a_topic_with_another_purpose(folder: Path, topic: str) -> None:
    routed = '[topics]\n"inventory.order_lines" = "sent.elsewhere"'
    write(folder, f'name = "o"\nsource = "inv"\n{routed}\n[output]\ntopic = "{topic}"')
    refused = f"cannot write topic '{re.escape(topic)}'.*{RESERVED[topic]}"
    with pytest.raises(ConfigError, match=refused):
        load_pipeline(folder)


def test_a_definition_without_a_folder_refuses_such_names_as_well(folder: Path) -> None:
    sql = load_pipeline(folder).sql
    assert sql is not None
    views = {view: text for view, (_, text) in zip(sql.view_names, sql.views, strict=True)}
    outputs = [ViewOutput(view, "slackwater.pipelines") for view in views]
    with pytest.raises(ConfigError, match="reserved for the records of Slackwater"):
        pipeline_definition(name="o", source="inv", catalog=sql.catalog, views=views, outputs=outputs)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('name = ".."', "name"),
        ('source = "."', "source"),
        ("buckets = 1_000_000_000", "buckets"),
        (f"revision = {10**30}", "revision"),
        ("output.partitions = 1_000_000_000", "output.partitions"),
        ('output.topic = ".."', "output.topic"),
    ],
)
def test_values_that_no_pipeline_has_are_refused(folder: Path, line: str, key: str) -> None:
    lines = {"name": 'name = "o"', "source": 'source = "inv"', key: line}
    write(folder, "\n".join(lines.values()))
    with pytest.raises(ConfigError, match=f"pipeline.toml: {key}: "):
        load_pipeline(folder)


def test_a_file_that_is_nested_too_deeply_is_refused(folder: Path) -> None:
    write(folder, f"name = {'[' * 5000}")
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_pipeline(folder)


@pytest.mark.parametrize("name", ["views/x.sql", "schema.sql", "schema/x.sql", "pipeline.toml"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link", "long"])
def test_only_files_of_the_folder_are_read(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "long":
        with path.open("w") as file:
            file.truncate(MAX_FILE_BYTES + 1)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else secret)

    with pytest.raises(ConfigError, match=f"{name}: (this|the file has)") as raised:
        load_pipeline(folder)

    assert "the secret" not in str(raised.value)


def test_a_link_within_the_folder_is_read(folder: Path) -> None:
    """Kubernetes mounts files as such links."""
    data = folder / "views" / "..data"
    data.mkdir()
    for view in (folder / "views").glob("*.sql"):
        view.rename(data / view.name)
        view.symlink_to(Path("..data", view.name))

    assert load_pipeline(folder).outputs


QUARANTINE = 'name = "o"\nsource = "inv"\n[output]\non_error = "quarantine"\n'


@pytest.mark.parametrize(
    ("more", "name", "kind"),
    [
        ("", "orders_with_lines.quarantine", SinkKind.KAFKA),
        ('format = "debezium"\ntopic = "a.b.t"\n', "a.b.t.quarantine", SinkKind.KAFKA),
        ('kind = "postgres"\ntable = "w.t"\n', "w.t_quarantine", SinkKind.POSTGRES),
        ('kind = "delta"\n', "views.orders_with_lines_quarantine", SinkKind.DELTA),
        ('kind = "opensearch"\nindex = "i"\n', "i.quarantine", SinkKind.OPENSEARCH),
    ],
)
def test_the_withheld_keys_of_a_view_are_a_view_beside_it(
    folder: Path, more: str, name: str, kind: SinkKind
) -> None:
    emit = 'emit = "transactions"\n' if "debezium" in more else ""
    write(folder, emit + QUARANTINE + more)
    definition = load_pipeline(folder)
    view, withheld = definition.outputs
    assert (withheld.view, withheld.name, withheld.kind) == ("orders_with_lines.quarantine", name, kind)
    assert (withheld.withheld_of, definition.published) == (view.view, (view.view,))
    assert [each.name for each in definition.plan.views] == [view.view, withheld.view]
    assert sink_outputs(definition) == 2


def sink_outputs(definition: PipelineDefinition) -> int:
    """The number of views whose documents a sink may receive."""
    return len([keys_move(definition.plan, number) for number in range(len(definition.plan.views))])


def test_withholding_keys_needs_another_revision_and_leaves_the_state_as_it_is(folder: Path) -> None:
    write(folder, QUARANTINE.partition("[output]")[0])
    stopping = replace(load_pipeline(folder), buckets=8)
    write(folder, QUARANTINE)
    withholding = replace(load_pipeline(folder), buckets=8)
    before, after = (pipeline_fingerprint(each, 1) for each in (stopping, withholding))
    assert before["stages"] == after["stages"]
    assert [name for name, _, _ in fingerprint_changes(before, after)] == [
        "view orders_with_lines.quarantine"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (QUARANTINE.replace('"quarantine"', '"ignore"'), r"on_error.*ignore"),
        ('scope = "aggregate"\n' + QUARANTINE, r"on_error needs commits of all tables"),
        (QUARANTINE + f'kind = "postgres"\ntable = "w.{"t" * 60}"\n', r"has more than 63 characters"),
    ],
)
def test_what_cannot_be_withheld_is_refused(folder: Path, text: str, says: str) -> None:
    write(folder, text)
    with pytest.raises(ConfigError, match=says):
        load_pipeline(folder)


def test_explain_says_which_stage_withholds_keys(folder: Path) -> None:
    write(folder, QUARANTINE)
    definition = load_pipeline(folder)
    text = " ".join("\n".join(explanation_lines(explain(definition, with_sql=False))).split())
    assert "keys that cannot be evaluated are withheld, and named in orders_with_lines.quarantine" in text
