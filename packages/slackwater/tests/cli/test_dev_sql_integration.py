"""``slackwater dev sql`` in a real database."""

import pytest

from slackwater.dev import PostgresServer
from slackwater.dev.postgres import run_sql
from slackwater.protocol import InputError

pytestmark = pytest.mark.integration


def test_statements_say_what_they_did_and_rows_have_the_names_of_their_columns(
    postgres_server: PostgresServer,
) -> None:
    text = "CREATE TEMP TABLE t (id int, name text); INSERT INTO t VALUES (1, 'a'), (2, NULL); TABLE t"
    assert run_sql(postgres_server.dsn(), "f.sql", text) == [
        [["CREATE TABLE"]],
        [["INSERT 0 2"]],
        [["id", "name"], ["1", "a"], ["2", ""]],
    ]


def test_a_mistake_is_reported_with_its_line_and_nothing_of_the_file_stays(
    postgres_server: PostgresServer,
) -> None:
    with pytest.raises(InputError, match=r"^f\.sql:2: syntax error at or near \"TABEL\""):
        run_sql(postgres_server.dsn(), "f.sql", "CREATE TABLE half_done (id int);\nCREATE TABEL u ();")
    with pytest.raises(InputError, match='relation "half_done" does not exist'):
        run_sql(postgres_server.dsn(), "f.sql", "SELECT * FROM half_done")


DUMP = r"""
\restrict abc
SET search_path = '';
CREATE TABLE public.dumped (id bigint PRIMARY KEY, name text);
COPY public.dumped (id, name) FROM stdin;
1	a\tb; c
2	\N
\.

ALTER TABLE public.dumped REPLICA IDENTITY FULL;
\unrestrict abc
"""


def test_a_dump_is_run_with_the_rows_of_its_tables(postgres_server: PostgresServer) -> None:
    results = run_sql(postgres_server.dsn(), "dump.sql", DUMP)

    assert [["COPY 2"]] in results
    found = run_sql(postgres_server.dsn(), "f.sql", "SELECT * FROM public.dumped; DROP TABLE public.dumped")
    assert found[0] == [["id", "name"], ["1", "a\tb; c"], ["2", ""]]


def test_a_mistake_in_a_dump_is_reported_with_its_line_and_nothing_of_it_stays(
    postgres_server: PostgresServer,
) -> None:
    with pytest.raises(InputError, match=r"^dump\.sql:10: "):
        run_sql(postgres_server.dsn(), "dump.sql", DUMP.replace("ALTER TABLE", "ALTER TABEL"))
    with pytest.raises(InputError, match="does not exist"):
        run_sql(postgres_server.dsn(), "f.sql", "SELECT * FROM public.dumped")
