"""Readers of tables in a real PostgreSQL, while they are switched from one revision to another and back.

How the promises were seen to fail. At once: ``_try_to_switch`` without its transaction. Never back:
``_switched`` without ``_check_not_behind``, and without FOR SHARE. Also without the grants that are given
again, and without each of the conditions of ``_check_views``.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from slackwater.client import NotVisibleError
from slackwater.client.readers import Switched
from slackwater.client.table_views import LEDGER_VIEW, schemas_of_readers, switch_tables
from slackwater.dev import PostgresServer
from slackwater.protocol import (
    CommitPosition,
    ConfigError,
    KafkaSettings,
    PostgresSettings,
    Servers,
    UnavailableError,
)
from slackwater_lab.publishing import PublishingPipeline, publishing_pipeline

pytestmark = pytest.mark.integration

NOW = timedelta(0)


class World:
    """Two revisions of a pipeline, and the schema of their readers. A batch sets row 1 to its LSN."""

    def __init__(self, server: PostgresServer, folder: Path, opened: ExitStack) -> None:
        self.url, self.folder, self.opened = server.dsn(), folder, opened
        self.name = f"p{uuid.uuid4().hex[:10]}"
        self.schema = f"r{uuid.uuid4().hex[:10]}"
        self.database = opened.enter_context(closing(psycopg.connect(self.url, autocommit=True)))
        self.old, self.new = self.pipeline(self.name), self.pipeline(f"{self.name}.v2")

    def pipeline(self, name: str, *views: str) -> PublishingPipeline:
        servers = Servers(KafkaSettings(""), postgres=PostgresSettings(self.url))
        table = f'kind = "postgres"\ntable = "{name.replace(".", "_")}.{{}}"'
        (view, output), *more = ((each, table.format(each)) for each in views or ("one",))
        made = publishing_pipeline(
            self.folder / name, view=view, output=output, servers=servers, more=dict(more)
        )
        return self.opened.enter_context(made)

    def publish(self, *pipelines: PublishingPipeline) -> None:
        for each in pipelines:
            each.publish({1: each.lsn + 100})

    def ask(self, query: LiteralString, *parts: sql.Composable) -> psycopg.Cursor[Any]:
        return self.database.execute(sql.SQL(query).format(*parts))

    def table(self, pipeline: PublishingPipeline) -> sql.Identifier:
        return sql.Identifier(pipeline.folder.name.replace(".", "_"), "one")

    def switch(self, pipeline: PublishingPipeline, **options: Any) -> Switched:
        return switch_tables(self.url, self.schema, pipeline.folder.name, **options)

    def seen(self) -> tuple[str, int, int]:
        """Returns what a reader sees: the pipeline, its commit, and the value of the row."""
        ledger, view = (sql.Identifier(self.schema, name) for name in (LEDGER_VIEW, "one"))
        row = self.ask("SELECT l.pipeline, l.commit_lsn, v.value FROM {} l, {} v", ledger, view).fetchone()
        assert row is not None
        return row[0], row[1], row[2]


@pytest.fixture
def world(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as opened:
        yield World(postgres_server, tmp_path, opened)


def test_a_switch_is_on_disk_also_for_a_role_whose_default_is_not_to_wait(world: World) -> None:
    """Otherwise a crash of the database would take readers back. Seen to fail without ``ledger.DURABLE``."""
    name, role = sql.Identifier(world.schema + "_note"), sql.Identifier(world.schema + "_hasty")
    world.ask("CREATE ROLE {} LOGIN SUPERUSER", role)
    world.ask("ALTER ROLE {} SET synchronous_commit = off", role)
    world.ask("CREATE TABLE {} (setting text)", name)
    world.ask(
        "CREATE FUNCTION {0}() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF session_user = {1} THEN "
        "INSERT INTO {0} SELECT current_setting('synchronous_commit'); END IF; END $$",
        name,
        sql.Literal(world.schema + "_hasty"),
    )
    world.ask("CREATE EVENT TRIGGER {0} ON ddl_command_end EXECUTE FUNCTION {0}()", name)
    world.opened.callback(world.ask, "DROP EVENT TRIGGER {}", name)
    world.publish(world.old)
    url = make_conninfo(world.url, user=world.schema + "_hasty")
    switch_tables(url, world.schema, world.name, timeout=NOW)
    assert {row[0] for row in world.ask("SELECT setting FROM {}", name)} == {"on"}


def test_readers_are_switched_and_switched_back(world: World) -> None:
    world.publish(world.old)
    first = world.switch(world.old, timeout=NOW)
    assert first == Switched(None, None, CommitPosition(1, 100))
    world.publish(world.new, world.new)
    assert world.seen() == (world.name, 100, 100)
    done = world.switch(world.new, timeout=NOW)
    assert done == Switched(world.name, CommitPosition(1, 100), CommitPosition(1, 200))
    assert world.seen() == (f"{world.name}.v2", 200, 200)
    assert schemas_of_readers(world.url, world.name) == {world.schema: f"{world.name}.v2"}
    assert schemas_of_readers(world.url, "another") == {}
    world.publish(world.new)
    assert world.switch(world.new, timeout=NOW).before == f"{world.name}.v2"
    assert world.seen() == (f"{world.name}.v2", 300, 300)
    world.publish(world.old, world.old)
    world.switch(world.old, timeout=NOW)
    assert world.seen() == (world.name, 300, 300)


def test_readers_of_two_pipelines_that_become_one_see_only_their_own_views(world: World) -> None:
    """Seen to fail without the choice of own views in ``_switched`` and in ``schemas_of_readers``."""
    other, schema = world.pipeline(f"q{world.name}", "two"), f"{world.schema}q"
    joint = world.pipeline(f"both{world.name}.v2", "one", "two")
    name, names = joint.folder.name, [world.name, other.folder.name]
    world.publish(world.old, other, joint)
    of = [(names[0], world.schema, "one"), (names[1], schema, "two")]

    def switch(pipeline: str, schema: str, part: str, view: str) -> None:
        switch_tables(world.url, schema, pipeline, ([part, name], [view]), timeout=NOW)

    def seen(schema: str) -> tuple[str, dict[str, int]]:
        query = "SELECT viewname FROM pg_views WHERE schemaname = {}"
        views = [view for (view,) in world.ask(query, sql.Literal(schema)) if view != LEDGER_VIEW]
        (read,) = world.ask("SELECT pipeline FROM {}", sql.Identifier(schema, LEDGER_VIEW)).fetchall()
        rows = {each: world.ask("SELECT value FROM {}", sql.Identifier(schema, each)) for each in views}
        return read[0], {each: value for each, found in rows.items() for (value,) in found}

    for part, place, view in of:
        switch(part, place, part, view)
    assert [seen(place) for _, place, _ in of] == [(part, {view: 100}) for part, _, view in of]
    switch(name, world.schema, names[0], "one")
    assert [seen(place)[0] for _, place, _ in of] == [name, names[1]], "of one of them"
    switch(name, schema, names[1], "two")
    world.publish(joint)
    assert [seen(place) for _, place, _ in of] == [(name, {view: 200}) for _, _, view in of]
    for part, place, view in of:
        assert schemas_of_readers(world.url, part, {name: [view]}) == {place: name}
        assert schemas_of_readers(world.url, part) == {}, "nobody says that it is a revision"
        with pytest.raises(NotVisibleError, match="but readers are at 1/0/C8"):
            switch(part, place, part, view)
    with pytest.raises(ConfigError, match=f"lacks view 'one', which readers of '{name}'"):
        switch_tables(world.url, world.schema, name, (names, ["two"]), timeout=NOW)
    with pytest.raises(ConfigError, match="belong to pipeline"):
        switch_tables(world.url, world.schema, names[0], timeout=NOW)
    world.publish(world.old, other)
    for part, place, view in of:
        switch(part, place, part, view)
        assert schemas_of_readers(world.url, part, {name: [view]}) == {place: part}
    assert [seen(place) for _, place, _ in of] == [(part, {view: 200}) for part, _, view in of]


def test_readers_go_back_only_if_somebody_says_so(world: World) -> None:
    world.publish(world.old, world.old, world.new)
    world.switch(world.old, timeout=NOW)
    with pytest.raises(NotVisibleError, match=r"is at 1/0/64, but readers are at 1/0/C8"):
        world.switch(world.new, timeout=NOW)
    assert world.seen() == (world.name, 200, 200)
    world.switch(world.new, timeout=NOW, accept_earlier=True)
    assert world.seen() == (f"{world.name}.v2", 100, 100)


def test_a_switch_that_is_killed_at_any_statement_has_changed_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(world.old, world.new)
    world.switch(world.old, timeout=NOW)
    execute, left = psycopg.Connection.execute, 0

    def dying(connection: psycopg.Connection[Any], *arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            connection.pgconn.finish()  # as the kernel does for a process that is gone
            raise KeyboardInterrupt
        return execute(connection, *arguments, **options)

    steps = 0
    while True:
        left, before = steps, world.seen()
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", dying)
            try:
                world.switch(world.new, timeout=NOW)
                break
            except KeyboardInterrupt:
                steps += 1
        assert world.seen() == before
    assert steps > 8
    assert world.seen() == (f"{world.name}.v2", 100, 100)


def test_readers_see_whole_commits_that_only_rise_while_they_are_switched(world: World) -> None:
    world.publish(world.old, world.new)
    world.switch(world.old)
    is_over, found = threading.Event(), list[tuple[str, int, int]]()

    def publish() -> None:
        while not is_over.is_set():
            world.publish(world.old, world.new)

    def read() -> None:
        while not is_over.is_set():
            found.append(world.seen())

    threads = [threading.Thread(target=each) for each in (publish, read)]
    for each in threads:
        each.start()
    try:
        for _ in range(10):
            world.switch(world.new)
            world.switch(world.old)
    finally:
        is_over.set()
        for each in threads:
            each.join()
    assert {pipeline for pipeline, _, _ in found} <= {world.name, f"{world.name}.v2"}
    assert all(lsn == value for _, lsn, value in found)
    lsns = [lsn for _, lsn, _ in found]
    assert lsns == sorted(lsns)


def test_grants_stay_also_if_columns_change(world: World) -> None:
    world.publish(world.old, world.new)
    role, view = f"reader of {world.schema}", sql.Identifier(world.schema, "one")
    world.ask("CREATE ROLE {}", sql.Identifier(role))
    world.ask("ALTER TABLE {} ADD COLUMN more text", world.table(world.new))
    world.switch(world.old)
    world.ask("GRANT SELECT ON {} TO {} WITH GRANT OPTION", view, sql.Identifier(role))
    privilege = sql.Literal(role), sql.Literal(f"{world.schema}.one")
    for pipeline, columns in ((world.new, 3), (world.old, 2)):
        world.switch(pipeline)
        assert len(world.ask("SELECT * FROM {}", view).description or ()) == columns
        may = world.ask("SELECT has_table_privilege({}, {}, 'SELECT WITH GRANT OPTION')", *privilege)
        assert may.fetchone() == (True,)
    world.ask("DROP SCHEMA {} CASCADE", sql.Identifier(world.schema))
    world.ask("DROP ROLE {}", sql.Identifier(role))


def test_a_schema_with_tables_of_the_same_name_is_refused(world: World) -> None:
    world.publish(world.old)
    with pytest.raises(ConfigError, match="is not a view"):
        switch_tables(world.url, world.name, world.name, timeout=NOW)
    with pytest.raises(ConfigError, match="no pipeline 'nobody' has written"):
        switch_tables(world.url, world.schema, "nobody", timeout=NOW)


def test_the_views_of_another_pipeline_are_left_alone(world: World) -> None:
    other = world.pipeline(f"q{world.name}")
    world.publish(world.old, other)
    world.switch(world.old, timeout=NOW)
    with pytest.raises(ConfigError, match="belong to pipeline"):
        world.switch(other, timeout=NOW)
    assert world.seen() == (world.name, 100, 100)


def test_columns_that_others_depend_on_are_not_taken_away(world: World) -> None:
    world.publish(world.old, world.new)
    world.ask("ALTER TABLE {} ADD COLUMN more text", world.table(world.new))
    world.switch(world.new, timeout=NOW)
    mine, view = (sql.Identifier(world.schema, name) for name in ("mine", "one"))
    world.ask("CREATE VIEW {} AS SELECT more FROM {}", mine, view)
    with pytest.raises(ConfigError, match="other objects depend on it"):
        world.switch(world.old, timeout=NOW)
    assert world.seen() == (f"{world.name}.v2", 100, 100)


def test_a_revision_without_a_view_that_readers_have_is_refused(world: World) -> None:
    world.publish(world.old, world.new)
    world.switch(world.old, timeout=NOW)
    new = sql.Literal(f"{world.name}.v2")
    world.ask("UPDATE slackwater.ledger_tables SET view = 'two' WHERE pipeline = {}", new)
    with pytest.raises(ConfigError, match="lacks view 'one', which readers"):
        world.switch(world.new, timeout=NOW)
    assert world.seen() == (world.name, 100, 100)


def test_commits_of_two_sources_are_not_compared(world: World) -> None:
    world.publish(world.old, world.new)
    world.switch(world.old, timeout=NOW)
    world.ask(
        "UPDATE slackwater.ledger SET source = 'x', progress = replace(progress, '\"inv\"', '\"x\"') "
        "WHERE pipeline = {}",
        sql.Literal(f"{world.name}.v2"),
    )
    with pytest.raises(ConfigError, match="reads source 'inv' and"):
        world.switch(world.new, timeout=NOW)
    assert world.seen() == (world.name, 100, 100)


def test_a_reader_in_a_transaction_is_waited_for(world: World) -> None:
    world.publish(world.old, world.new)
    world.switch(world.old, timeout=NOW)
    with closing(psycopg.connect(world.url)) as reader:
        reader.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(world.schema, "one")))
        with pytest.raises(UnavailableError, match=r"keep the views of schema .* locked"):
            world.switch(world.new, timeout=NOW)
    world.switch(world.new)
    assert world.seen()[0] == f"{world.name}.v2"
