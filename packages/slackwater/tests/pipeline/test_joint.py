# ruff: noqa: S608 - statements are put together from constants of this module
"""Pipelines of one source are joined: equal stages are kept once, or the pipelines are refused."""

from pathlib import Path

import pytest

from slackwater.outputs.contract import Emit
from slackwater.pipeline import load_pipeline
from slackwater.pipeline.joint import Parts, changed_files, check_joined, joined_files, write_folder
from slackwater.protocol import ConfigError

ORDERS = "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL);"
LINES = "CREATE TABLE shop.lines (id bigint PRIMARY KEY, order_id bigint NOT NULL, price bigint NOT NULL);"
IDENTITY = "".join(f"\nALTER TABLE shop.{table} REPLICA IDENTITY FULL;" for table in ("orders", "lines"))
SPENT = "SELECT o.customer, sum(o.total) AS spent FROM shop.orders o GROUP BY o.customer"
BIG = f"SELECT TRANSACTIONALLY s.spent, count(*) AS customers FROM ({SPENT}) s GROUP BY s.spent"
SMALL = f"SELECT TRANSACTIONALLY s.spent, min(s.customer) AS first FROM ({SPENT}) s GROUP BY s.spent"


def pipeline(
    folder: Path, view: str, statement: str, toml: str = "", schema: str = ORDERS + LINES + IDENTITY
) -> Path:
    (folder / "views").mkdir(parents=True)
    head = f'name = "{folder.name}"\nsource = "inv"\n'
    (folder / "pipeline.toml").write_text(toml if "name =" in toml else head + toml)
    (folder / "schema.sql").write_text(schema)
    (folder / "views" / f"{view}.sql").write_text(statement)
    return folder


def loaded(*folders: Path) -> Parts:
    return {folder: load_pipeline(folder) for folder in folders}


def join(tmp_path: Path, *folders: Path, emit: Emit | None = None) -> Path:
    files = joined_files(loaded(*folders), "both", 2, emit)
    write_folder(tmp_path / "both", files)
    return tmp_path / "both"


def test_what_pipelines_have_in_common_is_planned_once_and_views_mean_the_same(tmp_path: Path) -> None:
    left = pipeline(
        tmp_path / "left",
        "big",
        BIG,
        'buckets = 3\nowner = "ada"\n[output]\ntopic = "sizes"\npartitions = 2\n',
    )
    right = pipeline(tmp_path / "right", "small", SMALL, 'owner = "ben"\n')
    parts = loaded(left, right)
    joint = load_pipeline(join(tmp_path, left, right))

    assert check_joined(joint, parts) == 1
    assert (joint.name, joint.revision, joint.buckets, joint.owner) == ("both.v2", 2, 3, "ada, ben")
    assert joint.revision_of == {"left": ("big",), "right": ("small",)}
    assert [(each.view, each.name, each.partitions) for each in joint.outputs] == [
        ("big", "sizes.v2", 2),
        ("small", "small.v2", None),
    ]
    apart = {s.identity for part in parts.values() for s in part.plan.stages}
    assert {stage.identity for stage in joint.plan.stages} == apart


def test_pipelines_of_tables_and_of_sources_get_names_of_their_own(tmp_path: Path) -> None:
    table = '[output]\nkind = "postgres"\ntable = "public.{0}_v3"\nhistory = true\n'
    emit = 'emit = "transactions"\n'
    left = pipeline(tmp_path / "left", "big", BIG, emit + table.format("big"))
    right = pipeline(tmp_path / "right", "small", SMALL, emit + table.format("small"))
    joint = load_pipeline(join(tmp_path, left, right))
    assert [(each.name, each.history) for each in joint.outputs] == [
        ("public.big_v2", True),
        ("public.small_v2", True),
    ]
    events = f'{emit}[output]\nformat = "debezium"\ntopic = "{{0}}.public.{{0}}"\n'
    files = joined_files(
        loaded(
            pipeline(tmp_path / "one", "big", BIG, events.format("big")),
            pipeline(tmp_path / "two", "small", SMALL, events.format("small")),
        ),
        "tables",
        2,
        None,
    )
    write_folder(tmp_path / "tables", files)
    assert {each.prefix for each in load_pipeline(tmp_path / "tables").outputs} == {"tables_v2"}


@pytest.mark.parametrize(
    ("toml", "schema", "told"),
    [
        ('name = "right"\nsource = "crm"\n', ORDERS, "source is inv and crm"),
        ('emit = "transactions"\n', ORDERS, "emit is latest and transactions"),
        ('scope = "aggregate"\n', ORDERS, 'one has scope "aggregate"'),
        ('[output]\nkind = "delta"\n', ORDERS, "their outputs are of kind kafka and delta"),
        ('[topics]\n"shop.orders" = "elsewhere"\n', ORDERS, "the topics of table shop.orders are"),
        ("", ORDERS.replace("total bigint", "total integer"), "table shop.orders is declared differently"),
    ],
)
def test_what_cannot_be_joined_is_refused_by_name(tmp_path: Path, toml: str, schema: str, told: str) -> None:
    left = pipeline(tmp_path / "left", "big", BIG, schema=ORDERS)
    statement = "SELECT TRANSACTIONALLY o.id, count(*) AS n FROM shop.orders o GROUP BY o.id"
    right = pipeline(tmp_path / "right", "small", statement, toml, schema)
    with pytest.raises(ConfigError, match=told) as refused:
        join(tmp_path, left, right)
    assert str(refused.value).startswith("left and right cannot be joined")
    assert not (tmp_path / "both").exists()


def test_pipelines_of_indexes_are_refused_because_their_readers_cannot_be_switched(tmp_path: Path) -> None:
    """Both would be joined if they had other outputs: they have a stage in common."""
    index = '[output]\nkind = "opensearch"\nindex = "{}"\n'
    left = pipeline(tmp_path / "left", "big", BIG, index.format("big"))
    right = pipeline(tmp_path / "right", "small", SMALL, index.format("small"))
    with pytest.raises(ConfigError, match="left and right cannot be joined: they have indexes") as refused:
        join(tmp_path, left, right)
    assert refused.value.hint == "readers of indexes are switched between revisions of one name"
    assert not (tmp_path / "both").exists()


def test_views_of_one_name_are_one_view_or_refused(tmp_path: Path) -> None:
    left, right = (pipeline(tmp_path / name, "big", BIG) for name in ("left", "right"))
    joint = load_pipeline(join(tmp_path, left, right))
    assert joint.revision_of == {"left": ("big",), "right": ("big",)}
    other = pipeline(tmp_path / "other", "big", SMALL)
    with pytest.raises(ConfigError, match="view 'big' of other is another one"):
        joined_files(loaded(left, other), "x", 2, None)
    elsewhere = pipeline(tmp_path / "elsewhere", "big", BIG, "[output]\npartitions = 7\n")
    with pytest.raises(ConfigError, match="the output of view 'big' of elsewhere"):
        joined_files(loaded(left, elsewhere), "x", 2, None)


def test_pipelines_need_names_of_their_own(tmp_path: Path) -> None:
    left, right = (pipeline(tmp_path / name, "big", BIG) for name in ("left", "right"))
    other = pipeline(tmp_path / "other", "big", BIG, 'name = "left"\nsource = "inv"\n')
    for folders, name in (([left], "both"), ([left, other], "both"), ([left, right], "left")):
        with pytest.raises(ConfigError, match=f"cannot become '{name}'"):
            joined_files(loaded(*folders), name, 2, None)


def test_pipelines_that_have_nothing_in_common_are_refused(tmp_path: Path) -> None:
    other = "SELECT TRANSACTIONALLY l.price, count(*) AS n FROM shop.lines l GROUP BY l.price"
    parts = loaded(pipeline(tmp_path / "left", "big", BIG), pipeline(tmp_path / "right", "prices", other))
    write_folder(tmp_path / "both", joined_files(parts, "both", 2, None))
    with pytest.raises(ConfigError, match="have no stage and no kept rows in common"):
        check_joined(load_pipeline(tmp_path / "both"), parts)


def test_a_view_that_would_mean_something_else_is_refused(tmp_path: Path) -> None:
    """The type of the second schema file would replace that of the first."""
    kind = "CREATE DOMAIN amount AS {};\nCREATE TABLE shop.{} (id bigint PRIMARY KEY, paid amount NOT NULL);"
    views = "SELECT TRANSACTIONALLY t.paid, count(*) AS n FROM shop.{} t GROUP BY t.paid"
    parts = loaded(
        *(
            pipeline(tmp_path / t, t, views.format(t), schema=kind.format(k, t))
            for t, k in (("cash", "bigint"), ("card", "integer"))
        )
    )
    write_folder(tmp_path / "both", joined_files(parts, "both", 2, None))
    with pytest.raises(ConfigError, match="view 'cash' of cash would mean something else in both"):
        check_joined(load_pipeline(tmp_path / "both"), parts)


def test_a_pipeline_that_has_changed_since_is_noticed(tmp_path: Path) -> None:
    left, right = pipeline(tmp_path / "left", "big", BIG), pipeline(tmp_path / "right", "small", SMALL)
    both = join(tmp_path, left, right)
    assert changed_files(both, joined_files(loaded(left, right), "both", 2, None)) == []
    (right / "views" / "small.sql").write_text(SMALL.replace("min", "max"))
    (left / "views" / "more.sql").write_text(SMALL)
    changed = changed_files(both, joined_files(loaded(left, right), "both", 2, None))
    assert changed == ["pipeline.toml", "views/more.sql", "views/small.sql"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("[revision_of]\nleft = ['big']\n", "raise `revision`"),
        ("revision = 2\n[revision_of]\nboth = ['big']\n", "raise `revision`"),
        ("revision = 2\n[revision_of]\nleft = ['bog']\n", "view 'bog' is not published"),
        ("revision = 2\n[revision_of]\nleft = []\n", "no view is named"),
    ],
)
def test_a_revision_of_other_pipelines_names_their_views(tmp_path: Path, lines: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_pipeline(pipeline(tmp_path / "both", "big", BIG, lines))
    assert told in f"{refused.value} {refused.value.hint}"
    assert "pipeline.toml: revision_of." in str(refused.value)


def test_pipelines_of_other_states_are_joined_if_somebody_says_so(tmp_path: Path) -> None:
    left = pipeline(tmp_path / "left", "big", BIG)
    right = pipeline(tmp_path / "right", "small", SMALL, 'emit = "transactions"\n')
    joint = load_pipeline(join(tmp_path, left, right, emit=Emit.TRANSACTIONS))
    assert joint.emit is Emit.TRANSACTIONS
    assert check_joined(joint, loaded(left, right)) == 1


def test_a_folder_is_written_as_a_whole(tmp_path: Path) -> None:
    """Also after a process that was killed while it wrote."""
    left, right = pipeline(tmp_path / "left", "big", BIG), pipeline(tmp_path / "right", "small", SMALL)
    draft = tmp_path / ".both.draft"
    (draft / "views").mkdir(parents=True)
    (draft / "views" / "half.sql").write_text("SELECT")
    both = join(tmp_path, left, right)
    assert not draft.exists()
    assert sorted(each.name for each in both.rglob("*.sql")) == ["big.sql", "schema.sql", "small.sql"]
