"""The truth of tests: what test_decoding says about each kind of change."""

from collections.abc import Callable

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater_lab.servers.database_log import DatabaseLog

pytestmark = pytest.mark.integration

Changes = list[tuple[str, str, str]]


@pytest.fixture(scope="module")
def dsn(dev_stack: Callable[..., DevStack]) -> str:
    stack = dev_stack(kafka=False, redis=False, connect=False)
    with psycopg.connect(stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")
        connection.execute('CREATE TABLE b (note text, id int PRIMARY KEY, "a b" timestamptz)')
        connection.execute("ALTER TABLE b REPLICA IDENTITY FULL")
    return stack.postgres.dsn()


def test_every_committed_change_is_listed_in_commit_order_with_its_key(dsn: str) -> None:
    log = DatabaseLog(dsn)
    log.begin()
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as late:
        late.execute("INSERT INTO a VALUES (9, 'first written')")
        connection.execute("INSERT INTO a VALUES (1, 'it''s id[integer]:7'), (2, NULL)")
        connection.execute("UPDATE a SET id = 3 WHERE id = 2")
        with connection.transaction(force_rollback=True):
            connection.execute("DELETE FROM a")
        late.commit()
        connection.execute("INSERT INTO b VALUES ('x y', 1, now())")
        connection.execute("UPDATE b SET id = 4")
        connection.execute("DELETE FROM b")
        with connection.transaction():
            connection.execute("INSERT INTO b VALUES ('z', 5)")
            connection.execute("PREPARE TRANSACTION 'x'")
        connection.execute("COMMIT PREPARED 'x'")
        connection.execute("TRUNCATE a, b")

    found = [[(c.table, c.op, c.key) for c in t.changes] for t in log.transactions()]

    assert found == [
        [("public.a", "c", "1"), ("public.a", "c", "2")],
        [("public.a", "d", "2"), ("public.a", "c", "3")],
        [("public.a", "c", "9")],
        [("public.b", "c", "1")],
        [("public.b", "d", "1"), ("public.b", "c", "4")],
        [("public.b", "d", "4")],
        [("public.b", "c", "5")],
        [("public.a", "t", ""), ("public.b", "t", "")],
    ]
    assert [t.xid for t in log.transactions()] == [t.xid for t in log.transactions()]
